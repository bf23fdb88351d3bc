"""Checks of candidates over vocabulary shards: kernels and torch against the unsplit vocabulary, and real processes.

    merge_checks.py [--cuda] [NAME ...]      prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python (Triton interpreted), and by ``tests/gpu`` on a GPU.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.build import merge, topk, triton_merge, triton_topk
from ddtree.build.merge import Shard, ShardedCandidates
from ddtree.tree import heap

KINDS = ("float32", "bfloat16", "integer", "equal", "one-hot", "holes", "far")


def make_logits(generator: torch.Generator, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Random logits on the CPU; the kinds differ in how many ties they have."""
    logits = torch.randn(shape, generator=generator) * 2.5
    return {
        "float32": logits,
        "bfloat16": logits.bfloat16().float(),
        "integer": logits.round(),
        "equal": torch.zeros_like(logits),
        "one-hot": torch.where(logits == logits.amax(-1, keepdim=True), 0.0, -torch.inf),
        "holes": torch.where(logits > 0, logits, -torch.inf).index_fill(-1, torch.tensor([0]), 1.0),
        "far": torch.where(logits > 4, logits - 200, -torch.inf).index_fill(-1, torch.tensor([0]), -199.0),
    }[kind]


def shards_of(cuts: list[int], most_rows: int) -> list[Shard]:
    """Shards between the cuts; ``cuts`` starts with 0 and ends with the vocabulary."""
    return [Shard(first, end - first, most_rows, cuts[-1], len(cuts) - 1) for first, end in itertools.pairwise(cuts)]


