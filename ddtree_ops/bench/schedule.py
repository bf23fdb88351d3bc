"""Which round runs when: arms in ABBA order, budgets interleaved within one server, and what is left after a cut. Pure.

With arms A, B, C and two starts the servers run A B C C B A: a drift of the machine meets every arm alike. Within a
start the rounds go through concurrency and regime, and through the budgets forwards and backwards by turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model import Value
from .schema import Budget, Plan, RoundRow

MIXED = "mixed"  # the regime of warm-up rounds: prompts of all regimes in turn


class Round(Value, frozen=True, kw_only=True):
    """One round that is to be measured; its place in the plan is its identity."""

    arm: str
    start: int  # from 1
    round: int  # from 0
    regime: str
    concurrency: int
    temperature: float = 0.0
    budget: Budget = None

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the row that it becomes."""
        return (self.arm, self.budget, self.start, self.round, self.regime, self.concurrency, self.temperature)


class Block(Value, frozen=True, kw_only=True):
    """One start of one arm's server, with the rounds that it serves."""

    arm: str
    start: int
    rounds: tuple[Round, ...]

    @property
    def settings(self) -> tuple[tuple[Budget, int], ...]:
        """The pairs of budget and concurrency that are warmed, in the order of their first round."""
        return tuple(dict.fromkeys((one.budget, one.concurrency) for one in self.rounds))


def schedule(plan: Plan) -> tuple[Block, ...]:
    """All starts in order."""
    blocks = []
    for start in range(1, plan.starts + 1):
        order = plan.arms if start % 2 else plan.arms[::-1]
        blocks += [Block(arm=arm, start=start, rounds=tuple(_rounds(plan, arm, start))) for arm in order]
    return tuple(blocks)


def _rounds(plan: Plan, arm: str, start: int) -> Iterable[Round]:
    budgets: Sequence[Budget] = plan.budgets if arm == "ddtree" else (None,)
    forwards = bool(start % 2)
    for number in range(plan.repeat):
        for concurrency in plan.concurrency:
            for regime in plan.regimes:
                for budget in budgets if forwards else budgets[::-1]:
                    yield Round(
                        arm=arm,
                        start=start,
                        round=number,
                        regime=regime,
                        concurrency=concurrency,
                        temperature=plan.temperature,
                        budget=budget,
                    )
                forwards = not forwards


def key_of(row: RoundRow) -> tuple[object, ...]:
    """The place of a row in the plan."""
    return (row.arm, row.budget, row.start, row.round, row.regime, row.concurrency, row.temperature)


def remaining(blocks: Iterable[Block], rows: Iterable[RoundRow]) -> tuple[Block, ...]:
    """What is still to be measured: finished rounds are left out, and starts of which nothing is left."""
    done = {key_of(row) for row in rows if row.kind == "measured" and not row.cut}
    left = []
    for block in blocks:
        rounds = tuple(one for one in block.rounds if one.key not in done)
        if rounds:
            left.append(Block(arm=block.arm, start=block.start, rounds=rounds))
    return tuple(left)


def next_warmup(rows: Iterable[RoundRow], arm: str, start: int, budget: Budget, concurrency: int) -> int:
    """The number of the next warm-up round of a setting; a start that was cut goes on counting."""
    wanted = ("warmup", arm, start, budget, concurrency)
    found = [row.round for row in rows if (row.kind, row.arm, row.start, row.budget, row.concurrency) == wanted]
    return max(found, default=-1) + 1


def changed(before: Plan, now: Plan) -> list[str]:
    """How a plan differs from the one of a folder that is to be resumed, in words."""
    return [
        f"{name}: {_text(getattr(before, name))} there, {_text(getattr(now, name))} now"
        for name in Plan.__struct_fields__
        if getattr(before, name) != getattr(now, name)
    ]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
