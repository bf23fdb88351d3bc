"""Two result folders side by side: first the conditions that differ, then cell by cell, with intervals. Pure.

The ratio is B over A. Its interval is bootstrapped from the rounds (tokens/s) and, prompt by prompt, from the requests
(tokens per verify step) of both folders. Where it holds 1 there is no difference within noise, and that is what is
said. Work that was not the same (other prompts, other lengths, another target) is not compared at all.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..model import Value
from . import intervals
from .results import Folder, summarise
from .schema import Budget, Cell, Interval, Manifest, RoundRow, Summary
from .stats import quantile
from .summarise import rate

Judgement = Literal["better", "worse", "same", "unjudged", "not compared"]
Key = tuple[str, Budget, str, int, float]

WORDS: Mapping[Judgement, str] = {
    "better": "better",
    "worse": "worse",
    "same": "no difference within noise",
    "unjudged": "one sample: no interval",
    "not compared": "not compared",
}


class Difference(Value, frozen=True, kw_only=True):
    """A condition that is not the same. ``work``: it changes what was asked, so that figures cannot be compared."""

    name: str
    a: str
    b: str
    work: bool = False


class Figure(Value, frozen=True, kw_only=True):
    """One figure of a cell in both folders; ``ratio`` is B over A."""

    name: str
    a: Interval | None = None
    b: Interval | None = None
    ratio: Interval | None = None
    judgement: Judgement = "not compared"


class CellDiff(Value, frozen=True, kw_only=True):
    """One cell of both folders; ``why``: what forbids to compare it."""

    arm: str
    budget: Budget = None
    regime: str
    concurrency: int
    temperature: float = 0.0
    figures: tuple[Figure, ...] = ()
    why: str = ""

    def figure(self, name: str) -> Figure:
        """The figure of that name."""
        return next((one for one in self.figures if one.name == name), Figure(name=name))


class Diff(Value, frozen=True, kw_only=True):
    """Everything; ``a`` and ``b`` are the folders."""

    a: str
    b: str
    conditions: tuple[Difference, ...] = ()
    cells: tuple[CellDiff, ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    schema_version: int = 1

    def below(self, limit: float) -> list[str]:
        """Cells that do not hold ``limit``: surely below it, or not comparable; what there is not to compare, too."""
        found = [f"{name(one)}: {one.why}" for one in self.cells if one.why]
        for one in self.cells:
            ratio = one.figure("tok_per_s").ratio
            if ratio is not None and ratio.high < limit:
                found.append(f"{name(one)}: {ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f}), below {limit:g}")
        return found if self.cells else ["the folders have no cell in common"]


def name(cell: CellDiff | Cell) -> str:
    """``ddtree 32, chat, concurrency 4``."""
    budget = "" if cell.budget is None else f" {cell.budget}"
    warm = f", temperature {cell.temperature:g}" if cell.temperature else ""
    return f"{cell.arm}{budget}, {cell.regime}, concurrency {cell.concurrency}{warm}"


def compare(a: Folder, b: Folder) -> Diff:
    """Compare two folders, complete or not."""
    conditions = tuple(differences(a.manifest, b.manifest))
    work = [one.name for one in conditions if one.work]
    left, right = _side(a), _side(b)
    shared = [key for key in left.cells if key in right.cells]
    return Diff(
        a=str(a.path),
        b=str(b.path),
        conditions=conditions,
        cells=tuple(_cell(key, left, right, work) for key in shared),
        only_a=tuple(name(cell) for key, cell in left.cells.items() if key not in right.cells),
        only_b=tuple(name(cell) for key, cell in right.cells.items() if key not in left.cells),
    )


# -- conditions --

_WORK = ("prompts_sha256", "prompts", "max_tokens", "cold", "target sha256")
_PLAN = (*_WORK[:-1], "repeat", "starts", "agree", "silence_s", "seed")


def differences(a: Manifest, b: Manifest) -> Iterable[Difference]:
    """Conditions that differ: those that change the work first."""
    left, right = _facts(a), _facts(b)
    names = [*_WORK, *(one for one in dict.fromkeys([*left, *right]) if one not in _WORK)]
    for one in names:
        before, after = left.get(one, ""), right.get(one, "")
        if before != after:
            # A folder that does not tell its prompts or its target cannot be held against the other one.
            yield Difference(name=one, a=before, b=after, work=one in _WORK and "" not in (before, after))


def _facts(manifest: Manifest) -> dict[str, str]:
    found = manifest.conditions
    facts = {name_: str(getattr(manifest.plan, name_)) for name_ in _PLAN}
    facts |= {name_: str(getattr(manifest, name_)) for name_ in ("host", "unit", "build_id", "tool_version")}
    facts |= {"gpu": ", ".join(found.gpu), "driver": found.driver, "sglang": found.sglang, "torch": found.torch}
    facts["dtype"] = found.dtype
    for role, model in found.models.items():
        facts |= {f"{role} model": model.path, f"{role} sha256": model.sha256}
    facts |= {name_: str(value) for name_, value in found.other.items() if isinstance(value, str | int | float)}
    for arm, arguments in found.effective_args.items():
        facts |= {f"{arm}: {name_}": str(value) for name_, value in arguments.items()}
    return facts


# -- cells --


class _Side:
    """A folder by cell: the summary's cells, and the rounds behind them."""

    def __init__(self, summary: Summary, rows: Sequence[RoundRow]) -> None:
        self.cells: dict[Key, Cell] = {_key(cell): cell for cell in summary.cells}
        self.rows: dict[Key, list[RoundRow]] = {}
        latest = {(*_key(row), row.start, row.round): row for row in rows if row.kind == "measured"}
        for row in latest.values():
            self.rows.setdefault(_key(row), []).append(row)

    def rates(self, key: Key) -> list[list[float]]:
        """Tokens/s of the rounds of each start."""
        starts: dict[int, list[float]] = {}
        for row in self.rows.get(key, ()):
            if (value := rate(row)) is not None:
                starts.setdefault(row.start, []).append(value)
        return list(starts.values())

    def steps(self, key: Key) -> dict[str, tuple[float, float]]:
        """Per prompt: tokens and verify steps."""
        found: dict[str, tuple[float, float]] = {}
        for row in self.rows.get(key, ()):
            for one in row.requests:
                if one.ok and one.verify_ct:
                    tokens, steps = found.get(one.id, (0.0, 0.0))
                    found[one.id] = (tokens + one.tokens, steps + one.verify_ct)
        return found