def all_ranks(
    logits: torch.Tensor, shards: list[Shard], count: int, device: str, spare: int = 2
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """What every rank gets, one rank after the other: a first pass collects the words, a second one merges them."""
    sent: list[torch.Tensor] = []

    def collect(out: torch.Tensor, mine: torch.Tensor) -> None:
        sent.append(mine.clone())
        out.copy_(mine.repeat(len(shards)))  # something in range, thrown away

    def deliver(out: torch.Tensor, mine: torch.Tensor) -> None:
        out.copy_(torch.cat(sent))

    results = []
    for gather in (collect, deliver):
        results.clear()
        for shard in shards:
            part = logits[:, shard.first : shard.first + shard.rows].to(device)
            call = ShardedCandidates(shard, gather, logits.shape[0] + spare, count, device)
            results.append(tuple(array.cpu().clone() for array in call(part)))
    return results


def unsplit(logits: torch.Tensor, count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probabilities of the whole vocabulary, by what serves it on this device."""
    if device == "cpu":
        return topk.candidates(logits, count)[:2]
    found = triton_topk.make_buffers(logits.shape[0], count, logits.shape[1], device)
    triton_topk.candidates_into(logits.to(device), found)
    return found.ids.cpu(), found.log_probs.cpu()


def _cases(large: bool) -> list[tuple[list[int], int, int]]:
    """(cuts, most rows of a rank, K): uneven shards, K above a shard, a rank of padding only, one-token shards.

    Few different K: each is compiled anew on a GPU.
    """
    cases = [
        ([0, 20, 40], 20, 8),
        ([0, 3, 40], 37, 8),  # K above a shard
        ([0, 16, 32, 40], 16, 8),  # the last rank is padded
        ([0, 16, 32, 32], 16, 8),  # the last rank has padding only
        ([0, 1, 2, 3, 4], 1, 4),
        ([0, 5, 10], 5, 64),  # K above the vocabulary
        ([0, 4500, 9000], 4500, 32),
    ]
    if large:
        cases += [([0, 75968, 151936], 75968, 64), ([0, 24576, 49152], 24576, 32)]
        cases += [([18992 * i for i in range(9)], 18992, 64)]
    return cases


def check_candidates_equal_the_unsplit_ones(device: str, large: bool) -> None:
    """Ids and order exactly, ties across shards included; log-probabilities within one unit of log-sum-exp."""
    generator = torch.Generator().manual_seed(31)
    chance = random.Random(31)
    cases = _cases(large)
    for _ in range(6):
        cuts = [0, *sorted(chance.sample(range(8, 192, 8), chance.randrange(1, 5))), 200]
        cuts[1:-1] = [cut + chance.randrange(8) * (n == 0) for n, cut in enumerate(cuts[1:-1])]
        cases.append((sorted(set(cuts)), 200, 8))
    for cuts, most_rows, count in cases:
        for kind in KINDS:
            for dtype in (torch.float32, torch.bfloat16):
                logits = make_logits(generator, (3, cuts[-1]), kind).to(dtype)
                ids, log_probs = unsplit(logits, min(count, cuts[-1]), device)
                where = (cuts, count, kind, dtype)
                ranks = all_ranks(logits, shards_of(cuts, most_rows), count, device)
                for found in ranks:
                    for ours, first in zip(found, ranks[0], strict=True):
                        assert torch.equal(ours, first), where
                assert torch.equal(ranks[0][0], ids), where
                finite = ~torch.isinf(log_probs)
                assert torch.equal(finite, ~torch.isinf(ranks[0][1])), where
                log_z = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
                unit = torch.nextafter(log_z.abs(), torch.tensor(torch.inf)) - log_z.abs()
                off = (ranks[0][1] - log_probs).abs() - 2 * unit.clamp(min=2.0**-23)
                assert bool((off[finite] <= 0).all()), where
                assert torch.equal(ranks[0][2], topk.quantise(ranks[0][1])), where


def check_whole_chunks_give_the_same_bits(device: str, large: bool) -> None:
    """Shards that are whole chunks: log-sum-exp, and so every score, is the unsplit kernel's bit for bit."""
    generator = torch.Generator().manual_seed(32)
    chunk, count = triton_topk.CHUNK, 16
    assert chunk == merge.CHUNK
    for cuts in (
        [0, chunk, 2 * chunk],
        [0, chunk, 2 * chunk - 700],
        [0, 3 * chunk, 6 * chunk] if large else [0, chunk],
    ):
        for dtype in (torch.float32, torch.bfloat16):
            vocab, rows = cuts[-1], 5 if large else 2
            logits = make_logits(generator, (rows, vocab), "float32").to(dtype)
            whole = triton_topk.make_buffers(rows, count, vocab, device)
            triton_topk.candidates_into(logits.to(device), whole)
            words = []
            for shard in shards_of(cuts, cuts[1]):
                packed = torch.full((rows, count + shard.chunks), -1, dtype=torch.int64, device=device)
                packed[:, count:] = merge._NO_CHUNK
                buffers = triton_topk.make_buffers(rows, count, shard.rows, device)
                part = logits[:, shard.first : shard.first + shard.rows].to(device)
                triton_topk.pack_into(part, buffers, packed, shard.first, count)
                words.append(packed)
            out = triton_merge.make_buffers(rows, count, device)
            triton_merge.merge_into(torch.stack(words), out, triton_topk.key_bits(dtype))
            for name in ("ids", "log_z", "log_probs", "scores"):
                assert torch.equal(getattr(out, name), getattr(whole, name)), (name, cuts, dtype)


def check_kernel_merge_equals_the_twin(device: str, large: bool) -> None:
    """The kernel merges words that torch packed as torch does: one format, two implementations."""
    generator = torch.Generator().manual_seed(33)
    for cuts, most_rows, count in _cases(large):
        for kind in KINDS:
            logits = make_logits(generator, (3, cuts[-1]), kind)
            count = min(count, cuts[-1])
            words = []
            for shard in shards_of(cuts, most_rows):
                packed = torch.full((3, count + shard.chunks), -1, dtype=torch.int64)
                packed[:, count:] = merge._NO_CHUNK
                if shard.rows:
                    part = logits[:, shard.first : shard.first + shard.rows]
                    merge.pack(part, min(count, shard.rows), count, shard, packed)
                words.append(packed)
            ids, log_probs, _, log_z = merge.merge(torch.stack(words), count)
            out = triton_merge.make_buffers(4, count, device)
            for tensor in vars(out).values():
                tensor.fill_(-77)
            triton_merge.merge_into(torch.stack(words).to(device), out, 32)
            where = (cuts, count, kind)
            assert torch.equal(out.ids[:3].cpu(), ids), where
            assert torch.allclose(out.log_z[:3].cpu(), log_z, rtol=2.0**-23, atol=2.0**-23), where
            finite = ~torch.isinf(log_probs)
            assert (out.log_probs[:3].cpu() - log_probs)[finite].abs().max() <= 4e-6, where
            assert bool((out.ids[3] == -77).all()), where


def check_trees_are_the_unsplit_trees(device: str, large: bool) -> None:
    """From logits to trees: with exact ties everywhere (integer logits, whole chunks) the trees are the same."""
    generator = torch.Generator().manual_seed(34)
    depth, count = 4, 12
    cuts = [0, 30, 60, 77]
    logits = make_logits(generator, (2 * depth, cuts[-1]), "integer")
    ids, log_probs, _ = topk.candidates(logits, count)

    def trees(ids: torch.Tensor, log_probs: torch.Tensor) -> list[heap.Tree]:
        # Only the differences within a row matter for ties; a common shift of a row is what log-sum-exp may do.
        rows = (log_probs - log_probs[:, :1]).view(2, depth, count).tolist()
        return [heap.build_tree(5, ids.view(2, depth, count)[b].tolist(), rows[b], count) for b in range(2)]

    expected = trees(ids, log_probs)
    for found in all_ranks(logits, shards_of(cuts, 30), count, device):
        assert trees(found[0], found[1]) == expected


def _process(rank: int, size: int, store: str, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    generator = torch.Generator().manual_seed(35)
    vocab, rows, count = 501, 6, 24
    most = -(-vocab // size)
    first = rank * most
    shard = Shard(first, min(most, vocab - first), most, vocab, size)
    call = ShardedCandidates(shard, torch.distributed.all_gather_into_tensor, rows + 3, count, "cpu")
    answers = []
    for kind in KINDS:
        for used in (rows, 1, 4):
            logits = make_logits(generator, (used, vocab), kind)
            found = call(logits[:, first : first + shard.rows])
            answers.append((logits.numpy(), [array.clone().numpy() for array in found]))
    queue.put((rank, answers))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def check_processes_that_gather_agree(device: str, large: bool) -> None:
    """Three processes with gloo, batches of changing size: the same bits everywhere, and the unsplit ids."""
    size = 3
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [context.Process(target=_process, args=(rank, size, store, queue)) for rank in range(size)]
        for process in processes:
            process.start()
        try:
            answers = dict(queue.get(timeout=120) for _ in processes)
        finally:
            for process in processes:
                process.join(30)
                process.kill()
    for number, (logits, found) in enumerate(answers[0]):
        expected = topk.candidates(torch.from_numpy(logits), 24)[0]
        assert torch.equal(torch.from_numpy(found[0]), expected), number
        for rank in range(1, size):
            for ours, theirs in zip(found, answers[rank][number][1], strict=True):
                assert ours.tobytes() == theirs.tobytes(), (number, rank)


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    torch.set_num_threads(1)
    run(CHECKS, "cuda" if "--cuda" in sys.argv else "cpu", False, before=lambda: torch.manual_seed(0))
