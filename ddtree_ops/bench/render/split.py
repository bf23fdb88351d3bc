"""The time of a decode step by stage, as stacked bars: a panel per concurrency, a bar per budget."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..schema import AcceptanceCell
from .plots import Panel, Plot, Table, frame_for, is_tree
from .svg import document, el, round_ticks, scale, tip
from .text import number

STAGES = ("draft", "build", "verify", "commit")
_LEFT, _RIGHT, _TOP, _BAR, _GAP = 44.0, 24.0, 6.0, 18.0, 8.0


def time_split(cells: Sequence[AcceptanceCell]) -> Plot | None:
    """Mean of the sampled steps; None where the payload did not time its stages."""
    timed = [one for one in cells if one.time_us]
    if not timed:
        return None
    regime = timed[0].regime  # a step's stages hardly depend on the text; the table has all regimes
    shown = [one for one in timed if one.regime == regime]
    levels = sorted({one.concurrency for one in shown})
    columns = min(2, len(levels))
    longest = max(_total(one) for one in shown)
    panels = tuple(
        Panel(
            heading=f"{regime} · concurrency {level}",
            svg=_bars(f"plot-split-{index}", [one for one in shown if one.concurrency == level], longest, columns),
        )
        for index, level in enumerate(levels)
    )
    return Plot(
        name="plot-split",
        label="Time split",
        title="Where a step's time goes",
        caption=f"Mean microseconds of the sampled steps, by {_clock(timed)}.",
        panels=panels,
        columns=columns,
        legend=tuple((_swatch(index), stage) for index, stage in enumerate(STAGES)),
        table=Table(
            head=("arm", "budget", "regime", "concurrency", *(f"{stage}, µs" for stage in STAGES), "sum, µs"),
            rows=tuple(_row(one) for one in timed),
        ),
    )


def _clock(cells: Sequence[AcceptanceCell]) -> str:
    names = {"gpu": "the GPU's own clock", "host": "the host's clock"}
    return " and ".join(dict.fromkeys(names.get(one.clock, "a clock that is not named") for one in cells))


def _row(cell: AcceptanceCell) -> tuple[str, ...]:
    times = cell.time_us or {}
    parts = (number(times.get(stage), 0) for stage in STAGES)
    return (cell.arm, _budget(cell), cell.regime, str(cell.concurrency), *parts, number(_total(cell), 0))


def _bars(name: str, cells: Sequence[AcceptanceCell], longest: float, columns: int) -> Markup:
    width = frame_for(columns).width
    ticks = round_ticks(0.0, longest)
    base = _TOP + len(cells) * (_BAR + _GAP)
    to_x = scale(0.0, ticks[-1], _LEFT, width - _RIGHT)
    grid = [
        part
        for value in ticks
        for part in (
            el("line", x1=to_x(value), x2=to_x(value), y1=_TOP, y2=base),
            el("text", number(value, 0), x=to_x(value), y=base + 15, class_="x"),
        )
    ]
    rows = []
    for index, cell in enumerate(cells):
        y, at = _TOP + _GAP / 2 + index * (_BAR + _GAP), 0.0
        rows.append(el("text", _budget(cell) or cell.arm, x=_LEFT - 6, y=y + 13, class_="y"))
        for stage, name_ in enumerate(STAGES):
            took = (cell.time_us or {}).get(name_, 0.0)
            left, right = to_x(at), to_x(at + took)
            note = tip(f"budget {_budget(cell)}, {name_}: {number(took, 0)} µs of {number(_total(cell), 0)}")
            rows.append(
                el("rect", note, x=left, y=y, width=max(0.0, right - left), height=_BAR, class_=f"stage{stage}")
            )
            at += took
    label = el("text", "µs per step", x=(width + _LEFT - _RIGHT) / 2, y=base + 32, class_="x")
    words = "; ".join(f"budget {_budget(one)}: {_total(one):.0f} µs" for one in cells)
    body = [el("g", *grid, class_="grid"), el("g", *rows, class_="stack"), el("g", label, class_="name")]
    title = f"Time split, {cells[0].regime}, concurrency {cells[0].concurrency}"
    return document(name, title, words, width, base + 40, body)


def _swatch(stage: int) -> Markup:
    rect = el("rect", x=1, y=2, width=24, height=10, rx=2, class_=f"stage{stage}")
    return el("svg", el("g", rect, class_="stack"), class_="key", viewBox="0 0 26 14", aria_hidden="true")


def _total(cell: AcceptanceCell) -> float:
    return sum((cell.time_us or {}).get(stage, 0.0) for stage in STAGES)


def _budget(cell: AcceptanceCell) -> str:
    return str(cell.budget) if is_tree(cell) else ""
