"""Checks of what single requests ask for: penalties, seeds, ends and budgets.

    request_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python (Triton interpreted), and by ``tests/gpu`` on a GPU.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.build import coins
from ddtree.build.accept import accept_paths
from ddtree.build.shape import NO_END, Shape
from ddtree.build.torch_builder import build_trees

from tests.kernels.step_checks import _chi_square, _law, _sampling_info, adapter

VOCAB = 12


def _params(**changes: Any) -> SimpleNamespace:
    neutral: dict[str, Any] = {
        "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0,
        "max_new_tokens": 100, "stop_token_ids": None, "sampling_seed": None, "top_k": 1, "custom_params": None,
        "ignore_eos": False,
    }  # fmt: skip
    return SimpleNamespace(**{**neutral, **changes})


class _Request:
    """As much of SGLang's request as is looked at."""

    eos_token_ids = (2,)
    tokenizer = SimpleNamespace(eos_token_id=3, additional_stop_token_ids=None)

    def __init__(self, prompt: int = 5, output: tuple[int, ...] = (), **params: Any) -> None:
        self.origin_input_ids, self.output_ids = [1] * prompt, list(output)
        self.sampling_params = _params(**params)


def _some_trees(generator: torch.Generator, lens: torch.Tensor, vocab: int, depth: int, budget: int) -> Any:
    """Trees over a tiny vocabulary: the same token comes again and again on one path."""
    bs, ranks = lens.shape[0], min(vocab, 6)
    scores = torch.log_softmax(torch.randn((bs, depth, ranks), generator=generator), -1).sort(-1, descending=True)[0]
    ids = torch.rand((bs, depth, vocab), generator=generator).topk(ranks, dim=-1).indices
    root = torch.randint(0, vocab, (bs,), generator=generator)
    many = torch.full((bs,), budget)
    ends = torch.full((bs,), NO_END)
    quantised = (scores.double() * 2**32).round().long()
    return build_trees(root, ids, quantised, lens, many, ends, Shape(budget + 1, budget))


def _to(tree: Any, device: str) -> Any:
    return type(tree)(**{name: array.to(device) for name, array in vars(tree).items()})


def _plain(row: list[float], said: list[int], params: Any, stops: set[int]) -> list[float]:
    """One step of plain decoding, written token by token."""
    counts = Counter(said)
    found = list(row)
    for token, count in counts.items():
        found[token] -= params.frequency_penalty * count + params.presence_penalty
    if len(said) < params.min_new_tokens:
        for token in stops:
            found[token] = -math.inf
    for token in counts:
        by = params.repetition_penalty
        found[token] = found[token] * by if found[token] < 0 else found[token] / by
    return found


def check_every_nodes_logits_are_those_of_plain_decoding(device: str) -> None:
    """Penalties that are applied once per block, or that count the path twice, change tokens without any error."""
    state_of = adapter("request_state").RequestState
    generator = torch.Generator().manual_seed(21)
    reqs = [
        _Request(5, frequency_penalty=0.7),
        _Request(6, presence_penalty=-0.4, repetition_penalty=1.3),
        _Request(4),
        _Request(3, min_new_tokens=9, stop_token_ids={7}),
        _Request(2, frequency_penalty=0.3, presence_penalty=0.6, repetition_penalty=0.8, min_new_tokens=40),
    ]
    spoken = [[4, 4, 5], [], [6], [1, 2, 3, 4], [8] * 3]
    lens = torch.tensor([len(req.origin_input_ids) + len(said) for req, said in zip(reqs, spoken, strict=True)])
    tree = _some_trees(generator, lens, VOCAB, 6, 24)
    assert bool((tree.depth.amax(1) >= 3).all())
    tail = SimpleNamespace(end_lens=torch.zeros(6).long().to(device), budgets=torch.zeros(6).long().to(device))
    state = state_of(tail, 24, 4096, VOCAB, torch.full((8, 3), -1, device=device))
    for req, said in zip(reqs, spoken, strict=True):
        req.output_ids = list(said)
    state.start(reqs)  # retracted requests: their output is part of the prompt now
    state.update(reqs, tree.draft_token[:, 0].to(device))
    before = torch.randn((len(reqs) * 25, VOCAB), generator=generator) * 2
    after = before.clone().to(device)
    state.penalties.adjust(after, _to(tree, device), lens.to(device), 6)
    after = after.cpu().view(len(reqs), 25, VOCAB)
    repeats = 0
    for b, req in enumerate(reqs):
        stops = {2, 3} | set(req.sampling_params.stop_token_ids or ())
        for node in (n for n in range(25) if tree.valid[b, n]):
            path, at = [], node
            while at:
                path.append(int(tree.draft_token[b, at]))
                at = int(tree.parent[b, at])
            repeats += len(path) - len(set(path))
            said = [*spoken[b], int(tree.draft_token[b, 0]), *reversed(path)]
            expected = torch.tensor(
                _plain(before.view(5, 25, VOCAB)[b, node].tolist(), said, req.sampling_params, stops)
            )
            assert torch.allclose(after[b, node], expected, atol=1e-5), (b, node, after[b, node], expected)
    assert repeats > 10, "no path says a token twice: the check sees too little"
    assert torch.equal(after[2], before.view(5, 25, VOCAB)[2]), "a request without penalties was touched"
    assert not bool(after.isnan().any())


