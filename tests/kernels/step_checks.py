"""Checks of what surrounds tree and verify in a decode step: its inputs, its counters, its shapes, sampled tokens.

    step_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python (Triton interpreted), and by ``tests/gpu`` on a GPU.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree import metrics, settings
from ddtree.build.accept import accept_paths
from ddtree.build.shape import NO_END, Shape
from ddtree.build.step import StepBuffers
from ddtree.build.torch_builder import build_trees

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def adapter(name: str) -> Any:
    """Import an adapter that needs nothing of SGLang."""
    package = types.ModuleType("ddtree.adapters")
    package.__path__ = [str(KERNELS / "ddtree" / "adapters")]
    sys.modules.setdefault("ddtree.adapters", package)
    return importlib.import_module(f"ddtree.adapters.{name}")


def _trees(generator: torch.Generator, bs: int, depth: int, ranks: int, budget: int) -> Any:
    log_probs = torch.log_softmax(torch.randn((bs, depth, ranks), generator=generator), -1).sort(-1, descending=True)[0]
    ids = torch.rand((bs, depth, 50), generator=generator).topk(ranks, dim=-1).indices
    scores = (log_probs.double() * 2**32).round().long()
    lens = torch.randint(1, 40, (bs,), generator=generator)
    budgets = torch.full((bs,), budget)
    return build_trees(lens, ids, scores, lens, budgets, torch.full((bs,), NO_END), Shape(budget + 1, budget))


def check_step_inputs_equal_the_twin(device: str) -> None:
    """Slots read at a shifted position, or beyond the row's end, would overwrite another request's KV."""
    from ddtree.build.triton_step import prepare_into

    generator = torch.Generator().manual_seed(3)
    for bs, width, block in ((1, 17, 16), (5, 33, 16), (3, 16, 16), (2, 65, 8)):
        table = torch.randint(1, 10**6, (9, 200), generator=generator).to(torch.int32)
        lens = torch.randint(1, 100, (bs,), generator=generator)
        rows = torch.randperm(9, generator=generator)[:bs]
        root = torch.randint(0, 50000, (bs,), generator=generator)
        twin = StepBuffers(bs + 1, width, block, "cpu").prepare(root, lens, rows, table, 4)
        found = {name: torch.full_like(array, -7, device=device) for name, array in vars(twin).items()}
        found["live"] = torch.full((bs + 2,), -7, device=device)  # two requests of padding in the graph's batch
        moved = [tensor.to(device) for tensor in (root, lens, rows, table)]
        prepare_into(*moved, mask_token=4, is_live=True, **found)
        assert found["live"].tolist() == [1] * bs + [0, 0]
        for name, array in vars(twin).items():
            assert name == "live" or torch.equal(found[name].cpu(), array), (bs, width, block, name)
        prepare_into(*moved, mask_token=4, is_live=False, **found)
        assert found["live"].tolist() == [0] * (bs + 2)


def check_chains_are_the_best_candidates(device: str) -> None:
    """The chain mode must be the linear scheme: one node per depth, the best candidate, whatever the scores are."""
    generator = torch.Generator().manual_seed(5)
    vocab, hidden, bs = 300, 16, 3
    shape = settings.Settings(budget=20, width=21, block_size=8)
    head = SimpleNamespace(weight=torch.randn((vocab, hidden), generator=generator).to(device))
    tail = adapter("draft_tail").DraftTail(shape, head, vocab, None, 4, device)
    states = torch.randn((bs * 8, hidden), generator=generator).to(device)
    root, lens = torch.tensor([1, 2, 3], device=device), torch.tensor([5, 6, 7], device=device)
    tail.set_shape(Shape(8, 7, 1))
    _, tree = tail.run(states, root, lens, None)
    best = (states.view(bs, 8, -1)[:, 1:] @ head.weight.T).argmax(-1)
    assert tree.draft_token.shape == (bs, 8)
    assert torch.equal(tree.draft_token[:, 1:8], best)
    assert bool((tree.valid.sum(1) == 8).all())
    assert torch.equal(tree.parent[:, 1:8], torch.arange(7, device=device).expand(bs, 7))
    tail.set_shape(Shape(12, 3, 1))
    assert bool((tail.run(states, root, lens, None)[1].valid.sum(1) == 4).all())
    tail.set_shape(Shape(21, 12))
    assert bool((tail.run(states, root, lens, None)[1].valid.sum(1) == 13).all())
    tail.set_shape(Shape(17, 99))
    assert bool((tail.run(states, root, lens, None)[1].valid.sum(1) == 17).all())
    tail.budgets[1], tail.end_lens[2] = 5, 9
    assert tail.run(states, root, lens, None)[1].valid.sum(1).tolist()[:2] == [17, 6]
    assert int(tail.run(states, root, lens, None)[1].depth[2].max()) == 1


def check_sampled_tokens_have_the_targets_law(device: str) -> None:
    """A tree must not change what is sampled: chi-square of the first two tokens against the target's own law.

    The target is a table over a vocabulary of 5; the tree holds likely and unlikely branches. Plain sampling is the
    control: it has to pass the same test, and a *wrong* law (temperature not applied) has to fail it.
    """
    sampling = adapter("sampling")
    generator = torch.Generator().manual_seed(6)
    torch.manual_seed(7)
    vocab, depth, budget, draws = 5, 2, 7, 40000
    first = torch.randn(vocab, generator=generator) * 1.5  # logits after the root
    second = torch.randn((vocab, vocab), generator=generator) * 1.5  # after each first token
    for temperature, top_k, top_p, min_p in ((1.0, 1 << 30, 1.0, 0.0), (0.7, 3, 1.0, 0.0), (1.3, 1 << 30, 0.8, 0.1)):
        info = _sampling_info(draws, temperature, top_k, top_p, min_p, device)
        ids = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(depth)])
        scores = torch.log_softmax(torch.randn((depth, vocab), generator=generator), -1).sort(-1, descending=True)[0]
        one = build_trees(
            torch.zeros(1, dtype=torch.long), ids[None], (scores * 2**32).round().long()[None],
            torch.ones(1, dtype=torch.long), torch.tensor([budget]), torch.tensor([NO_END]), Shape(budget + 1, budget),
        )  # fmt: skip
        rows = torch.where((one.depth[0] == 0)[:, None], first, second[one.draft_token[0]])
        tree = type(one)(**{k: v.expand(draws, *v.shape[1:]).contiguous().to(device) for k, v in vars(one).items()})
        logits = rows.repeat(draws, 1).to(device)
        target = sampling.target_tokens(logits, info, budget + 1)
        accepted = accept_paths(tree, target, depth + 1)
        tokens = accepted.out_tokens[:, :2].clone()
        # Where the path ended after one token, the next step draws the second from the target: do so here.
        short = accepted.accept_len == 0
        follow = sampling.target_tokens(second.to(device)[tokens[:, 0]], info, 1)[:, 0]
        tokens[:, 1] = torch.where(short, follow, tokens[:, 1])
        law = _law(first, second, temperature, top_k, top_p, min_p)
        assert bool(short.any())
        assert bool((~short).any())
        assert _chi_square(tokens.cpu(), law) < 60, "24 degrees of freedom: above 60 once in 10,000 runs"
        wrong = _law(first, second, temperature * 1.4, top_k, top_p, min_p)
        assert _chi_square(tokens.cpu(), wrong) > 120, "the test cannot see a wrong law"


def check_greedy_rows_stay_greedy(device: str) -> None:
    """In a mixed batch a request of temperature 0 must get the argmax at every node."""
    sampling = adapter("sampling")
    info = _sampling_info(2, 1.0, 1 << 30, 1.0, 0.0, device)
    info.top_ks[1] = 1
    info.need_top_k_sampling = True
    logits = torch.randn((2 * 9, 40), generator=torch.Generator().manual_seed(8)).to(device)
    many = torch.stack([sampling.target_tokens(logits, info, 9) for _ in range(20)])
    assert bool((many[:, 1] == logits.view(2, 9, -1)[1].argmax(-1)).all())
    assert bool((many[:, 0] != many[:1, 0]).any())
    assert sampling.target_tokens(logits, None, 9).equal(logits.argmax(-1).view(2, 9))


def check_chunks_of_a_large_batch_are_all_sampled(device: str) -> None:
    """Rows are filtered in chunks to bound memory; each chunk must use its own requests' parameters."""
    sampling = adapter("sampling")
    info = _sampling_info(5, 1.0, 1 << 30, 1.0, 0.0, device)
    info.top_ks[:] = torch.tensor([2, 1 << 30, 2, 2, 1 << 30])
    info.need_top_k_sampling = True
    logits = torch.randn((5 * 3, 30), generator=torch.Generator().manual_seed(9)).to(device)
    allowed = logits.topk(2, dim=-1).indices.view(5, 3, 2)
    kept, sampling.MAX_CHUNK = sampling.MAX_CHUNK, 3 * 30 * 2
    try:
        many = torch.stack([sampling.sample_nodes(logits, info, 3) for _ in range(60)])
    finally:
        sampling.MAX_CHUNK = kept
    inside = (many[..., None] == allowed).any(-1)
    assert bool(inside[:, [0, 2, 3]].all())
    assert not bool(inside[:, [1, 4]].all())


