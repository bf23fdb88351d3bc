"""Gates: what a measurement must show, read strictly from ``gates.yaml``, judged cell by cell, each in words.

::

    name: gates
    identity: true                      # greedy answers are those of plain decoding, except at near ties
    min_speedup: {all: 1.0, math: 1.3}  # tokens/s against plain decoding, per regime; or one number
    min_accept_length: 2.0              # tokens per verify step, bonus included; a number or per regime
    not_below_dflash: true              # tokens/s of no regime below DFLASH's; 0.98 leaves 2 % for noise
    budget: 32                          # which budget is judged; left out: the one that would be served
    concurrency: [1, 4]                 # where; left out: every one that is measured

A cell that is INVALID or missing passes no gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..errors import GateFailed
from ..patching.strict import Document, read_document
from .headline import times
from .schema import Cell, Gate, Gates, IdentityReport, Interval, Plan, Summary

Factor = Annotated[float, msgspec.Meta(gt=0)]
PerRegime = Factor | dict[str, Factor]
ALL = "all"


class GateFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``gates.yaml``; ``None`` and ``False`` leave a gate out."""

    name: str = "gates"
    identity: bool = False
    min_speedup: PerRegime | None = None
    min_accept_length: PerRegime | None = None
    not_below_dflash: bool | Factor = False
    budget: Annotated[int, msgspec.Meta(ge=1)] | None = None
    concurrency: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()


class GateBook(msgspec.Struct, frozen=True):
    """A checked gates file."""

    file: GateFile
    origin: str


def load_gates(path: Path) -> GateBook:
    """Read a gates file. Raises ConfigError with file, line and key, also for a file without any gate."""
    document = read_document(path)
    found = document.convert(GateFile)
    if not _names(found):
        document.fail("no gate is set", "$", why="gates: identity, min_speedup, min_accept_length, not_below_dflash")
    return GateBook(file=found, origin=document.origin)


def check_gates(book: GateBook, path: Path, plan: Plan, budget: int | None) -> None:
    """Raise ConfigError when the measurement that is planned cannot decide the gates.

    Args:
        budget: The budget that would be served; None when only the measurement will tell (``--budget auto``).
    """
    file, document = book.file, read_document(path)
    if "ddtree" not in plan.arms:
        document.fail("gates judge DDTREE, which is not measured", "$", next_step="add ddtree to --arms")
    for key, arm in (("identity", "ar"), ("min_speedup", "ar"), ("not_below_dflash", "dflash")):
        if key in _names(file) and arm not in plan.arms:
            document.fail(f"{key} needs the arm {arm}, which is not measured", f"$.{key}", next_step=f"--arms …,{arm}")
    if file.identity and plan.temperature:
        document.fail("identity is judged on greedy answers only", "$.identity", next_step="--temperature 0")
    wanted = file.budget or budget
    if wanted is not None and wanted not in plan.budgets and "auto" not in plan.budgets:
        listed = ", ".join(map(str, plan.budgets))
        document.fail(f"budget {wanted} is not measured", "$.budget", why=f"measured: {listed}")
    for one in file.concurrency:
        if one not in plan.concurrency:
            listed = ", ".join(map(str, plan.concurrency))
            document.fail(f"concurrency {one} is not measured", "$.concurrency", why=f"measured: {listed}")
    for key in ("min_speedup", "min_accept_length"):
        _check_regimes(document, key, getattr(file, key), plan.regimes)


def _check_regimes(document: Document, key: str, found: PerRegime | None, regimes: Sequence[str]) -> None:
    for regime in found if isinstance(found, dict) else ():
        if regime != ALL and regime not in regimes:
            listed = ", ".join([ALL, *regimes])
            document.fail(f"regime {regime!r} is not measured", f"$.{key}.{regime}", why=f"allowed: {listed}")


def _names(file: GateFile) -> tuple[str, ...]:
    keys = ("identity", "min_speedup", "min_accept_length", "not_below_dflash")
    return tuple(key for key in keys if getattr(file, key) not in (None, False))


