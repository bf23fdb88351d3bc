"""The static universe: all rank tuples that a tree of a budget can contain, whatever the scores are.

A tuple ``t`` is not after ``r`` in canonical order when no rank of it is higher and it is not longer; so a tree that
contains ``r`` contains all such tuples, ``sum over j <= len(r) of prod over i <= j of (r_i + 1)`` of them. A tuple for
which that exceeds the budget is in no tree. What is left is small for small budgets (3,576 tuples for 32 nodes of 15
levels, against 32 ** 15 in all), and building a tree is one selection from it: the best ``budget`` by score, ties by
the tuple's place in lexicographic order, which is the canonical tie rule.

The same holds for a tree whose depth or ranks are limited further: it is a selection from the tuples within the limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from .definition import append_code


@dataclass(frozen=True)
class Universe:
    """Tuples in lexicographic order (a prefix before its extensions), one entry per tuple in each list."""

    budget: int
    depths: int
    ranks: list[tuple[int, ...]]
    parent: list[int]  # index of the tuple without its last rank, -1 for one level
    left: list[int]  # index of the tuple whose last rank is one less, -1 for rank 0
    code: list[int]  # order code
    used: list[int]  # bits of the order code before the last rank

    def __len__(self) -> int:
        return len(self.ranks)


def size(budget: int, depths: int) -> int:
    """Return how many tuples the universe has, without making it."""

    def below(total: int, product: int, level: int) -> int:
        found, rank = 0, 0
        while level < depths and total + product * (rank + 1) <= budget:
            found += 1 + below(total + product * (rank + 1), product * (rank + 1), level + 1)
            rank += 1
        return found

    return below(0, 1, 0)


def make(budget: int, depths: int) -> Universe:
    """Enumerate the universe of trees of at most ``budget`` nodes and ``depths`` levels."""
    universe = Universe(budget, depths, [], [], [], [], [])

    def extend(prefix: tuple[int, ...], parent: int, code: int, used: int, total: int, product: int) -> None:
        left, rank = -1, 0
        while len(prefix) < depths and total + product * (rank + 1) <= budget:
            index = len(universe.ranks)
            own, length = append_code(code, used, rank)
            universe.ranks.append((*prefix, rank))
            universe.parent.append(parent)
            universe.left.append(left)
            universe.code.append(own)
            universe.used.append(used)
            extend((*prefix, rank), index, own, length, total + product * (rank + 1), product * (rank + 1))
            left, rank = index, rank + 1

    extend((), -1, 0, 0, 0, 1)
    return universe
