"""Checks of the torch code against the oracles; run by the CPU environment's Python, which has torch but no pytest.

    torch_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

``test_torch.py`` lists the functions named ``check_*`` and reports each as a test of its own.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree.build.accept import accept_paths
from ddtree.build.shape import NO_END, Shape
from ddtree.build.topk import candidates, ordered_topk, quantise
from ddtree.build.torch_builder import TreeBatch, build_trees
from ddtree.tree import definition, heap, walk

SHAPES = [(d, v, b) for d in (1, 2, 7, 15) for v in (3, 5, 40, 300) for b in (0, 1, 4, 16, 33, 64)]


def _logits(generator: torch.Generator, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Random logits; the kinds differ in how many ties they have."""
    logits = torch.randn(shape, generator=generator) * 2.5
    return {
        "float32": logits,
        "bfloat16": logits.bfloat16().float(),
        "integer": logits.round(),
        "equal": torch.zeros_like(logits),
        "one-hot": torch.where(logits == logits.amax(-1, keepdim=True), 0.0, -torch.inf),
        "holes": torch.where(logits > 0, logits, -torch.inf).index_fill(-1, torch.tensor([0]), 1.0),
    }[kind]


KINDS = ("float32", "bfloat16", "integer", "equal", "one-hot", "holes")


