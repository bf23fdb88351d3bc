"""Checks of the Triton kernels against their torch twins and the heap, on any device.

    triton_checks.py [--cuda] [NAME ...]     small sizes; on the CPU with TRITON_INTERPRET=1, or on a GPU, for instance
                                             under compute-sanitizer; prints {"name": null or a traceback, ...} as JSON

``test_triton.py`` runs them interpreted, ``tests/gpu`` on a GPU with large sizes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.build import accept, topk, torch_builder, triton_builder, triton_commit, triton_topk
from ddtree.build.shape import DeviceShape, Shape
from ddtree.build.torch_builder import TreeBatch
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


def poisoned(buffers: object) -> None:
    """Fill every buffer with a value that no kernel writes, so that an unwritten element is seen."""
    for tensor in vars(buffers).values():
        tensor.fill_(True if tensor.dtype == torch.bool else -77)


def check_candidates_equal_the_twin(device: str, large: bool) -> None:
    """Ids exactly (ties by id, cut at the boundary by id), scores exactly those of the written log-probabilities."""
    generator = torch.Generator().manual_seed(11)
    shapes = [(1, 1), (300, 32), (9000, 33)]
    shapes += [(49152, 64), (151936, 64), (128256, 256), (262144, 64)] if large else [(7, 3), (65, 7), (5000, 64)]
    for vocab, ranks in shapes:
        for kind in KINDS:
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                if dtype == torch.float16 and (large or kind != "integer"):
                    continue
                logits = make_logits(generator, (3, vocab), kind).to(dtype)
                ids, log_probs, _ = topk.candidates(logits, ranks)
                found = triton_topk.make_buffers(4, ranks, vocab, device)
                poisoned(found)
                triton_topk.candidates_into(logits.to(device), found)
                where = (vocab, ranks, kind, dtype)
                assert found.ids[:3].cpu().equal(ids), where
                ours = found.log_probs[:3].cpu()
                finite = ~torch.isinf(log_probs)
                assert torch.equal(finite, ~torch.isinf(ours)), where
                assert (ours - log_probs)[finite].abs().max() <= 4e-6, where
                assert found.scores[:3].cpu().equal(topk.quantise(ours)), where
                assert bool((found.ids[3] == -77).all())
                exact = torch.logsumexp(logits.double(), dim=-1)
                assert (found.log_z[:3].cpu() - exact).abs().max() <= 4e-6 * exact.abs().max().clamp(min=1), where


def check_candidates_do_not_depend_on_the_batch(device: str, large: bool) -> None:
    """A row gives the same bits alone, among others, as a slice of a wider matrix, and again."""
    generator = torch.Generator().manual_seed(12)
    vocab, rows = (151936, 480) if large else (5000, 4)
    for dtype in (torch.float32, torch.bfloat16):
        logits = make_logits(generator, (rows, vocab), "float32").to(dtype).to(device)
        together = triton_topk.make_buffers(rows, 32, vocab, device)
        triton_topk.candidates_into(logits, together)
        wide = torch.full((rows, vocab + 64), 99.0, dtype=dtype, device=device)
        wide[:, :vocab] = logits
        sliced = triton_topk.make_buffers(rows, 32, vocab, device)
        triton_topk.candidates_into(wide[:, :vocab], sliced)
        for row in (0, rows // 2, rows - 1):
            alone = triton_topk.make_buffers(1, 32, vocab, device)
            triton_topk.candidates_into(logits[row : row + 1], alone)
            for name in ("ids", "log_probs", "scores", "log_z"):
                expected = getattr(together, name)[row]
                assert torch.equal(getattr(alone, name)[0], expected), (name, row, dtype)
                assert torch.equal(getattr(sliced, name)[row], expected), (name, row, dtype)


def _cases(large: bool) -> Iterator[tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]]:
    """Yield (logits [3, D, V], width budget, per-request budgets, depth limits)."""
    generator = torch.Generator().manual_seed(13)
    shapes = [(1, 3, 1), (2, 5, 4), (7, 40, 16), (4, 9, 0), (3, 3, 64)]
    if large:
        shapes += [(15, 300, b) for b in (1, 16, 33, 64, 256)] + [(24, 80, 48)]
    for number, (depth, vocab, budget) in enumerate(shapes):
        for kind in KINDS:
            budgets = torch.tensor([budget, budget // 2, 0 if number % 2 else budget + 5])
            limits = torch.tensor([depth, max(1, depth // 2), 0 if number % 3 == 0 else depth + 3])
            yield make_logits(generator, (3, depth, vocab), kind), budget, budgets, limits


def _build(
    case: tuple[torch.Tensor, int, torch.Tensor, torch.Tensor], device: str, shape: Shape | None = None
) -> tuple[TreeBatch, TreeBatch, torch.Tensor, torch.Tensor]:
    """Return (kernel's trees, twin's trees, kernel's full mask, expected full mask), all on the CPU."""
    logits, budget, budgets, limits = case
    ids, _, scores = topk.candidates(logits, min(max(budget, 1), logits.shape[-1]))
    lens, roots = torch.tensor([7, 0, 130]), torch.tensor([900, 901, 902])
    shape = Shape(budget + 1, budget) if shape is None else shape
    width, end_lens = shape.width, lens + 1 + limits
    twin = torch_builder.build_trees(roots, ids, scores, lens, budgets, end_lens, shape)
    buffers = triton_builder.make_buffers(4, budget + 1, ids.shape[1], ids.shape[2], device)
    poisoned(buffers)
    full = torch.zeros(width * (137 + 3 * width) + 50, dtype=torch.bool, device=device)
    moved = [tensor.to(device) for tensor in (roots, ids, scores, lens, budgets, end_lens)]
    on_device = DeviceShape(Shape(budget + 1, 1), device)
    on_device.set(shape)
    found = triton_builder.build_trees_into(*moved, on_device, buffers, full, fill_prefix=True)
    rows = [torch.cat([torch.ones(width, int(lens[b]), dtype=torch.bool), twin.mask[b]], dim=1) for b in range(3)]
    expected = torch.cat([*(row.flatten() for row in rows), torch.zeros(50, dtype=torch.bool)])
    return TreeBatch(**{name: tensor.cpu() for name, tensor in vars(found).items()}), twin, full.cpu(), expected


def check_trees_equal_the_twin(device: str, large: bool) -> None:
    """Every array of the batch and the FULL_MASK, bit for bit: ties, budgets, depth limits, padding."""
    for case in _cases(large):
        found, twin, full, expected = _build(case, device)
        for name, tensor in vars(twin).items():
            ours = getattr(found, name)
            assert ours.dtype == tensor.dtype, name
            assert torch.equal(ours, tensor), (name, case[0].shape, case[1:])
        assert torch.equal(full, expected), (case[0].shape, case[1:])


def check_every_width_equals_the_twin(device: str, large: bool) -> None:
    """The width is data: narrower trees in the same buffers, rows without gaps; chains, budgets, ended requests."""
    for case in _cases(large):
        budget, limits = case[1], case[3]
        if case[0].shape[1] < 2:
            continue
        for shape in (
            Shape(budget // 2 + 1, budget),
            Shape(budget + 1, budget // 3),
            Shape(max(1, budget), budget, 1),
            Shape(min(2, budget + 1), budget, 2),
        ):
            for room in (limits, limits * 0 - 1) if shape.ranks > 2 else (limits,):
                found, twin, full, expected = _build((*case[:3], room), device, shape)
                for name, tensor in vars(twin).items():
                    assert torch.equal(getattr(found, name), tensor), (name, case[0].shape, case[1:], shape)
                assert torch.equal(full, expected), (case[0].shape, case[1:], shape)


def check_trees_equal_the_heap(device: str, large: bool) -> None:
    """The whole way on the device, from logits: the tree is the heap's over the candidates that the kernel wrote."""
    generator = torch.Generator().manual_seed(14)
    depth, vocab, budget, bs = (15, 49152, 64, 8) if large else (5, 200, 12, 2)
    for kind in ("float32", "bfloat16", "integer", "holes"):
        logits = make_logits(generator, (bs, depth, vocab), kind)
        found = triton_topk.make_buffers(bs * depth, budget, vocab, device)
        triton_topk.candidates_into(logits.view(bs * depth, vocab).to(device), found)
        ids, scores = found.ids.view(bs, depth, budget), found.scores.view(bs, depth, budget)
        buffers = triton_builder.make_buffers(bs, budget + 1, depth, budget, device)
        shape = DeviceShape(Shape(budget + 1, budget), device)
        full = torch.full((bs,), budget, device=device, dtype=torch.int32)  # int32 as SGLang may have it
        trees = triton_builder.build_trees_into(full * 0 + 7, ids, scores, full, full, full + 1 + depth, shape, buffers)
        for b in range(bs):
            log_probs = found.log_probs.view(bs, depth, budget)[b].tolist()
            tree = heap.build_tree(7, ids[b].tolist(), log_probs, budget)
            assert tuple(trees.draft_token[b].tolist()) == tree.token, kind
            assert tuple(trees.parent[b].tolist()) == tree.parent, kind
            assert tuple(trees.score[b].tolist()) == tree.score, kind
            assert tuple(trees.rank[b].tolist()) == tree.rank, kind


def check_skipped_prefix_is_left_alone(device: str, large: bool) -> None:
    """Without ``fill_prefix`` only tree columns are written: that is what makes long contexts cheap."""
    generator = torch.Generator().manual_seed(15)
    ids, _, scores = topk.candidates(make_logits(generator, (2, 3, 20), "float32"), 4)
    lens = torch.tensor([300, 5])
    arguments = (torch.tensor([1, 2]), ids, scores, lens, torch.tensor([4, 2]), lens + 4)
    shape = DeviceShape(Shape(5, 4), device)
    twin = torch_builder.build_trees(*arguments, shape.host)
    buffers = triton_builder.make_buffers(2, 5, 3, 4, device)
    full = torch.zeros(5 * (305 + 10), dtype=torch.bool, device=device)
    triton_builder.build_trees_into(*(tensor.to(device) for tensor in arguments), shape, buffers, full)
    rows = [torch.cat([torch.zeros(5, int(lens[b]), dtype=torch.bool), twin.mask[b]], dim=1) for b in range(2)]
    assert torch.equal(full.cpu(), torch.cat([row.flatten() for row in rows]))


def _target(tree: TreeBatch, vocab: int, chance: random.Random) -> torch.Tensor:
    """Target tokens that confirm the path to a random node of every tree."""
    target = torch.randint(0, vocab, tree.draft_token.shape)
    for b in range(target.shape[0]):
        node = chance.randrange(int(tree.valid[b].sum()))
        while node:
            above = int(tree.parent[b, node])
            target[b, above] = tree.draft_token[b, node]
            node = above
    return target


def _accepted(device: str, large: bool) -> Iterator[tuple[TreeBatch, torch.Tensor, torch.Tensor, int]]:
    """Yield (tree, target, seq_lens, path width) on the CPU."""
    chance = random.Random(16)
    for case in _cases(large):
        logits, budget, budgets, limits = case
        ids, _, scores = topk.candidates(logits, min(max(budget, 1), logits.shape[-1]))
        lens = torch.tensor([7, 0, 130])
        shape = Shape(budget + 1, budget)
        tree = torch_builder.build_trees(torch.tensor([0, 5, 6]), ids, scores, lens, budgets, lens + 1 + limits, shape)
        yield tree, _target(tree, logits.shape[-1], chance), lens, logits.shape[1] + 1


def check_acceptance_equals_the_twin(device: str, large: bool) -> None:
    """Paths, lengths, bonus and emitted tokens, and the lengths that are published; padding is never accepted."""
    longest = branches = 0
    for number, (tree, target, lens, path_width) in enumerate(_accepted(device, large)):
        # Every other time the token of some drafts ends the request.
        stops = torch.cat([tree.draft_token[:, 1:3], torch.full((3, 2), -1)], dim=1) if number % 2 else None
        expected = accept.accept_paths(tree, target, path_width, stops)
        buffers = triton_commit.make_accept_buffers(4, path_width, device)
        poisoned(buffers)
        moved = TreeBatch(**{name: tensor.to(device) for name, tensor in vars(tree).items()})
        ends = None if stops is None else stops.to(device)
        found = triton_commit.accept_into(moved, target.to(device), lens.to(device), buffers, ends)
        for name, tensor in vars(expected).items():
            assert torch.equal(getattr(found, name).cpu(), tensor), name
        assert torch.equal(buffers.commit_lens[:3].cpu(), (expected.accept_len + 1).int())
        assert torch.equal(buffers.new_seq_lens[:3].cpu(), lens + expected.accept_len + 1)
        steps = torch.arange(path_width)
        moves = ((expected.path != steps) & (steps <= expected.accept_len[:, None])).sum(dim=1)
        assert torch.equal(buffers.moved[:3].cpu(), moves)
        longest = max(longest, int(expected.accept_len.max()))
        branches += int((moves > 0).sum())
    assert longest >= 3
    assert branches >= 10


def check_compaction_is_the_sequential_copy(device: str, large: bool) -> None:
    """KV of all layers against copying position by position; layers may share a buffer; other slots stay."""
    chance, generator = random.Random(17), torch.Generator().manual_seed(17)
    bs, width, path_width, slots = (32, 65, 16, 4096) if large else (3, 12, 6, 60)
    shapes = ((2, 8), (1, 8), (3, 1000), (8, 256)) if not large else ((3, 128), (8, 256), (1, 1152), (16, 256))
    for trial in range(20 if large else 4):
        buffers = [torch.randint(0, 255, (slots, *shape), dtype=torch.uint8, generator=generator) for shape in shapes]
        window = torch.randperm(slots, generator=generator)[: bs * width].view(bs, width)
        path = torch.arange(path_width).repeat(bs, 1)
        count = torch.zeros(bs, dtype=torch.int64)
        for b in range(bs):
            count[b] = chance.randrange(path_width)
            dense = trial % 2  # nearly the identity: every destination is the source of the position before it
            pool = range(1, int(count[b]) + 2 if dense else width)
            chosen = sorted(chance.sample(pool, min(int(count[b]), len(pool))))
            path[b, 1 : len(chosen) + 1] = torch.tensor(chosen, dtype=torch.int64)
        expected = [buffer.clone() for buffer in buffers]
        for buffer in expected:
            for b in range(bs):
                for j in range(1, int(count[b]) + 1):
                    buffer[window[b, j]] = buffer[window[b, path[b, j]]].clone()
        moved = [buffer.to(device) for buffer in buffers]
        table = triton_commit.make_kv_table([*moved, moved[0]])
        triton_commit.compact_kv_into(table, window.to(device), path.to(device), count.to(device))
        for found, wanted in zip(moved, expected, strict=True):
            assert torch.equal(found.cpu(), wanted)
        rows = torch.randn(bs * width, 300)
        out = torch.full((bs * path_width, 300), -77.0, device=device)
        triton_commit.compact_rows_into(rows.to(device), path.to(device), width, out)
        assert torch.equal(out.cpu(), rows[(torch.arange(bs)[:, None] * width + path).flatten()])


def check_sizes_that_do_not_fit_are_refused(device: str, large: bool) -> None:
    """A silent overflow of the order code or of a scratch buffer would give a wrong tree."""
    bad = (
        lambda: triton_builder.make_buffers(1, 258, 15, 64, device),
        lambda: triton_builder.make_buffers(1, 257, 31, 64, device),
        lambda: triton_topk.make_buffers(1, 8, 7, device),
        lambda: triton_topk.make_buffers(1, 8, 1 << 19, device),
        lambda: triton_topk.candidates_into(
            torch.zeros(2, 9000, device=device), triton_topk.make_buffers(2, 8, 4096, device)
        ),
        lambda: triton_commit.make_kv_table([torch.zeros(4, 3, dtype=torch.uint8, device=device)]),
    )
    for number, call in enumerate(bad):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError(f"case {number} was not refused")


CHECKS = {name: value for name, value in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    torch.set_num_threads(1)
    run(CHECKS, "cuda" if "--cuda" in sys.argv else "cpu", False, before=lambda: torch.manual_seed(0))