def check_a_retracted_request_is_prefilled_with_its_history(device: str) -> None:
    """SGLang prefills it as if it had said nothing: one token without its penalties, and with a stop token banned."""
    penalties = adapter("penalties")
    generator = torch.Generator().manual_seed(27)
    fresh = _Request(frequency_penalty=1.0)
    info = SimpleNamespace(temperatures=torch.ones((1, 1), device=device), acc_additive_penalties="SGLang's")
    penalties.give_history([fresh], info, VOCAB)
    assert info.acc_additive_penalties == "SGLang's"
    reqs = [
        _Request(5, (3, 3, 4), frequency_penalty=0.5, presence_penalty=0.2),
        _Request(4, (1, 2, 3, 4), min_new_tokens=4, repetition_penalty=1.5),
        _Request(6, (7, 8), min_new_tokens=4),
        _Request(2, (9, 9)),
    ]
    info = SimpleNamespace(temperatures=torch.ones((4, 1), device=device))
    penalties.give_history(reqs, info, VOCAB)
    rows = torch.randn((4, VOCAB), generator=generator)
    found = rows.to(device) + info.acc_additive_penalties
    by = info.acc_scaling_penalties
    found = torch.where(found < 0, found * by, found / by).cpu()
    for row, req, after in zip(rows, reqs, found, strict=True):
        expected = torch.tensor(_plain(row.tolist(), req.output_ids, req.sampling_params, {2, 3}))
        assert torch.allclose(after, expected, atol=1e-5), (after, expected)


def check_counts_follow_the_requests_through_batches(device: str) -> None:
    """Requests join, leave, change places, are retracted: somebody else's count, or a stale one, penalises wrongly."""
    state_of = adapter("request_state").RequestState
    generator = torch.Generator().manual_seed(22)
    tail = SimpleNamespace(end_lens=torch.zeros(6).long().to(device), budgets=torch.zeros(6).long().to(device))
    state = state_of(tail, 8, 4096, VOCAB, torch.full((8, 3), -1, device=device))
    a, b, c, d = (_Request(frequency_penalty=0.1 * n) for n in range(1, 5))
    plain = _Request()
    truth: dict[Any, list[int]] = {}
    known: dict[Any, int] = {}  # how much of it the host has seen: one step less, as under overlap scheduling

    def prefill(*reqs: Any) -> None:
        state.start(list(reqs))
        for req in reqs:
            truth[req] = [*req.output_ids, int(torch.randint(0, VOCAB, (1,), generator=generator))]

    def step(*reqs: Any) -> None:
        state.update(list(reqs), torch.tensor([truth[req][-1] for req in reqs], device=device))
        lengths = torch.randint(0, 4, (len(reqs),), generator=generator)
        tokens = torch.randint(0, VOCAB, (len(reqs), 5), generator=generator)
        accepted = SimpleNamespace(out_tokens=tokens.to(device), accept_len=lengths.to(device))
        if state.penalties is not None:
            state.penalties.advance(accepted)
            for row, req in enumerate(reqs):
                truth[req] += tokens[row, : int(lengths[row]) + 1].tolist()
                if req is not plain:
                    counts = torch.bincount(torch.tensor(truth[req]), minlength=VOCAB)
                    assert torch.equal(state.penalties.counts[row].cpu().long(), counts), row
        for req in reqs:  # the host learns last step's tokens now
            req.output_ids = truth[req][: known.get(req, 1)]
            known[req] = len(truth[req])

    prefill(a, b)
    for _ in range(3):
        step(a, b)
    prefill(c, plain)
    step(a, b, c, plain)
    step(c, plain, a)
    prefill(d)
    step(plain, d, a)
    step(a)
    # Retracted alone, with a step in flight: what that step counted is void, and the batch looks the same afterwards.
    known.pop(a)
    prefill(a)
    step(a)
    step(a)
    step(plain)
    assert state.penalties is None
    prefill(b)
    known.pop(b)
    step(b, plain)


