"""What a step costs at each width: the payload's own table of verify times, or short runs where there is none. Pure.

Words: *width* = nodes verified per request, root included (budget + 1); *step* = everything between two verify steps of
a request as its client sees it: drafting, building, verifying, committing, scheduling. Times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..model import Value
from .schema import Cost
from .stats import quantile


class Probe(Value, frozen=True, kw_only=True):
    """A short run: time of a step as clients saw it, at this many requests at once."""

    concurrency: int
    budget: int
    step_us: float
    ttft_s: float = 0.0  # median
    tokens: float = 0.0  # per request, median
    regime: str = ""


def from_settings(settings: Mapping[str, Any]) -> tuple[Cost, ...]:
    """The table that the payload measured on its captured graphs at start-up; empty where it has none (no graphs).

    An entry that is not understood is left out: the table only helps to predict, and what it predicts is measured.
    """
    found = []
    entries = settings.get("verify_costs")
    for entry in entries if isinstance(entries, list) else ():
        try:
            cost = Cost(batch=int(entry["batch"]), width=int(entry["width"]), verify_us=float(entry["us"]))
        except (KeyError, TypeError, ValueError):
            continue
        if cost.batch > 0 and cost.width > 0 and cost.verify_us > 0:
            found.append(cost)
    return tuple(sorted(found, key=lambda cost: (cost.batch, cost.width)))


def probe_of(requests: Iterable[Mapping[str, Any]], *, concurrency: int, budget: int, regime: str = "") -> Probe | None:
    """The probe that a round's requests make (``tokens, verify_ct, ttft_s, total_s``); None if no step was timed."""
    done = [one for one in requests if one.get("ok") and one.get("ttft_s") is not None and one.get("verify_ct")]
    steps = [1e6 * (one["total_s"] - one["ttft_s"]) / one["verify_ct"] for one in done if one.get("total_s")]
    step = quantile([value for value in steps if value > 0], 0.5)
    if step is None:
        return None
    return Probe(
        concurrency=concurrency,
        budget=budget,
        step_us=step,
        ttft_s=quantile([float(one["ttft_s"]) for one in done], 0.5) or 0.0,
        tokens=quantile([float(one["tokens"]) for one in done], 0.5) or 0.0,
        regime=regime,
    )


class StepModel:
    """Time of a step against budget and concurrency.

    With a table: the verify time of the captured graph that the batch is padded to, linear between widths, plus what
    the probes took beyond it. Without: linear between the probed budgets, the nearest two beyond them.
    """

    def __init__(self, costs: Sequence[Cost], probes: Sequence[Probe]) -> None:
        self._costs = tuple(costs)
        self._probes = tuple(probes)

    def step_us(self, budget: int, concurrency: int) -> float | None:
        """Microseconds of a step; None where nothing was measured at this concurrency."""
        here = [probe for probe in self._probes if probe.concurrency == concurrency]
        if not here:
            return None
        if not self._costs:
            return _line(_by_budget(here), float(budget))
        verify = self.verify_us(budget + 1, concurrency)
        beyond = [probe.step_us - self.verify_us(probe.budget + 1, concurrency) for probe in here]
        return verify + max(quantile(beyond, 0.5) or 0.0, 0.0)

    def verify_us(self, width: int, concurrency: int) -> float:
        """The verify step alone, from the table: the next larger batch (graphs are padded), linear between widths."""
        batches = sorted({cost.batch for cost in self._costs})
        batch = next((one for one in batches if one >= concurrency), batches[-1])
        points = {float(cost.width): cost.verify_us for cost in self._costs if cost.batch == batch}
        return _line(points, float(width))

    @property
    def source(self) -> str:
        """Where the costs come from, for people."""
        if self._costs:
            return "verify times of the server's captured graphs, and short runs for the rest of a step"
        return "short runs at several budgets (this server has no captured graphs to time)"


def costs_of_probes(probes: Iterable[Probe]) -> tuple[Cost, ...]:
    """Probes as a cost curve, for ``costs.json`` where the payload has no table: whole steps, not the verify alone."""
    groups: dict[tuple[int, int], list[float]] = {}
    for probe in probes:
        groups.setdefault((probe.concurrency, probe.budget + 1), []).append(probe.step_us)
    return tuple(
        Cost(batch=batch, width=width, verify_us=quantile(values, 0.5) or 0.0)
        for (batch, width), values in sorted(groups.items())
    )


def _by_budget(probes: Sequence[Probe]) -> dict[float, float]:
    groups: dict[float, list[float]] = {}
    for probe in probes:
        groups.setdefault(float(probe.budget), []).append(probe.step_us)
    return {budget: quantile(values, 0.5) or 0.0 for budget, values in groups.items()}


def _line(points: Mapping[float, float], at: float) -> float:
    """Piecewise linear through ``points``; beyond the outermost the last segment goes on, but never below its half."""
    xs = sorted(points)
    if len(xs) == 1:
        return points[xs[0]]
    right = next((index for index, x in enumerate(xs[1:], 1) if at <= x), len(xs) - 1)
    low, high = xs[right - 1], xs[right]
    value = points[low] + (points[high] - points[low]) * (at - low) / (high - low)
    return max(value, min(points.values()) / 2)