def evaluate(book: GateBook, summary: Summary, identity: IdentityReport | None, budget: int) -> Gates:
    """Judge every gate at ``budget``; one :class:`Gate` per gate, regime and concurrency."""
    file = book.file
    cells = [
        cell
        for cell in summary.cells
        if cell.arm == "ddtree"
        and cell.budget == budget
        and (not file.concurrency or cell.concurrency in file.concurrency)
    ]
    found: list[Gate] = []
    if file.identity:
        found.append(_identity(identity, budget))
    if file.min_speedup is not None:
        found += _least("min_speedup", cells, file.min_speedup, "{:.2f}x of plain decoding", _speedup)
    if file.min_accept_length is not None:
        found += _least("min_accept_length", cells, file.min_accept_length, "{:.2f} tokens per verify step", _length)
    if file.not_below_dflash:
        least = 1.0 if file.not_below_dflash is True else float(file.not_below_dflash)
        found += _least("not_below_dflash", cells, least, "{:.2f}x of DFLASH", lambda cell: cell.speedup_vs_dflash)
    return Gates(passed=bool(found) and all(one.passed for one in found), gates=tuple(found), file=book.origin)


def budget_to_judge(book: GateBook, budgets: Iterable[Any], served: int, recommended: int | None = None) -> int:
    """The budget whose cells decide: the file's, else the recommended, else the served one, else the largest."""
    measured = [one for one in budgets if isinstance(one, int)]
    if book.file.budget is not None:
        return book.file.budget
    if recommended is not None:
        return recommended
    return served if served in measured or not measured else max(measured)


def require(gates: Gates) -> None:
    """Raise :class:`GateFailed` (exit 8) that names every failed gate, unless all passed."""
    if gates.passed:
        return
    failed = [one for one in gates.gates if not one.passed]
    lines = [sentence(one) for one in failed] or ["no gate could be judged"]
    raise GateFailed(
        f"{len(failed)} of {len(gates.gates)} gates failed: {lines[0]}",
        where=gates.file,
        why="; ".join(lines[1:]),
        next_step="the report has every figure; change the budget, or the gates if they ask for too much",
        details={"gates": msgspec.to_builtins(gates)},
    )


def sentence(gate: Gate) -> str:
    """``min_speedup, chat, concurrency 1: wanted at least 1.20x of plain decoding, found 1.05x (1.01 to 1.10)``."""
    where = f", {gate.where}" if gate.where else ""
    return f"{gate.name}{where}: wanted {gate.wanted}, found {gate.found}"


def _identity(report: IdentityReport | None, budget: int) -> Gate:
    wanted = "greedy answers equal to plain decoding's, except at near ties"
    if report is None:
        return Gate(name="identity", passed=False, wanted=wanted, found="nothing was compared")
    ours = [pair for pair in report.pairs if pair.arm == "ddtree" and pair.budget == budget]
    bad = [pair for pair in ours if pair.verdict != "ok"]
    text = "; ".join(pair.text or pair.verdict for pair in bad or ours) or "nothing was compared at this budget"
    return Gate(name="identity", passed=bool(ours) and not bad, wanted=wanted, found=text, where=f"budget {budget}")


def _least(
    name: str, cells: Sequence[Cell], least: PerRegime, unit: str, of: Callable[[Cell], Interval | None]
) -> Iterable[Gate]:
    if not cells:
        yield Gate(name=name, passed=False, wanted=f"at least {least}", found="no cell of DDTREE was measured")
    for cell in cells:
        limit = least.get(cell.regime, least.get(ALL)) if isinstance(least, dict) else least
        if limit is None:
            continue
        value = of(cell)
        passed = cell.valid and value is not None and value.median >= limit
        yield Gate(
            name=name,
            passed=passed,
            wanted=f"at least {unit.format(limit)}",
            found=_found(cell, value, unit),
            where=f"{cell.regime}, concurrency {cell.concurrency}, budget {cell.budget}",
        )


def _found(cell: Cell, value: Interval | None, unit: str) -> str:
    if not cell.valid:
        return f"an INVALID cell: {cell.why[0]}"
    if value is None:
        return "nothing: the other arm's cell is missing or INVALID"
    return times(value) if "x of" in unit else f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def _speedup(cell: Cell) -> Interval | None:
    return cell.speedup_vs_ar


def _length(cell: Cell) -> Interval | None:
    return cell.tokens_per_verify
