"""What a comparison finds: levels, differences, and whether each is explained by a near tie."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..model import Value

Verdict = Literal["near_tie", "differs", "unjudged"]
TITLES = {
    "L0": "trees rebuilt from their own recorded candidates, bit for bit",
    "L1": "trees of the same context, each from its own logits",
    "L2": "path and bonus of each tree, and the target's choice at every node that both trees hold",
    "L3": "whole outputs",
    "L4": "tokens per verify step",
}


class Difference(Value, frozen=True, kw_only=True):
    """One difference. ``file`` is ``a``, ``b`` or "" (between both); ``distance`` and ``limit`` are in nats."""

    level: str
    request: str
    verdict: Verdict
    text: str
    round_a: int | None = None
    round_b: int | None = None
    file: str = ""
    distance: float | None = None
    limit: float | None = None


class Level(Value, frozen=True, kw_only=True):
    """One level: how much was compared, what differed, what could not be compared and why."""

    level: str
    unit: str  # what is counted
    checked: int = 0
    near_ties: int = 0
    failures: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)  # reason -> how many
    differences: tuple[Difference, ...] = ()  # the first ones, failures first
    figures: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def title(self) -> str:
        """In words."""
        return TITLES[self.level]

    @property
    def state(self) -> Literal["ok", "failed", "not compared"]:
        """``not compared`` when nothing of it could be: that is no success."""
        return "failed" if self.failures else "ok" if self.checked else "not compared"


class Tally:
    """Counts while a level is being compared; keeps the first differences of each verdict."""

    KEPT = 8

    def __init__(self, level: str, unit: str) -> None:
        self.level, self.unit = level, unit
        self.checked = 0
        self._counts: dict[str, int] = {"near_tie": 0, "differs": 0, "unjudged": 0}
        self._skipped: dict[str, int] = {}
        self._kept: dict[str, list[Difference]] = {"near_tie": [], "differs": [], "unjudged": []}

    def skip(self, reason: str, count: int = 1) -> None:
        """Something could not be compared."""
        self._skipped[reason] = self._skipped.get(reason, 0) + count

    def add(self, difference: Difference) -> None:
        """Something differs."""
        self._counts[difference.verdict] += 1
        if len(self._kept[difference.verdict]) < self.KEPT:
            self._kept[difference.verdict].append(difference)

    def result(self, **figures: Any) -> Level:
        """The level so far."""
        kept = [*self._kept["differs"], *self._kept["unjudged"], *self._kept["near_tie"]]
        return Level(
            level=self.level,
            unit=self.unit,
            checked=self.checked,
            near_ties=self._counts["near_tie"],
            failures=self._counts["differs"] + self._counts["unjudged"],
            skipped=self._skipped,
            differences=tuple(kept[: self.KEPT]),
            figures=figures,
        )


def judge(distance: float | None, limit: float) -> Verdict:
    """A distance that is not known cannot excuse anything."""
    return "unjudged" if distance is None else "near_tie" if distance <= limit else "differs"