def check_ends_and_budgets_are_written_when_the_batch_changes(device: str) -> None:
    """Trees beyond a request's end are waste; a copy in every step would be, too."""
    tail = SimpleNamespace(
        end_lens=torch.full((5,), 99, device=device), budgets=torch.full((5,), 99, device=device), most_requested=None
    )
    stops = torch.full((5, 3), -1, device=device)
    state = adapter("request_state").RequestState(tail, 16, 60, VOCAB, stops)
    first = _Request(10, max_new_tokens=20, stop_token_ids={9})
    asking = _Request(50, max_new_tokens=20, custom_params={"ddtree": {"budget": 5}})
    state.update([first, asking], torch.zeros(2).long().to(device))
    assert tail.end_lens.tolist() == [29, 59, 0, 0, 0]  # the last token is the target's own; the context ends at 60
    assert tail.budgets.tolist() == [16, 5, 0, 0, 0]
    assert tail.most_requested is None
    assert stops.tolist() == [[2, 3, 9], [2, 3, -1], *[[-1] * 3] * 3]
    tail.end_lens.fill_(-1)
    state.update([first, asking], torch.zeros(2).long().to(device))
    assert tail.end_lens.tolist() == [-1] * 5, "written although nothing changed"
    state.update([asking], torch.zeros(1).long().to(device))
    assert tail.most_requested == 5
    # A refused request still passes through a step on its way out: it must not end the server.
    refused = _Request(1, custom_params={"ddtree": {"budget": "many"}}, sampling_seed=1 << 70, top_k=5)
    state.update([asking, refused], torch.zeros(2).long().to(device))
    assert tail.budgets.tolist() == [5, 16, 0, 0, 0]
    assert state.seeds is None
    # The builder, at that limit: one token is left, two, many.
    generator = torch.Generator().manual_seed(23)
    lens = torch.tensor([27, 28, 29, 40, 10])
    ranks = torch.rand((5, 4, VOCAB), generator=generator).topk(4, dim=-1).indices
    scores = -torch.arange(4).expand(5, 4, 4).contiguous() << 20
    ends = torch.tensor([29] * 5)
    tree = build_trees(lens, ranks, scores, lens, torch.full((5,), 30), ends, Shape(31, 30))
    assert tree.depth.amax(1).tolist() == [1, 0, 0, 0, 4]


def _hash(seed: int, position: int, token: int) -> int:
    """MurmurHash3 of four words, written plainly."""
    low, h = 0xFFFFFFFF, 0
    for word in (seed & low, (seed >> 32) & low, position, token):
        k = (word * 0xCC9E2D51) & low
        k = (((k << 15) | (k >> 17)) * 0x1B873593) & low
        h ^= k
        h = ((((h << 13) | (h >> 19)) & low) * 5 + 0xE6546B64) & low
    h ^= 16
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & low
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