def check_logits_that_change_keep_the_graph_from_committing(device: str) -> None:
    """A captured tail takes the argmax of raw logits: sampling, bias and penalties must never be committed by it."""
    see = adapter("verify_tail").must_see_logits
    plain = {"is_all_greedy": True, "logit_bias": None, "penalizer_orchestrator": SimpleNamespace(is_required=False)}
    assert not see(None)
    assert not see(SimpleNamespace(**plain))
    for change in (
        {"is_all_greedy": False},
        {"logit_bias": torch.zeros(1)},
        {"acc_additive_penalties": torch.zeros(1)},
        {"acc_scaling_penalties": torch.zeros(1)},
        {"grammar_mask": object()},
        {"has_custom_logit_processor": True},
        {"penalizer_orchestrator": SimpleNamespace(is_required=True)},
    ):
        assert see(SimpleNamespace(**{**plain, **change})), change


def check_captured_tail_touches_only_live_requests(device: str) -> None:
    """A graph's batch is padded: its padding holds slots of an earlier step, which may be another request's by now."""
    from ddtree.build import triton_commit

    commit, verify_tail = adapter("commit"), adapter("verify_tail")
    generator = torch.Generator().manual_seed(10)
    bs, depth, budget, hidden = 4, 7, 12, 6
    width = budget + 1
    tree = _trees(generator, bs, depth, 8, budget)
    children = tree.retrieve_next_token.clamp(min=0)
    sibling = tree.retrieve_next_sibling.gather(1, children)
    children = torch.where(sibling > 0, sibling, children)  # second children: paths that have to move
    wanted = torch.where(children > 0, tree.draft_token.gather(1, children), 49)
    logits = torch.nn.functional.one_hot(wanted.view(-1), 50).float().to(device)
    states = torch.randn((bs * width, hidden), generator=generator).to(device)
    tree = type(tree)(**{name: array.to(device) for name, array in vars(tree).items()})
    lens = torch.tensor([5, 6, 7, 8], device=device)
    layers = [torch.randn((80, 2, 4), generator=generator).to(device) for _ in range(4)]
    pool = SimpleNamespace(k_buffer=[layer.clone() for layer in layers[:2]], size=79)
    pool.v_buffer = [layer.clone() for layer in layers[2:]]
    committer = commit.Committer(pool, bs, depth + 1, device)
    if device == "cpu":  # the kernels, interpreted
        committer._is_cuda, committer._kernels = True, triton_commit
        committer._table = triton_commit.make_kv_table(commit.kv_buffers(pool))
        committer._captured = triton_commit.make_accept_buffers(bs, depth + 1, device)
    buffers = StepBuffers(bs, width, depth + 1, device)
    step = buffers.views(bs)
    step.window.copy_(torch.randperm(79, generator=generator)[: bs * width].view(bs, width) + 1)
    ids = torch.zeros((bs, depth, 8), dtype=torch.int64, device=device)
    draft = SimpleNamespace(static_trees=lambda *_: tree, static_ids=lambda _: ids)
    counters = metrics.DeviceCounters(depth + 1, torch.device(device), ranks=8)
    tail = verify_tail.VerifyTail(draft, buffers, committer, counters, bs)
    out = SimpleNamespace(next_token_logits=logits, hidden_states=states)
    twin = accept_paths(tree, wanted.to(device), depth + 1)
    assert bool((twin.accept_len > 0).all())
    assert bool((twin.path[:, 1] > 1).any())
    for live in ([0, 0, 0, 0], [1, 1, 0, 0]):
        step.live.copy_(torch.tensor(live))
        before = [buffer.clone() for buffer in commit.kv_buffers(pool)]
        counters._counts.zero_()
        tail.hook(None, out, SimpleNamespace(seq_lens=lens, batch_size=bs), bs * width)
        expected = [buffer.clone() for buffer in before]
        for b in (b for b in range(bs) if live[b]):
            for j in range(int(twin.accept_len[b]) + 1):
                for new, old in zip(expected, before, strict=True):
                    new[step.window[b, j]] = old[step.window[b, twin.path[b, j]]]
        for new, buffer in zip(expected, commit.kv_buffers(pool), strict=True):
            assert torch.equal(new, buffer), live
        assert counters._counts[0] == sum(live)
        assert counters._counts[1] == int(twin.accept_len[:2].sum()) * live[0]
        done = tail.result(2, width)
        assert torch.equal(done.outcome.accepted.out_tokens, twin.out_tokens[:2])
        assert torch.equal(done.outcome.commit_lens.long(), twin.accept_len[:2] + 1)
        assert torch.equal(done.outcome.new_seq_lens, lens[:2] + twin.accept_len[:2] + 1)
        rows = states.view(bs, width, hidden)[:2].gather(1, twin.path[:2, :, None].expand(-1, -1, hidden))
        assert torch.equal(done.rows.view_as(rows), rows)


