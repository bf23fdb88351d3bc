"""What a figure of a report consists of, and the choices that all of them share.

Regimes and concurrencies are never pooled: they get panels or lines of their own. What is INVALID is drawn as a cross
outside the line, and its row of the table is struck.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from ...model import Value
from ..schema import AcceptanceCell, Cell, Interval
from .svg import Frame, Level, Point, key
from .text import number, plural, short

LOOKS = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7")
SETTING = ("arm", "budget", "regime", "concurrency")
_CONTROLS = {"ar": ("ref-ar", "AR (no speculation)"), "dflash": ("ref-dflash", "DFLASH (linear)")}
_FRAMES = {1: (420.0, 262.0), 2: (420.0, 246.0), 3: (352.0, 240.0), 4: (272.0, 214.0)}


class Panel(Value, frozen=True, kw_only=True):
    """One chart and its heading."""

    heading: str
    svg: Markup


class Table(Value, frozen=True, kw_only=True):
    """The same as numbers. ``struck`` names rows (by index) that are not valid."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    struck: tuple[int, ...] = ()


class Plot(Value, frozen=True, kw_only=True):
    """A figure: panels that share axes' meaning, a legend and a table."""

    name: str
    label: str  # in the page's list of sections
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: Table
    legend: tuple[tuple[Markup, str], ...] = ()
    columns: int = 1  # panels in a row on a wide screen


# -- size --


def columns_for(panels: int) -> int:
    """How many panels of so many stand in a row."""
    return panels if panels <= 4 else 3 if panels in (5, 6, 9) else 4


def frame_for(columns: int) -> Frame:
    """The size at which a panel's text comes out as large as the page's small print, ``columns`` in a row; at most 420,
    so that it can still be read on a telephone."""
    width, height = _FRAMES[columns]
    return Frame(width=width, height=height)


# -- selection --


def is_tree(cell: Cell | AcceptanceCell) -> bool:
    """Whether the cell's arm has a tree."""
    return cell.budget is not None


def regimes_of(cells: Sequence[Cell] | Sequence[AcceptanceCell]) -> list[str]:
    """Regimes in the order in which they were measured."""
    return list(dict.fromkeys(one.regime for one in cells))


def settings_of(cells: Sequence[Cell]) -> list[tuple[str, int]]:
    """Regimes in that order, each with its concurrencies from low to high."""
    order = regimes_of(cells)
    found = dict.fromkeys((one.regime, one.concurrency) for one in cells)
    return sorted(found, key=lambda one: (order.index(one[0]), one[1]))


def invalid(cells: Sequence[Cell]) -> tuple[int, ...]:
    """Indices of what must not be quoted."""
    return tuple(index for index, one in enumerate(cells) if not one.valid)


def looks_for(things: Iterable[int | str]) -> dict[str, str]:
    """A look per thing (a budget, a concurrency), by its text."""
    return {str(one): LOOKS[index % len(LOOKS)] for index, one in enumerate(things)}


# -- budgets as an axis --


def budget_positions(budgets: Iterable[int | str | None]) -> dict[str, float]:
    """Where each budget stands: by the logarithm of its width, ``auto`` apart at the right."""
    found = set(budgets) - {None}
    at = {str(one): math.log2(one + 1) for one in sorted(one for one in found if isinstance(one, int))}
    if "auto" in found:
        at["auto"] = max(at.values(), default=0.0) + 1.0
    return at


def budget_ticks(at: dict[str, float]) -> tuple[tuple[float, str], ...]:
    """The axis' ticks for :func:`budget_positions`."""
    return tuple((where, budget) for budget, where in sorted(at.items(), key=lambda item: item[1]))


# -- marks --


def point(x: float, cell: Cell, value: Interval) -> Point:
    """A cell's figure as a mark."""
    flaw = "" if cell.valid else f"; INVALID: {'; '.join(cell.why)}"
    note = f"{cell.name}: {short(value.median)}{_range(value)}, {plural(cell.runs, 'round')}{flaw}"
    return Point(x=x, y=value.median, low=value.low, high=value.high, valid=cell.valid, note=note)


def level(cell: Cell, value: Interval) -> Level:
    """A control's figure as a reference line."""
    look, name = _CONTROLS.get(cell.arm, ("ref-other", cell.arm))
    note = f"{cell.name}: {short(value.median)}{_range(value)}"
    return Level(name=name, look=look, y=value.median, low=value.low, high=value.high, note=note)


def control_legend(cells: Sequence[Cell]) -> list[tuple[Markup, str]]:
    """The reference lines that these cells have."""
    arms = {one.arm for one in cells if not is_tree(one) and one.valid}
    return [(key(look), name) for arm, (look, name) in _CONTROLS.items() if arm in arms]


def _range(value: Interval) -> str:
    return f" ({short(value.low)} to {short(value.high)})" if value.high > value.low else ""


# -- table cells --


def setting(cell: Cell | AcceptanceCell) -> tuple[str, ...]:
    """The first four columns of a table."""
    return cell.arm, "" if cell.budget is None else str(cell.budget), cell.regime, str(cell.concurrency)


def spread(value: Interval | None, digits: int) -> tuple[str, str, str]:
    """Median, low, high."""
    if value is None:
        return number(None), number(None), number(None)
    return number(value.median, digits), number(value.low, digits), number(value.high, digits)


def share(part: int, whole: int) -> str:
    """``38.2 %``."""
    return f"{100 * part / whole:.1f} %" if whole else number(None)
