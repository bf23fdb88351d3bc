"""What a step builds: the server's budget, the control file, the requests and the automatic controller, in this order.

chain asked for                  the chain, in its own width where that exists
a fixed budget                   the narrowest width that holds it; no node more is built
auto                             what the controller says
requests that all ask for less   no more than the most that any of them asks for
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .ladder import Ladder

AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """``width`` nodes are verified per request, at most ``budget`` of them drafts; ``reason`` says who chose.

    Reasons: ``fixed`` (start), ``control`` (the control file), ``request``, ``limit`` (no captured width holds the
    budget at this batch), ``cost`` and ``probe`` (the automatic controller).
    """

    width: int
    budget: int
    chain: bool
    reason: str


class Automatic(Protocol):
    """The automatic controller, as far as a choice needs it."""

    def choose(self, batch: int) -> Choice:
        """Return what a batch of ``batch`` requests is to build."""


class Chooser:
    """Chooses for one server of at most ``budget`` nodes whose drafter gives ``depth`` levels."""

    def __init__(self, budget: int, depth: int, starts_auto: bool = False) -> None:
        self._budget, self._depth, self._starts_auto = budget, depth, starts_auto
        self._memo: dict[tuple[int, int, bool, str], Choice] = {}
        self.ladder = Ladder.of([budget + 1])
        self.automatic: Automatic | None = None

    def use(self, ladder: Ladder, automatic: Automatic | None = None) -> None:
        """Choose from other widths from now on."""
        self.ladder, self.automatic = ladder, automatic
        self._memo.clear()

    def choose(self, batch: int, budget: int | str | None, mode: str, most_requested: int | None) -> Choice:
        """Return what a batch builds.

        ``budget`` and ``mode`` are the control file's (``None`` and ``tree`` without one), ``most_requested`` is the
        largest budget that a request of the batch asks for (``None`` as soon as one asks for nothing).
        """
        if self.automatic is not None and self.wants_automatic(budget, mode):
            found = self.automatic.choose(batch)
            if most_requested is None or most_requested >= found.budget:
                return found
            return self.fixed(batch, most_requested, found.chain, "request")
        most = self._budget if not isinstance(budget, int) else min(budget, self._budget)
        reason = "fixed" if budget is None and mode == "tree" else "control"
        if most_requested is not None and most_requested < most:
            most, reason = most_requested, "request"
        return self.fixed(batch, most, mode == "chain", reason)

    def wants_automatic(self, budget: int | str | None, mode: str) -> bool:
        """Tell whether start and control file leave the choice to the automatic controller."""
        return mode != "chain" and (budget == AUTO or (budget is None and self._starts_auto))

    def fixed(self, batch: int, budget: int, chain: bool, reason: str) -> Choice:
        """Return trees of at most ``budget`` nodes, or chains, in the narrowest width that holds them at this batch."""
        key = (batch, budget, chain, reason)
        found = self._memo.get(key)
        if found is None:
            most = min(budget, self._depth) if chain else budget
            width = self.ladder.holds(self._depth if chain else most, batch)
            if width <= most:
                most, reason = width - 1, "limit"
            found = self._memo[key] = Choice(width, most, chain, reason)
        return found