def _sampling_info(bs: int, temperature: float, top_k: int, top_p: float, min_p: float, device: str) -> Any:
    return SimpleNamespace(
        is_all_greedy=False,
        temperatures=torch.full((bs, 1), temperature, device=device),
        top_ks=torch.full((bs,), top_k, dtype=torch.int32, device=device),
        top_ps=torch.full((bs,), top_p, device=device),
        min_ps=torch.full((bs,), min_p, device=device),
        need_top_k_sampling=top_k < 1 << 30,
        need_top_p_sampling=top_p < 1.0,
        need_min_p_sampling=min_p > 0.0,
    )


def _filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """The law of one token, written plainly: sort, cut, normalise."""
    probs = torch.softmax(logits.double() / temperature, -1).tolist()
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    kept, total = [0.0] * len(probs), 0.0
    for rank, token in enumerate(order):
        if rank < top_k and total <= top_p and probs[token] >= probs[order[0]] * min_p:
            kept[token] = probs[token]
        total += probs[token]
    return [value / sum(kept) for value in kept]


def _law(first: torch.Tensor, second: torch.Tensor, *filters: Any) -> torch.Tensor:
    one = torch.tensor(_filtered(first, *filters))
    return one[:, None] * torch.tensor([_filtered(row, *filters) for row in second])


def _chi_square(tokens: torch.Tensor, law: torch.Tensor) -> float:
    """Pearson's statistic of token pairs; an impossible pair that was drawn counts as infinite."""
    vocab = law.shape[0]
    seen = torch.bincount(tokens[:, 0] * vocab + tokens[:, 1], minlength=vocab * vocab).double()
    expected = law.flatten().double() * len(tokens)
    if bool((seen[expected == 0] > 0).any()):
        return float("inf")
    possible = expected > 0
    return float(((seen - expected)[possible] ** 2 / expected[possible]).sum())


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    run(CHECKS, "cpu")
