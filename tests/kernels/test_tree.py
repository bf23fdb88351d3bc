"""The tree by definition: the heap against brute force and the published float64 order, closure, ties, codes, walks."""

from __future__ import annotations

import heapq
import itertools
import math
import struct
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.payload import definition, heap, trace, walk

Nodes = list[tuple[tuple[int, ...], int]]

_scores = st.integers(-3, 0) | st.integers(-(1 << 36), 0)
_tables = st.integers(1, 4).flatmap(
    lambda depth: st.integers(1, 4).flatmap(
        lambda ranks: st.lists(
            st.lists(_scores, min_size=ranks, max_size=ranks).map(lambda row: sorted(row, reverse=True)),
            min_size=depth,
            max_size=depth,
        )
    )
)


def brute_force(scores: list[list[int]], budget: int) -> Nodes:
    """All rank tuples, sorted by the canonical order."""
    tuples = [t for d in range(1, len(scores) + 1) for t in itertools.product(*(range(len(row)) for row in scores[:d]))]
    valued = [(t, sum(scores[i][r] for i, r in enumerate(t))) for t in tuples]
    return sorted(valued, key=lambda node: (-node[1], node[0]))[:budget]


def float64_heap(log_probs: list[list[float]], budget: int) -> list[tuple[int, ...]]:
    """Best-first search with incremental float64 scores, in the operation order of the published algorithm."""
    pending = [(-log_probs[0][0], (0,), log_probs[0][0])]
    nodes: list[tuple[int, ...]] = []
    while pending and len(nodes) < budget:
        _, ranks, value = heapq.heappop(pending)
        nodes.append(ranks)
        row, rank = log_probs[len(ranks) - 1], ranks[-1]
        if rank + 1 < len(row):
            sibling = value - row[rank] + row[rank + 1]
            heapq.heappush(pending, (-sibling, (*ranks[:-1], rank + 1), sibling))
        if len(ranks) < len(log_probs):
            child = value + log_probs[len(ranks)][0]
            heapq.heappush(pending, (-child, (*ranks, 0), child))
    return nodes


@given(_tables, st.integers(0, 400))
def test_heap_equals_brute_force(scores: list[list[int]], budget: int) -> None:
    """A generator rule that misses a node, or pops ties in another order, differs from the sorted space."""
    assert heap.best_first(scores, budget) == brute_force(scores, budget)


@given(_tables, st.integers(1, 60))
def test_tree_is_closed_and_ordered(scores: list[list[int]], budget: int) -> None:
    """Parents precede children and siblings come in rank order, in every prefix of the node list."""
    ids = [[100 * d + r for r in range(len(row))] for d, row in enumerate(scores)]
    tree = definition.tree_from_tuples(7, ids, heap.best_first(scores, budget))
    for node in range(1, len(tree)):
        assert tree.parent[node] < node
        assert tree.depth[node] == tree.depth[tree.parent[node]] + 1
        assert tree.score[node] <= tree.score[tree.parent[node]]
        assert tree.token[node] == ids[tree.depth[node] - 1][tree.rank[node]]
    for node in range(len(tree)):
        ranks = [tree.rank[child] for child in tree.children(node)]
        assert ranks == list(range(len(ranks)))


@settings(deadline=None)
@given(
    st.lists(
        st.lists(_scores, min_size=3, max_size=3).map(lambda row: sorted(row, reverse=True)), min_size=2, max_size=2
    ),
    st.integers(1, 5),
)
def test_no_closed_set_of_the_same_size_is_worth_more(scores: list[list[int]], budget: int) -> None:
    """The expected accepted length is the sum of node probabilities; the tree maximises it over all closed sets."""

    def worth(nodes: Iterable[tuple[int, ...]]) -> float:
        return math.fsum(math.exp(sum(scores[i][r] for i, r in enumerate(t)) / 2**32) for t in nodes)

    space = [t for t, _ in brute_force(scores, 99)]
    closed = (
        chosen
        for chosen in itertools.combinations(space, budget)
        if all(len(t) == 1 or t[:-1] in chosen for t in chosen)
    )
    assert worth(t for t, _ in heap.best_first(scores, budget)) >= max(worth(nodes) for nodes in closed) - 1e-12


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [16, 64])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_integer_order_equals_the_published_float64_order(seed: int, budget: int, kind: str) -> None:
    """Log-probabilities of real size are multiples of 2**-32: integers and float64 agree exactly, ties included."""
    random = Random(seed)
    table = []
    for _ in range(15):
        logits = sorted((_rounded(random.gauss(0.0, 2.5), kind) for _ in range(200)), reverse=True)
        log_z = _rounded(math.log(math.fsum(math.exp(x) for x in logits)), "float32")
        row = [_rounded(x - log_z, "float32") for x in logits[:budget]]
        assert all(value * 2**32 == definition.quantise(value) for value in row)
        table.append(row)
    integer = heap.best_first([[definition.quantise(x) for x in row] for row in table], budget)
    assert [ranks for ranks, _ in integer] == float64_heap(table, budget)


