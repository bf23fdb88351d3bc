"""Medians, percentiles and bootstrap intervals: small, seeded, free of divisions by zero.

A bootstrap here draws *clusters* anew: two rounds of one server start resemble each other more than two starts do, and
the steps of one prompt more than those of two prompts. Drawing single values would give intervals that are too narrow.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from operator import itemgetter

from .schema import Interval, Percentiles
from .stats import quantile

RESAMPLES = 1000
LEVEL = 0.95

_ABOVE, _BELOW = itemgetter(0), itemgetter(1)

Groups = Sequence[Sequence[float]]


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """p50, p95 and p99, linear between neighbours; None for no values."""
    found = [quantile(values, part) for part in (0.50, 0.95, 0.99)]
    if None in found:
        return None
    p50, p95, p99 = (float(value or 0.0) for value in found)
    return Percentiles(p50=p50, p95=p95, p99=p99, samples=len(values))


def of_rounds(groups: Groups, seed: str) -> Interval | None:
    """Median over all values and its interval; ``groups`` holds the rounds of each start. None for no values."""
    groups = [list(group) for group in groups if group]
    values = [value for group in groups for value in group]
    point = quantile(values, 0.5)
    if point is None:
        return None
    draw = random.Random(seed)
    low, high = _bounds([_median(_redrawn(groups, draw)) for _ in range(RESAMPLES if len(values) > 1 else 0)], point)
    return Interval(median=point, low=low, high=high, samples=len(values))


def of_prompts(values: Sequence[float], seed: str) -> Interval | None:
    """Median over prompts (one value each) and its interval; None for no values."""
    return of_rounds([[value] for value in values], seed)


def ratio_of_sums(pairs: Sequence[tuple[float, float]], seed: str) -> Interval | None:
    """``sum(above) / sum(below)`` over prompts ``(above, below)`` and its interval; None where below sums to 0."""
    point = _ratio(pairs)
    if point is None:
        return None
    draw = random.Random(seed)
    drawn = [_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES if len(pairs) > 1 else 0)]
    low, high = _bounds([value for value in drawn if value is not None], point)
    return Interval(median=point, low=low, high=high, samples=len(pairs))


def ratio_of_medians(above: Groups, below: Groups, seed: str) -> Interval | None:
    """Median of ``above`` / median of ``below``, both drawn anew independently; None without a positive divisor."""
    above, below = [list(group) for group in above if group], [list(group) for group in below if group]
    if not above or not below:
        return None
    point = _divided(_median(_flat(above)), _median(_flat(below)))
    if point is None:
        return None
    draw = random.Random(seed)
    single = len(_flat(above)) == 1 and len(_flat(below)) == 1
    drawn = [
        _divided(_median(_redrawn(above, draw)), _median(_redrawn(below, draw)))
        for _ in range(0 if single else RESAMPLES)
    ]
    low, high = _bounds([value for value in drawn if value is not None], point)
    return Interval(median=point, low=low, high=high, samples=min(len(_flat(above)), len(_flat(below))))


def _redrawn(groups: Groups, draw: random.Random) -> list[float]:
    drawn = draw.choices(groups, k=len(groups)) if len(groups) > 1 else groups
    return [value for group in drawn for value in (draw.choices(group, k=len(group)) if len(group) > 1 else group)]


def _flat(groups: Groups) -> list[float]:
    return [value for group in groups for value in group]


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    return _divided(sum(map(_ABOVE, pairs)), sum(map(_BELOW, pairs)))


def _divided(above: float, below: float) -> float | None:
    return above / below if below > 0 else None


def _bounds(drawn: Sequence[float], point: float) -> tuple[float, float]:
    """The interval, widened to hold the point estimate; the point alone where nothing could be drawn."""
    if not drawn:
        return point, point
    low, high = quantile(drawn, (1 - LEVEL) / 2), quantile(drawn, (1 + LEVEL) / 2)
    return min(point, low or 0.0), max(point, high or 0.0)


# -- warm-up --


def agree(one: float, other: float, bound: float) -> bool:
    """Whether two rounds are at most ``bound`` apart (0.03: 3 % of the larger); a round of no tokens never agrees."""
    larger = max(one, other)
    return min(one, other) > 0 and larger - min(one, other) <= bound * larger


def converged(values: Sequence[float], bound: float = 0.03) -> bool:
    """Whether the last two of the warm-up rounds' tokens/s agree."""
    return len(values) > 1 and agree(values[-2], values[-1], bound)


class Warmup:
    """The warm-up rule while it is applied: rounds until two in a row agree, at most ``most``.

    >>> warm = Warmup()
    >>> for value in (1187, 7653, 10996, 11174):
    ...     warm.add(value)
    >>> warm.done, warm.converged
    (True, True)
    """

    def __init__(self, bound: float = 0.03, most: int = 12) -> None:
        self.bound = bound
        self.most = most
        self.values: list[float] = []

    def add(self, tok_per_s: float | None) -> None:
        """One finished round; None or 0 for one without tokens."""
        self.values.append(float(tok_per_s or 0.0))

    @property
    def converged(self) -> bool:
        """Whether the last two rounds agree."""
        return converged(self.values, self.bound)

    @property
    def done(self) -> bool:
        """Whether to stop: converged, or at the cap (then :attr:`why` says so)."""
        return self.converged or len(self.values) >= self.most

    @property
    def why(self) -> str:
        """Why what follows is INVALID; empty when it is not."""
        return "" if self.converged else not_warm(self.values, self.bound)


def not_warm(values: Sequence[float], bound: float, count: Callable[[float], str] = "{:.4g}".format) -> str:
    """The reason in words: no warm-up at all, or the values that did not agree."""
    if not values:
        return "no warm-up round was run"
    shown = ", ".join(count(value) for value in values[-6:])
    return f"warm-up did not converge within {100 * bound:g} % in {len(values)} rounds (tokens/s: {shown})"