def check_coins_are_the_stated_hash(device: str) -> None:
    """Answers with a seed must survive updates: the coins are a stated function, not what a library happens to draw."""
    from ddtree.build import triton_coins

    seeds = torch.tensor([0, 42, -7, 2**63 - 1, -(2**63)])
    positions = torch.tensor([[0, 5, 70000]] * 5)
    found = coins.hashes(seeds, positions, 37)
    for i, seed in enumerate(seeds.tolist()):
        for j, position in enumerate(positions[0].tolist()):
            assert found[i, j].tolist() == [_hash(seed & (2**64 - 1), position, token) for token in range(37)]
    ids = torch.stack([torch.randperm(37) for _ in range(15)]).view(5, 3, 37)
    twin = coins.clocks(seeds, positions, 37)
    for order in (None, ids):
        out = torch.empty_like(twin, device=device)
        moved = None if order is None else order.to(device)
        triton_coins.clocks_into(seeds.to(device), positions.to(device), moved, out)
        assert torch.allclose(out.cpu(), twin if order is None else twin.gather(-1, ids), rtol=1e-5, atol=0)
    many = coins.clocks(torch.arange(4000), torch.zeros((4000, 1)).long(), 100).flatten()
    assert abs(float(many.mean()) - 1) < 0.01
    assert abs(float(many.var()) - 1) < 0.02
    assert bool((many > 0).all())
    assert bool(many.isfinite().all())


def _seeded(values: list[int], rows: list[int], device: str) -> Any:
    index = torch.tensor(rows, device=device)
    return adapter("sampling").Seeds(tuple(rows), index, torch.tensor(values, device=device))


def check_seeded_draws_know_nothing_of_tree_and_batch(device: str) -> None:
    """The same request alone, in a batch, in a chunk of one, at another node: the same token at the same position."""
    sampling = adapter("sampling")
    generator = torch.Generator().manual_seed(24)
    vocab = 300
    law = torch.randn((40, vocab), generator=generator).to(device)  # by position

    def draw(seeds: Any, positions: list[list[int]], chunk: int, filtered: bool) -> list[list[int]]:
        bs, width = len(positions), len(positions[0])
        info = _sampling_info(bs, 0.8, 50 if filtered else 1 << 30, 0.9 if filtered else 1.0, 0.0, device)
        where = torch.tensor(positions, device=device)
        kept, sampling.MAX_CHUNK = sampling.MAX_CHUNK, chunk
        try:
            return sampling.target_tokens(law[where.flatten()], info, width, seeds, where).tolist()
        finally:
            sampling.MAX_CHUNK = kept

    for filtered in (False, True):
        alone = draw(_seeded([7], [0], device), [list(range(20))], 1 << 26, filtered)[0]
        again = draw(_seeded([7], [0], device), [list(range(19, -1, -1))], 1 << 26, filtered)[0]
        assert again[::-1] == alone
        positions = [list(range(9)), list(range(3, 12)), list(range(9)), list(range(11, 20))]
        for chunk in (1 << 26, 9 * vocab):
            batch = draw(_seeded([7, 8, 7], [1, 2, 3], device), positions, chunk, filtered)
            assert batch[1] == alone[3:12]
            assert batch[3] == alone[11:20]
            assert batch[2] != alone[:9]
            assert batch[0] != draw(_seeded([7, 8, 7], [1, 2, 3], device), positions, chunk, filtered)[0]


def check_seeded_tokens_have_the_targets_law(device: str) -> None:
    """Over many seeds the first two tokens follow the target's law, through a tree; a wrong law has to fail."""
    sampling = adapter("sampling")
    generator = torch.Generator().manual_seed(25)
    vocab, depth, budget, draws, start = 5, 2, 7, 40000, 11
    first = torch.randn(vocab, generator=generator) * 1.5
    second = torch.randn((vocab, vocab), generator=generator) * 1.5
    seeds = _seeded(list(range(1000, 1000 + draws)), list(range(draws)), device)
    for temperature, top_k, top_p, min_p in ((1.0, 1 << 30, 1.0, 0.0), (0.7, 3, 1.0, 0.0), (1.3, 1 << 30, 0.8, 0.1)):
        info = _sampling_info(draws, temperature, top_k, top_p, min_p, device)
        one = _some_trees(generator, torch.tensor([start]), vocab, depth, budget)
        rows = torch.where((one.depth[0] == 0)[:, None], first, second[one.draft_token[0]])
        tree = type(one)(**{k: v.expand(draws, *v.shape[1:]).contiguous().to(device) for k, v in vars(one).items()})
        target = sampling.target_tokens(rows.repeat(draws, 1).to(device), info, budget + 1, seeds, tree.positions)
        accepted = accept_paths(tree, target, depth + 1)
        tokens = accepted.out_tokens[:, :2].clone()
        short = accepted.accept_len == 0
        later = torch.full((draws, 1), start + 1, device=device)
        follow = sampling.target_tokens(second.to(device)[tokens[:, 0]], info, 1, seeds, later)[:, 0]
        # A tree that holds the first token has drawn the second already, with the very same coins.
        assert torch.equal(tokens[~short, 1], follow[~short])
        tokens[:, 1] = torch.where(short, follow, tokens[:, 1])
        assert bool(short.any())
        assert bool((~short).any())
        law = _law(first, second, temperature, top_k, top_p, min_p)
        assert _chi_square(tokens.cpu(), law) < 60, "24 degrees of freedom: above 60 once in 10,000 runs"
        wrong = _law(first, second, temperature * 1.4, top_k, top_p, min_p)
        assert _chi_square(tokens.cpu(), wrong) > 120, "the test cannot see a wrong law"