def _rounded(value: float, kind: str) -> float:
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if kind == "bfloat16":
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


@given(st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=2, max_size=8))
def test_order_codes_sort_like_rank_tuples(tuples: list[list[int]]) -> None:
    """Builders compare codes instead of tuples; one wrong bit would change trees at ties only."""

    def code(ranks: list[int]) -> int:
        value = used = 0
        for rank in ranks:
            value, used = definition.append_code(value, used, rank)
        return value

    fitting = [t for t in tuples if sum(definition.rank_code(r)[1] for r in t) <= definition.CODE_BITS]
    assert sorted(fitting, key=code) == sorted(fitting)


@given(st.integers(1, 1024), st.integers(1, 15))
def test_code_bound_covers_every_code_that_is_compared(budget: int, depth: int) -> None:
    """A bound that is too small would let codes overflow into each other's bits."""
    worst = _longest_code(2 * budget, depth)
    assert worst <= definition.code_bits_needed(budget, depth)


def _longest_code(product: int, depth: int) -> int:
    """Longest code of a tuple with prod(rank + 1) <= product: factors of two cost most per unit."""
    return 2 * depth + 2 * (product.bit_length() - 1)


def test_corner_cases() -> None:
    """Budget 0, one depth, certain tokens (log-probability 0), impossible ones, fewer nodes than the budget."""
    ids, lp = [[5, 6], [7, 8]], [[0.0, -math.inf], [0.0, -1.0]]
    assert len(heap.build_tree(1, ids, lp, 0)) == 1
    assert heap.build_tree(1, ids, lp, 2).token == (1, 5, 7)
    assert heap.build_tree(1, ids, lp, 99).token == (1, 5, 7, 8, 6, 7, 8)
    assert heap.build_tree(1, ids, lp, 99, depth_limit=1).token == (1, 5, 6)
    assert heap.build_tree(1, ids, lp, 99, depth_limit=0).token == (1,)
    with pytest.raises(ValueError, match="NaN"):
        definition.quantise(math.nan)
    with pytest.raises(ValueError, match="before its parent"):
        definition.tree_from_tuples(1, ids, [((0, 0), 0)])


@given(_tables, st.integers(0, 30), st.randoms(use_true_random=False))
def test_walks_by_parents_and_by_links_agree(scores: list[list[int]], budget: int, random: Random) -> None:
    """SGLang's kernels walk child and sibling links; the oracle walks parents."""
    ids = [random.sample(range(6), len(row)) for row in scores]
    tree = definition.tree_from_tuples(9, ids, heap.best_first(scores, budget))
    target = [random.randrange(6) for _ in range(len(tree))]
    next_token, next_sibling = walk.links(tree)
    path, bonus = walk.accept(tree, target)
    assert (path, bonus) == walk.accept_by_links(tree.token, next_token, next_sibling, target)
    assert path == tree.path(path[-1])
    assert bonus == target[path[-1]]


def test_trace_keeps_every_bit() -> None:
    """Float32 bits and 64-bit scores must survive JSON."""
    tree = heap.build_tree(3, [[1, 2]], [[-0.1, -2.5]], 2)
    record = trace.TraceRound(
        req="r", round=1, start=5, bonus_in=3, ids=[[1, 2]],
        lp_bits=[[trace.float_bits(-0.1), trace.float_bits(-2.5)]],
        token=list(tree.token), parent=list(tree.parent), depth=list(tree.depth), rank=list(tree.rank),
        score_q32=trace.score_strings(tree.score), target=[1, 0, 0], accepted=[0, 1], emitted=[1, 0], bonus_out=0,
    )  # fmt: skip
    header = trace.TraceHeader(model="m", draft="d", engine="e", version="1", block_size=2, budget=2)
    (back,) = trace.read_rounds([trace.to_line(header), trace.to_line(record)])
    assert back == record
    assert back.tree() == tree
    assert back.log_probs() == [[trace.bits_float(trace.float_bits(-0.1)), -2.5]]
    with pytest.raises(ValueError, match="not a ddtree-trace/1"):
        list(trace.read_rounds(['{"schema": "other"}']))