def _each_case():  # type: ignore[no-untyped-def]
    """Yield (logits [3, D, V], width budget, per-request budgets, depth limits)."""
    generator = torch.Generator().manual_seed(1)
    for number, (depth, vocab, budget) in enumerate(SHAPES):
        for kind in KINDS:
            logits = _logits(generator, (3, depth, vocab), kind)
            budgets = torch.tensor([budget, budget // 2, 0 if number % 2 else budget + 5])
            yield (
                logits,
                budget,
                budgets,
                torch.tensor([depth, max(1, depth // 2), 0 if number % 3 == 0 else depth + 3]),
            )


def limited(
    roots: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor, lens: torch.Tensor,
    budgets: torch.Tensor, limits: torch.Tensor, width: int,
) -> TreeBatch:  # fmt: skip
    """Build with depth limits instead of end lengths, in one width, with no other limit."""
    return build_trees(roots, ids, scores, lens, budgets, lens + 1 + limits, Shape(width, width))


def _build(
    logits: torch.Tensor, budget: int, budgets: torch.Tensor, limits: torch.Tensor
) -> tuple[TreeBatch, list[definition.Tree]]:
    """Build the batch, and the same trees by the heap from the same candidates."""
    ids, log_probs, scores = candidates(logits, min(max(budget, 1), logits.shape[-1]))
    roots, lens = torch.tensor([900, 901, 902]), torch.tensor([7, 0, 100])
    batch = limited(roots, ids, scores, lens, budgets, limits, budget + 1)
    trees = [
        heap.build_tree(
            int(roots[b]), ids[b].tolist(), log_probs[b].tolist(), min(int(budgets[b]), budget), int(limits[b])
        )
        for b in range(3)
    ]
    return batch, trees


def check_topk_is_exact_and_ordered() -> None:
    """Value descending, id ascending, and at a tie on the boundary the smallest ids: torch.topk alone gives neither."""
    generator = torch.Generator().manual_seed(2)
    for kind in KINDS:
        for vocab, k in ((1, 1), (7, 3), (7, 7), (300, 32), (2000, 64)):
            logits = _logits(generator, (5, vocab), kind)
            values, ids = ordered_topk(logits, k)
            for row in range(5):
                expected = sorted(range(vocab), key=lambda token: (-logits[row, token].item(), token))[:k]
                assert ids[row].tolist() == expected, (kind, vocab, k)
                assert values[row].tolist() == [logits[row, token].item() for token in expected]
    signed = torch.tensor([[0.0, -0.0, 0.0, -1.0]])
    assert ordered_topk(signed, 3)[1].tolist() == [[0, 1, 2]]


def check_quantise_equals_the_definition() -> None:
    """One rounding rule for heap and tensors, the floor included."""
    values = torch.cat([-torch.rand(2000) * 30, torch.tensor([0.0, -torch.inf, -1e30, -(2.0**-33), -3 * 2.0**-33])])
    assert quantise(values).tolist() == [definition.quantise(value) for value in values.tolist()]


def check_builder_equals_heap() -> None:
    """Tokens, parents, depths, ranks, scores: bit for bit, for every budget and depth limit of a batch."""
    for case in _each_case():
        batch, trees = _build(*case)
        for b, tree in enumerate(trees):
            size = len(tree)
            assert int(batch.valid[b].sum()) == size
            assert bool(batch.valid[b, :size].all())
            for name, field in (
                ("token", "draft_token"),
                ("parent", "parent"),
                ("depth", "depth"),
                ("rank", "rank"),
                ("score", "score"),
            ):
                assert tuple(getattr(batch, field)[b, :size].tolist()) == getattr(tree, name), (name, case[1:])


def check_epilogue_is_what_verification_needs() -> None:
    """Positions, links and masks; padding reaches nothing, is reached by nothing, and sees root and itself only."""
    for case in _each_case():
        batch, trees = _build(*case)
        width = batch.draft_token.shape[1]
        for b, tree in enumerate(trees):
            size = len(tree)
            lens = [7, 0, 100][b]
            assert batch.positions[b].tolist() == [lens + d for d in tree.depth] + [lens] * (width - size)
            assert batch.retrieve_index[b].tolist() == list(range(b * width, (b + 1) * width))
            next_token, next_sibling = walk.links(tree)
            padding = [definition.NO_NODE] * (width - size)
            assert batch.retrieve_next_token[b].tolist() == next_token + padding
            assert batch.retrieve_next_sibling[b].tolist() == next_sibling + padding
            for node in range(width):
                seen = set(batch.mask[b, node].nonzero().flatten().tolist())
                assert seen == (set(tree.path(node)) if node < size else {0, node})
        assert batch.draft_token.dtype == batch.positions.dtype == batch.retrieve_next_token.dtype == torch.int64


def check_every_shape_is_a_prefix_of_the_tree() -> None:
    """A narrower width, a budget, a chain or a request's end must cut the same tree, not build another one."""
    generator = torch.Generator().manual_seed(6)
    ids, log_probs, scores = candidates(_logits(generator, (3, 7, 60), "bfloat16"), 24)
    roots, lens = torch.tensor([900, 901, 902]), torch.tensor([7, 0, 100])
    budgets = torch.tensor([24, 9, 24])
    for width, budget, ranks in (
        (25, 24, 24),
        (17, 24, 99),
        (17, 5, 24),
        (8, 24, 1),
        (17, 24, 1),
        (4, 24, 24),
        (1, 9, 9),
    ):
        for room in ([9, 9, 9], [7, 3, 1], [1, 0, -1], [0, -5, 2]):
            end_lens = lens + 1 + torch.tensor(room)
            batch = build_trees(roots, ids, scores, lens, budgets, end_lens, Shape(width, budget, ranks))
            assert batch.draft_token.shape == (3, width)
            for b in range(3):
                usable = [row[:ranks] for row in log_probs[b].tolist()]
                most = min(int(budgets[b]), budget, width - 1)
                tree = heap.build_tree(int(roots[b]), ids[b].tolist(), usable, most, room[b])
                assert batch.draft_token[b, : len(tree)].tolist() == list(tree.token), (width, budget, ranks, room)
                assert batch.parent[b, : len(tree)].tolist() == list(tree.parent)
                assert int(batch.valid[b].sum()) == len(tree)
                if ranks == 1:
                    assert len(tree) == 1 + max(0, min(most, 7, room[b]))
    endless = build_trees(roots, ids, scores, lens, budgets, torch.full((3,), NO_END), Shape(25, 24))
    assert endless.valid.sum(1).tolist() == [25, 10, 25]


def check_equal_logits_may_be_shuffled() -> None:
    """The tree depends on logits, not on the order in which a kernel happens to return equal ones."""
    generator = torch.Generator().manual_seed(3)
    logits = _logits(generator, (3, 7, 60), "integer")
    ids, _, scores = candidates(logits, 33)
    budgets, limits = torch.tensor([32, 16, 5]), torch.tensor([7, 7, 7])
    first = limited(torch.zeros(3), ids, scores, torch.zeros(3), budgets, limits, 33)
    wide = torch.cat([logits, torch.full((3, 7, 4), -torch.inf)], dim=-1)  # another shape, another kernel path
    again_ids, _, again_scores = candidates(wide, 33)
    again = limited(torch.zeros(3), again_ids, again_scores, torch.zeros(3), budgets, limits, 33)
    assert torch.equal(first.draft_token, again.draft_token)
    assert torch.equal(first.score, again.score)


def check_request_does_not_depend_on_its_batch() -> None:
    """Continuous batching moves requests between rows; a tree must not notice."""
    generator = torch.Generator().manual_seed(4)
    logits = _logits(generator, (4, 15, 80), "bfloat16")
    ids, _, scores = candidates(logits, 32)
    full = torch.full((4,), 32), torch.full((4,), 15)
    together = limited(torch.arange(4), ids, scores, torch.arange(4), *full, 33)
    for b in range(4):
        row = slice(b, b + 1)
        alone = limited(
            torch.arange(4)[row], ids[row], scores[row], torch.arange(4)[row], full[0][row], full[1][row], 33
        )
        for field in ("draft_token", "parent", "positions", "mask", "score", "retrieve_next_sibling"):
            assert torch.equal(getattr(alone, field)[0], getattr(together, field)[b]), field


def check_peaked_marginals_give_the_chain() -> None:
    """With a budget of D and certain drafts the tree is DFLASH's chain: same tokens, positions and causal mask."""
    logits = torch.full((2, 7, 50), -30.0)
    logits[torch.arange(2)[:, None], torch.arange(7), torch.randint(0, 50, (2, 7))] = 30.0
    ids, _, scores = candidates(logits, 7)
    batch = limited(
        torch.tensor([1, 2]), ids, scores, torch.tensor([5, 9]), torch.full((2,), 7), torch.full((2,), 7), 8
    )
    assert torch.equal(batch.draft_token[:, 1:], logits.argmax(-1))
    assert torch.equal(batch.positions, torch.tensor([[5], [9]]) + torch.arange(8))
    assert torch.equal(batch.mask, torch.ones(8, 8).tril().bool().expand(2, 8, 8))
    assert torch.equal(batch.retrieve_next_token[:, :-1], torch.arange(1, 8).expand(2, 7))


def _target(batch: TreeBatch, vocab: int, chance: random.Random) -> torch.Tensor:
    """Target tokens that follow the tree often enough to give long paths."""
    target = torch.randint(0, vocab, batch.draft_token.shape)
    for b in range(target.shape[0]):
        for node in range(1, target.shape[1]):
            if batch.valid[b, node] and chance.random() < 0.6:
                target[b, batch.parent[b, node]] = batch.draft_token[b, node]
    return target


def check_acceptance_equals_both_walks() -> None:
    """Device acceptance, walk by parents, and walk by links as SGLang's kernel does it, on every random tree."""
    chance = random.Random(5)
    longest = branches = 0
    for case in _each_case():
        batch, trees = _build(*case)
        target = _target(batch, case[0].shape[-1], chance)
        found = accept_paths(batch, target, case[0].shape[1] + 1)
        for b, tree in enumerate(trees):
            path, bonus = walk.accept(tree, target[b].tolist())
            linked = walk.accept_by_links(
                batch.draft_token[b].tolist(),
                batch.retrieve_next_token[b].tolist(),
                batch.retrieve_next_sibling[b].tolist(),
                target[b].tolist(),
            )
            assert linked == (path, bonus)
            count = len(path) - 1
            assert (int(found.accept_len[b]), int(found.bonus[b])) == (count, bonus)
            assert found.path[b, : count + 1].tolist() == list(path)
            emitted = [tree.token[node] for node in path[1:]] + [bonus]
            assert found.out_tokens[b].tolist() == emitted + [0] * (found.out_tokens.shape[1] - len(emitted))
            longest, branches = max(longest, count), branches + (list(path) != list(range(count + 1)))
    assert longest >= 5
    assert branches >= 20


def check_nothing_is_committed_behind_a_stop_token() -> None:
    """SGLang looks for the end of max_new_tokens first: what a path has behind a stop token would be given out."""
    chance = random.Random(9)
    cut = 0
    for case in _each_case():
        batch, trees = _build(*case)
        target = _target(batch, case[0].shape[-1], chance)
        whole = accept_paths(batch, target, case[0].shape[1] + 1)
        stops = torch.full((len(trees), 4), -1)
        stops[:, 2] = whole.out_tokens[:, 1]  # the second token of each request ends it
        found = accept_paths(batch, target, case[0].shape[1] + 1, stops)
        for b in range(len(trees)):
            before = whole.out_tokens[b, : whole.accept_len[b] + 1].tolist()
            stop = int(stops[b, 2])
            expected = before[: before.index(stop) + 1] if stop in before else before
            assert found.out_tokens[b, : found.accept_len[b] + 1].tolist() == expected
            assert int(found.bonus[b]) == expected[-1]
            cut += len(expected) < len(before)
    assert cut >= 10


def check_sglang_greedy_verification_agrees() -> None:
    """SGLang's own verify kernel (its Triton form, interpreted) takes the same path over our links."""
    from sglang.srt.speculative.eagle_utils import verify_tree_greedy_triton

    chance = random.Random(6)
    generator = torch.Generator().manual_seed(6)
    for kind in ("float32", "bfloat16", "integer"):
        logits = _logits(generator, (3, 7, 12), kind)
        batch, _ = _build(logits, 16, torch.tensor([16, 8, 16]), torch.tensor([7, 7, 3]))
        target = _target(batch, 12, chance)
        ours = accept_paths(batch, target, 8)
        width = batch.draft_token.shape[1]
        predicts = torch.full((3 * width,), -1, dtype=torch.int32)
        index = torch.full((3, 8), -1, dtype=torch.int32)
        count = torch.zeros(3, dtype=torch.int32)
        verify_tree_greedy_triton(
            predicts,
            index,
            count,
            batch.draft_token,
            batch.retrieve_index,
            batch.retrieve_next_token,
            batch.retrieve_next_sibling,
            target,
        )
        assert count.tolist() == ours.accept_len.tolist()
        for b in range(3):
            path = index[b, : int(count[b]) + 1].tolist()
            assert [node - b * width for node in path] == ours.path[b, : len(path)].tolist()
            assert [int(predicts[node]) for node in path] == ours.out_tokens[b, : len(path)].tolist()


def check_full_mask_layout() -> None:
    """SGLang's FULL_MASK: request after request, row i has seq_len + N columns, the past visible, then the tree."""
    from ddtree.adapters.verify_input import full_mask

    generator = torch.Generator().manual_seed(7)
    batch, _ = _build(_logits(generator, (3, 4, 9), "float32"), 8, torch.tensor([8, 3, 8]), torch.tensor([4, 4, 2]))
    lens = torch.tensor([5, 0, 11])
    for slack in (0, 27):
        flat = full_mask(batch.mask, lens, int(lens.sum()) + slack)
        expected = [
            torch.cat([torch.ones(9, int(lens[b]), dtype=torch.bool), batch.mask[b]], dim=1).flatten() for b in range(3)
        ]
        joined = torch.cat(expected)
        assert torch.equal(flat[: joined.numel()], joined)
        assert flat.numel() == joined.numel() + 9 * slack


class _Pool:
    """A KV pool whose move refuses calls in which a source is also a destination: their order is not promised."""

    def __init__(self, slots: int) -> None:
        self.layers = [torch.arange(slots) * 10 + layer for layer in range(3)]

    def move_kv_cache(self, to: torch.Tensor, source: torch.Tensor) -> None:
        moved = to != source
        assert not set(to[moved].tolist()) & set(source[moved].tolist())
        for layer in self.layers:
            layer[to] = layer[source].clone()


def _outcome(path: torch.Tensor, accept_len: list[int]) -> SimpleNamespace:
    """As much of a step's outcome as compaction reads."""
    return SimpleNamespace(accepted=SimpleNamespace(path=path, accept_len=torch.tensor(accept_len)))


def check_compaction_moves_the_path_to_the_front() -> None:
    """After it the window's first slots hold the path's KV in order, other requests' slots are untouched."""
    from ddtree.adapters.commit import Committer

    slots = torch.randperm(40)
    window = slots[:24].view(2, 12)
    path = torch.tensor([[0, 2, 3, 7, 4, 5], [0, 1, 2, 3, 4, 5]])
    pool = _Pool(40)
    before = [layer.clone() for layer in pool.layers]
    committer = Committer(pool, 2, 6, "cpu")
    assert committer.compact_kv(window, _outcome(path, [3, 2])) is False
    for layer, old in zip(pool.layers, before, strict=True):
        assert layer[window[0, :4]].tolist() == old[window[0, [0, 2, 3, 7]]].tolist()
        assert layer[window[1]].tolist() == old[window[1]].tolist()
        assert layer[slots[24:]].tolist() == old[slots[24:]].tolist()
    prefix = torch.arange(6).expand(2, 6)
    untouched = Committer(SimpleNamespace(), 2, 6, "cpu")
    assert untouched.compact_kv(window, _outcome(prefix, [5, 0])) is True
    rows = torch.arange(24).view(24, 1)
    assert committer.compact_rows(rows, path, 12).flatten().tolist() == path[0].tolist() + (path[1] + 12).tolist()


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    torch.manual_seed(0)
    torch.set_num_threads(1)
    run(CHECKS)