class _Sampler(torch.nn.Module):
    """Draws token 0 and spoils the logits, as SGLang's sampler does."""

    def forward(self, output: Any, info: Any, *rest: Any) -> torch.Tensor:
        del info, rest
        output.next_token_logits.zero_()
        return torch.zeros(output.next_token_logits.shape[0], dtype=torch.int32, device=output.next_token_logits.device)


def check_the_first_token_is_seeded_too(device: str) -> None:
    """It comes from prefill, where SGLang ignores seeds: one random token and the rest of the answer is another."""
    sampling, first_token = adapter("sampling"), adapter("first_token")
    sampler = _Sampler()
    first = first_token.FirstTokens(sampler)
    logits = torch.randn((4, 50), generator=torch.Generator().manual_seed(26)).to(device)
    info = _sampling_info(4, 0.9, 20, 1.0, 0.0, device)
    positions = torch.tensor([3, 8, 5, 9], device=device)

    def tokens() -> list[int]:
        output = SimpleNamespace(next_token_logits=logits.clone(), next_token_logprobs=None)
        return sampler(output, info, False, None, None, positions).tolist()

    assert tokens() == [0, 0, 0, 0]
    first.seeds = _seeded([5, 6], [1, 3], device)
    expected = sampling.target_tokens(logits, info, 1, first.seeds, positions.view(-1, 1))[:, 0].tolist()
    assert tokens() == [0, expected[1], 0, expected[3]]
    first.seeds = None
    assert tokens() == [0, 0, 0, 0]
    reqs = [_Request(sampling_seed=3), _Request(sampling_seed=4, top_k=50), _Request(top_k=50)]
    found = adapter("request_state").find_seeds(reqs, device)
    assert (found.rows, found.values.tolist(), found.index.tolist()) == ((1,), [4], [1]), "greedy needs no coins"


def check_logprobs_pass_a_worker_that_refuses_them(device: str) -> None:
    """0.5.17's DFLASH worker raises for a batch that wants them: that ends the server, not the request."""
    del device
    logprobs = adapter("logprobs")
    seen = []
    kept = logprobs._worker_serves
    try:
        for serves in (False, True):
            logprobs._worker_serves = lambda serves=serves: serves
            batch = SimpleNamespace(return_logprob=True)
            with logprobs.through_prefill(batch):
                seen.append(batch.return_logprob)
                logprobs.restore(batch)
                assert batch.return_logprob
            plain = SimpleNamespace(return_logprob=False)
            with logprobs.through_prefill(plain):
                logprobs.restore(plain)
            assert not plain.return_logprob
    finally:
        logprobs._worker_serves = kept
    assert seen == [False, True]


def check_rows_of_the_table_have_room_for_two_windows(device: str) -> None:
    """At the end of the context a reservation of two windows would run into the next request's row."""
    context, width = 100, 17
    pool = SimpleNamespace(req_to_token=torch.zeros((3, context + 4 + width), dtype=torch.int32, device=device))
    adapter("table").widen(pool, context, width)
    assert pool.req_to_token.shape[1] == pool.max_context_len >= context + 2 * width
    assert (pool.req_to_token.dtype, pool.req_to_token.shape[0]) == (torch.int32, 3)
    kept = pool.req_to_token
    adapter("table").widen(pool, context, width)
    assert pool.req_to_token is kept


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    run(CHECKS, "cpu")