def _side(folder: Folder) -> _Side:
    rows = folder.rows()
    return _Side(folder.summary or summarise(folder.manifest, rows), rows)


def _key(one: Cell | RoundRow) -> Key:
    return one.arm, one.budget, one.regime, one.concurrency, one.temperature


def _cell(key: Key, a: _Side, b: _Side, work: Sequence[str]) -> CellDiff:
    left, right = a.cells[key], b.cells[key]
    why = _why(left, right, work)
    seed = f"diff/{name(left)}/"
    speed = None if why else intervals.ratio_of_medians(b.rates(key), a.rates(key), seed + "rate")
    accept = None if why else _accept_ratio(b.steps(key), a.steps(key), seed + "verify")
    figures = (
        _figure("tok_per_s", left.tok_per_s, right.tok_per_s, speed),
        _figure("tokens_per_verify", left.tokens_per_verify, right.tokens_per_verify, accept),
    )
    shown = tuple(one for one in figures if one.a is not None or one.b is not None)
    place = {name_: getattr(left, name_) for name_ in ("arm", "budget", "regime", "concurrency", "temperature")}
    return CellDiff(**place, figures=shown, why=why)


def _why(left: Cell, right: Cell, work: Sequence[str]) -> str:
    if work:
        return f"not the same work ({', '.join(work)})"
    flawed = [f"INVALID in {side}: {cell.why[0] if cell.why else 'no reason given'}"
              for side, cell in (("A", left), ("B", right)) if not cell.valid]  # fmt: skip
    return "; ".join(flawed)


def _figure(name_: str, a: Interval | None, b: Interval | None, ratio: Interval | None) -> Figure:
    return Figure(name=name_, a=a, b=b, ratio=ratio, judgement=judged(ratio))


def judged(ratio: Interval | None) -> Judgement:
    """``better`` or ``worse`` only where the whole interval lies on one side of 1."""
    if ratio is None:
        return "not compared"
    if ratio.samples < 2:
        return "unjudged"
    return "better" if ratio.low > 1.0 else "worse" if ratio.high < 1.0 else "same"


Sums = Mapping[str, tuple[float, float]]


def _accept_ratio(above: Sums, below: Sums, seed: str) -> Interval | None:
    """Tokens per verify step over the same of the other folder; prompts that both have are drawn together."""
    shared = sorted(above.keys() & below.keys())
    pairs = [(above[one], below[one]) for one in shared]
    point = _quotient(pairs)
    if point is None:
        return None
    draw = random.Random(seed)
    count = intervals.RESAMPLES if len(pairs) > 1 else 0
    drawn = [value for _ in range(count) if (value := _quotient(draw.choices(pairs, k=len(pairs)))) is not None]
    low, high = (quantile(drawn, part) for part in ((1 - intervals.LEVEL) / 2, (1 + intervals.LEVEL) / 2))
    lowest, highest = (point if low is None else low), (point if high is None else high)
    return Interval(median=point, low=min(point, lowest), high=max(point, highest), samples=len(pairs))


def _quotient(pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> float | None:
    tokens_a, steps_a = sum(a[0] for a, _ in pairs), sum(a[1] for a, _ in pairs)
    tokens_b, steps_b = sum(b[0] for _, b in pairs), sum(b[1] for _, b in pairs)
    if not (steps_a and steps_b and tokens_b):
        return None
    return (tokens_a / steps_a) / (tokens_b / steps_b)


def as_dict(found: Diff) -> dict[str, Any]:
    """For JSON."""
    builtins: dict[str, Any] = msgspec.to_builtins(found)
    return builtins
