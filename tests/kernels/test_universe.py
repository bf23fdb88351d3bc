"""The static universe: its sizes, its order, and that a selection from it is the heap's tree, ties included."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.kernels.payload import definition, heap, universe


@pytest.mark.parametrize(
    ("budget", "depths", "expected"),
    [(16, 15, 397), (24, 15, 1431), (32, 15, 3576), (48, 15, 12631), (16, 7, 285), (32, 7, 1379), (64, 7, 6005)],
)
def test_sizes(budget: int, depths: int, expected: int) -> None:
    """A universe that is too small misses nodes of some tree, one that is too large costs time: the sizes are known."""
    assert universe.size(budget, depths) == expected
    if expected < 4000:
        assert len(universe.make(budget, depths)) == expected


def test_it_is_the_definition_spelled_out() -> None:
    """Every tuple whose downset fits into the budget, no other, in lexicographic order, with its links and codes."""
    budget, depths = 12, 4
    found = universe.make(budget, depths)
    expected = []
    for length in range(1, depths + 1):
        for ranks in itertools.product(range(budget), repeat=length):
            total, product = 0, 1
            for rank in ranks:
                product *= rank + 1
                total += product
            if total <= budget:
                expected.append(ranks)
    assert found.ranks == sorted(expected)
    for i, ranks in enumerate(found.ranks):
        assert (found.ranks[found.parent[i]] if found.parent[i] >= 0 else ()) == ranks[:-1]
        if ranks[-1]:
            assert found.ranks[found.left[i]] == (*ranks[:-1], ranks[-1] - 1)
        else:
            assert found.left[i] == -1
        code, used = 0, 0
        for rank in ranks:
            before = used
            code, used = definition.append_code(code, used, rank)
        assert (found.code[i], found.used[i]) == (code, before)


def test_selecting_from_it_gives_the_heap() -> None:
    """The best by (score, place) are the heap's nodes in the heap's order, for scores full of ties and floors."""
    chance = Random(5)
    universes = {(budget, depths): universe.make(budget, depths) for budget in (1, 7, 20) for depths in (1, 3, 6)}
    for _ in range(300):
        (budget, depths), table = chance.choice(list(universes.items()))
        limit, ranks = chance.randint(0, depths), chance.choice([1, 2, 5, budget])
        low = chance.choice([0, -1, -3, -(1 << 40)])
        scores = [
            sorted(
                (chance.choice([chance.randint(low, 0), definition.SCORE_FLOOR]) for _ in range(ranks)), reverse=True
            )
            for _ in range(limit)
        ]
        own = chance.randint(0, budget)
        usable = [r for r in table.ranks if len(r) <= limit and max(r) < ranks]
        summed = [(sum(scores[d][rank] for d, rank in enumerate(r)), r) for r in usable]
        best = sorted(range(len(usable)), key=lambda i: (-summed[i][0], i))[:own]
        assert [(summed[i][1], summed[i][0]) for i in best] == heap.best_first(scores, own)
