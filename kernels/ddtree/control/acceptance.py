"""What trees of other widths, and the chain, would have brought: running estimates from paths that were taken.

Trees are nested: the tree of a smaller budget is the first nodes of a larger one. So of one verified tree it is known
*exactly* what every narrower one would have accepted: path indices ascend, hence the path's nodes below that width.
Paths also tell about the chain. As long as a path follows best candidates the chain would have gone along; where it
takes another candidate the chain would have ended; where it ends although the tree held the next best candidate the
chain would have ended too. Only where the tree did not hold it nothing is known, so each depth has a rate of its own.

Estimates forget: the weight of an observation halves every ``HALF_LIFE`` observations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import log2

HALF_LIFE = 1024.0
"""Observations (one request in one step) after which one counts half."""

FLAT = 0.9
"""An interval of widths that was never seen brings this part of what the last seen one brought per doubling."""


class Mean:
    """A mean that forgets."""

    def __init__(self) -> None:
        self.weight = 0.0
        self._sum = 0.0

    def add(self, value: float, keep: float) -> None:
        """Add an observation; older ones keep the part ``keep`` of their weight."""
        self.weight = self.weight * keep + 1.0
        self._sum = self._sum * keep + value

    @property
    def value(self) -> float:
        """The mean, 0 before any observation."""
        return self._sum / self.weight if self.weight else 0.0


class Acceptance:
    """Expected accepted drafts by width, and of the chain; the same for batches of every size."""

    def __init__(self, widths: Sequence[int], depth: int, half_life: float = HALF_LIFE) -> None:
        self._widths = tuple(sorted(widths))
        self._keep = 0.5 ** (1.0 / half_life)
        self._gain = [Mean() for _ in self._widths]  # accepted nodes between the width before and this one
        self._rate = [Mean() for _ in range(depth)]  # of best candidates at this depth, once reached: accepted
        self.seen = 0

    def tree(self, width: int, nodes: Sequence[int], ranks: Sequence[int], next_was_there: bool) -> None:
        """Observe one request's path through a tree of ``width`` nodes.

        ``nodes`` and ``ranks``: of the accepted drafts, in order; ``next_was_there``: whether the tree held the best
        candidate after the last of them.
        """
        self.seen += 1
        counts = [0] * len(self._widths)
        for node in nodes:
            place = bisect_right(self._widths, node)
            if place < len(counts):
                counts[place] += 1
        for place, of_width in enumerate(self._widths):
            if of_width <= width:
                self._gain[place].add(counts[place], self._keep)
        straight = next((d for d, rank in enumerate(ranks) if rank > 0), len(ranks))
        self._follow(straight, straight < len(ranks) or next_was_there)

    def chain(self, accepted: int, depth: int) -> None:
        """Observe one request's chain of ``depth`` drafts, of which ``accepted`` were accepted."""
        self.seen += 1
        self._follow(accepted, accepted < depth)

    def _follow(self, accepted: int, ended: bool) -> None:
        for rate in self._rate[:accepted]:
            rate.add(1.0, self._keep)
        if ended and accepted < len(self._rate):
            self._rate[accepted].add(0.0, self._keep)

    def of_tree(self, width: int) -> float:
        """Return the expected accepted drafts of a tree of ``width`` nodes; extrapolated where none was that wide."""
        total, before, per_doubling = 0.0, 1, 0.0
        for of_width, gain in zip(self._widths, self._gain, strict=True):
            doublings = log2(of_width / before)
            if gain.weight:
                brought = gain.value
                per_doubling = brought / doublings
            else:
                per_doubling *= FLAT
                brought = per_doubling * doublings
            if of_width > width:
                return total  # not a width of the ladder: what the one below brings
            total += brought
            before = of_width
        return total

    @property
    def knows_trees(self) -> bool:
        """Whether any tree was seen."""
        return any(gain.weight > 0 for gain in self._gain)

    def of_chain(self) -> float:
        """Return the expected accepted drafts of the full chain."""
        total, reached = 0.0, 1.0
        for rate in self._rate:
            if not rate.weight:
                break
            reached *= rate.value
            total += reached
        return total
