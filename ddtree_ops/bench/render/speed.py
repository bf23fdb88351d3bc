"""Figures about speed: tokens/s against the budget, the cost of a verify step, prediction against measurement."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ..schema import Auto, Cell, Cost, Prediction
from .plots import (
    SETTING,
    Panel,
    Plot,
    Table,
    budget_positions,
    budget_ticks,
    columns_for,
    control_legend,
    frame_for,
    invalid,
    is_tree,
    level,
    looks_for,
    point,
    setting,
    settings_of,
    spread,
)
from .svg import Axis, Frame, Point, Series, chart, key
from .text import number, short

_BUDGET = "budget (draft nodes)"


def throughput(cells: Sequence[Cell]) -> Plot | None:
    """Tokens per second against the budget: a panel per regime and concurrency, AR and DFLASH as lines."""
    counted = [one for one in cells if one.tok_per_s is not None]
    settings = settings_of(counted)
    if not settings:
        return None
    levels = len({concurrency for _, concurrency in settings})
    columns = columns_for(levels if levels > 1 else len(settings))
    panels = [
        _throughput_panel(
            f"plot-throughput-{index}",
            [one for one in counted if (one.regime, one.concurrency) == here],
            frame_for(columns),
        )
        for index, here in enumerate(settings)
    ]
    return Plot(
        name="plot-throughput",
        label="Throughput",
        title="Tokens per second against the budget",
        caption="Of the whole server, median of the measured rounds; whiskers and bands are 95 % bootstrap intervals. "
        "Axes start at zero, and each panel has its own.",
        panels=tuple(panels),
        columns=columns,
        legend=(*_tree_legend(counted), *control_legend(counted)),
        table=Table(
            head=(*SETTING, "tokens/s", "low", "high", "rounds"),
            rows=tuple((*setting(one), *spread(one.tok_per_s, 1), str(one.runs)) for one in cells),
            struck=invalid(cells),
        ),
    )


def _throughput_panel(name: str, here: Sequence[Cell], frame: Frame) -> Panel:
    regime, concurrency = here[0].regime, here[0].concurrency
    at = budget_positions(one.budget for one in here)
    trees = sorted((one for one in here if is_tree(one)), key=lambda one: at[str(one.budget)])
    marks = [(one, point(at[str(one.budget)], one, one.tok_per_s)) for one in trees if one.tok_per_s]
    levels = [level(one, one.tok_per_s) for one in here if not is_tree(one) and one.tok_per_s and one.valid]
    words = [f"{one.name} {short(one.y)}" for one in levels]
    words += [f"budget {cell.budget} {short(mark.y)}{'' if cell.valid else ' (INVALID)'}" for cell, mark in marks]
    svg = chart(
        name,
        f"Tokens per second, {regime}, concurrency {concurrency}",
        "; ".join(words),
        x=Axis(label=_BUDGET, ticks=budget_ticks(at)),
        y=Axis(label="tokens/s"),
        series=(
            Series(name="DDTREE", look="s0", points=tuple(mark for cell, mark in marks if cell.budget != "auto")),
            Series(name="auto", look="s3", points=tuple(mark for cell, mark in marks if cell.budget == "auto")),
        ),
        levels=levels,
        frame=frame,
    )
    return Panel(heading=f"{regime} · concurrency {concurrency}", svg=svg)


def _tree_legend(cells: Sequence[Cell]) -> list[tuple[Markup, str]]:
    trees = [one for one in cells if is_tree(one)]
    legend = [(key("s0"), "DDTREE")] if any(one.budget != "auto" for one in trees) else []
    if any(one.budget == "auto" for one in trees):
        legend.append((key("s3"), "DDTREE, automatic budget"))
    if any(not one.valid for one in trees):
        legend.append((key("invalid"), "INVALID: not to be quoted"))
    return legend


def verify_cost(costs: Sequence[Cost]) -> Plot | None:
    """Time of a verify step against its width, a line per batch."""
    if not costs:
        return None
    ordered = sorted(costs, key=lambda one: (one.batch, one.width))
    looks = looks_for(dict.fromkeys(one.batch for one in ordered))
    series = [
        Series(
            name=f"batch {batch}",
            look=look,
            points=tuple(
                Point(
                    x=one.width,
                    y=one.verify_us,
                    note=f"batch {batch}, width {one.width}: {number(one.verify_us, 0)} µs",
                )
                for one in ordered
                if str(one.batch) == batch
            ),
        )
        for batch, look in looks.items()
    ]
    svg = chart(
        "plot-cost-0",
        "Verify cost against width",
        "; ".join(f"{one.name}: {one.points[0].y:.0f} to {one.points[-1].y:.0f} µs" for one in series),
        x=Axis(
            label="verify width (budget + 1)",
            ticks=tuple((float(width), str(width)) for width in sorted({one.width for one in costs})),
        ),
        y=Axis(label="µs per verify step"),
        series=series,
        frame=frame_for(1),
    )
    return Plot(
        name="plot-cost",
        label="Verify cost",
        title="What a verify step costs",
        caption="Captured verify graphs, replayed at start-up, by requests in the batch. A flat line: width is free.",
        panels=(Panel(heading="", svg=svg),),
        legend=tuple((key(look), f"batch {batch}") for batch, look in looks.items()),
        table=Table(
            head=("batch", "width", "µs"),
            rows=tuple((str(one.batch), str(one.width), number(one.verify_us, 0)) for one in ordered),
        ),
    )


def prediction(auto: Auto | None) -> Plot | None:
    """Predicted and measured tokens per second, per regime and concurrency."""
    if auto is None or not auto.predictions:
        return None
    groups: dict[str, list[Prediction]] = {}
    for one in auto.predictions:
        groups.setdefault(f"{one.regime} · concurrency {one.concurrency}", []).append(one)
    columns = columns_for(len(groups))
    panels = [
        _prediction_panel(f"plot-auto-{index}", heading, here, frame_for(columns))
        for index, (heading, here) in enumerate(groups.items())
    ]
    best = ", ".join(f"{budget} at concurrency {where}" for where, budget in auto.recommended.items())
    return Plot(
        name="plot-auto",
        label="Automatic budget",
        title="Automatic budget: prediction against measurement",
        caption="Predicted from the verify-cost curve and the acceptance that each budget would have had in recorded "
        f"trees; measured where it was tried. Recommended: {best or 'none'}.",
        panels=tuple(panels),
        columns=columns,
        legend=((key("s1"), "predicted"), (key("s0"), "measured")),
        table=Table(head=_PREDICTED, rows=tuple(_prediction_row(one) for one in auto.predictions)),
    )


def _prediction_panel(name: str, heading: str, found: Sequence[Prediction], frame: Frame) -> Panel:
    here = sorted(found, key=lambda one: one.budget)
    at = budget_positions(one.budget for one in here)
    predicted, measured = [], []
    for one in here:
        x, budget = at[str(one.budget)], f"budget {one.budget}"
        predicted.append(Point(x=x, y=one.tok_per_s, note=f"{budget}, predicted: {short(one.tok_per_s)}"))
        if one.measured_tok_per_s is not None:
            note = f"{budget}, measured: {short(one.measured_tok_per_s)} ({off(one)})"
            measured.append(Point(x=x, y=one.measured_tok_per_s, note=note))
    svg = chart(
        name,
        f"Prediction and measurement, {heading}",
        "; ".join(f"budget {one.budget}: {short(one.tok_per_s)}, {short(one.measured_tok_per_s)}" for one in here),
        x=Axis(label=_BUDGET, ticks=budget_ticks(at)),
        y=Axis(label="tokens/s"),
        series=(
            Series(name="predicted", look="s1", points=tuple(predicted)),
            Series(name="measured", look="s0", points=tuple(measured), joined=False),
        ),
        frame=frame,
    )
    return Panel(heading=heading, svg=svg)


_PREDICTED = (
    "regime",
    "concurrency",
    "budget",
    "predicted tokens/s",
    "measured tokens/s",
    "off by",
    "predicted tokens/step",
    "measured tokens/step",
    "predicted µs/step",
)


def _prediction_row(one: Prediction) -> tuple[str, ...]:
    return (
        one.regime,
        str(one.concurrency),
        str(one.budget),
        number(one.tok_per_s, 1),
        number(one.measured_tok_per_s, 1),
        off(one),
        number(one.tokens_per_verify, 2),
        number(one.measured_tokens_per_verify, 2),
        number(one.step_us, 0),
    )


def off(one: Prediction) -> str:
    """How far the prediction was from the measurement: ``+3.1 %``."""
    if not one.measured_tok_per_s:
        return number(None)
    return f"{100 * (one.tok_per_s / one.measured_tok_per_s - 1):+.1f} %"
