"""Small static SVG charts: no library, no script, no font, no colour of their own (the page's CSS gives them all).

A chart scales with its place (``viewBox``), names itself for screen readers (``<title>``, ``<desc>``) and shows every
value under the pointer by a ``<title>`` per mark. Series differ by colour *and* by marker or dashes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from ...model import Value
from .text import short, visible

Position = Callable[[float], float]


def el(tag: str, *children: str | Markup, **attributes: str | float | int | None) -> Markup:
    """An element; text and attribute values are escaped, ``class_`` and ``stroke_width`` become their SVG names."""
    parts = [f"<{tag}"]
    for name, value in attributes.items():
        if value is not None:
            shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
            parts.append(f' {name.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    inner = "".join(str(escape(child)) for child in children)
    return Markup("".join(parts) + (f">{inner}</{tag}>" if children else "/>"))


class Point(Value, frozen=True, kw_only=True):
    """One mark: a value, perhaps its interval, and what the pointer shows. ``valid=False``: hollow and crossed."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    valid: bool = True


class Series(Value, frozen=True, kw_only=True):
    """Points in the order of x; ``look`` names a class of the style sheet (``s0`` to ``s7``, ``ref-ar``, …)."""

    name: str
    points: tuple[Point, ...]
    look: str = "s0"
    joined: bool = True
    marked: bool = True


class Level(Value, frozen=True, kw_only=True):
    """A horizontal reference line, with its interval as a band."""

    name: str
    y: float
    low: float | None = None
    high: float | None = None
    look: str = "ref-ar"
    note: str = ""


class Axis(Value, frozen=True, kw_only=True):
    """``ticks``: positions and labels; none given: round numbers. ``zero``: the axis starts at 0."""

    label: str
    ticks: tuple[tuple[float, str], ...] = ()
    zero: bool = True


class Frame(Value, frozen=True, kw_only=True):
    """Size of a chart in user units, and the room around it; the left one follows from the labels."""

    width: float = 360.0
    height: float = 236.0
    right: float = 10.0
    top: float = 26.0
    bottom: float = 42.0


_FRAME = Frame()


class Area(Value, frozen=True, kw_only=True):
    """Where the marks of a chart are."""

    left: float
    right: float
    top: float
    base: float


def round_ticks(low: float, high: float) -> list[float]:
    """Three to six round steps that cover ``low`` to ``high`` with the least left over."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    power = 10.0 ** math.floor(math.log10(high - low) - 1)
    found = []
    for step in (power * unit for unit in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0, 50.0)):
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if 3 <= last - first <= 6:
            found.append(((last - first) * step, last - first, step, first))
    _, count, step, first = min(found)
    return [round((first + index) * step, 10) for index in range(count + 1)]


def scale(low: float, high: float, start: float, end: float) -> Position:
    """A linear map; one value alone lies in the middle."""
    if high == low:
        return lambda _: (start + end) / 2
    return lambda value: start + (value - low) / (high - low) * (end - start)


def chart(
    name: str,
    title: str,
    description: str,
    *,
    x: Axis,
    y: Axis,
    series: Sequence[Series] = (),
    levels: Sequence[Level] = (),
    bars: Sequence[Point] = (),
    frame: Frame = _FRAME,
) -> Markup:
    """Lines, levels and bars over one pair of axes; ``name`` becomes the id."""
    points = [*(point for one in series for point in one.points), *bars]
    tops = [*_extent(points), *(value for one in levels for value in (one.y, one.low, one.high) if value is not None)]
    ticks = round_ticks(0.0 if y.zero else min(tops, default=0.0), max(tops, default=1.0))
    across = [point.x for point in points] + [at for at, _ in x.ticks]
    margin = 0.6 if bars else 0.0
    left = 12 + 6.6 * max(len(short(value)) for value in ticks)
    area = Area(left=left, right=frame.width - frame.right, top=frame.top, base=frame.height - frame.bottom)
    inset = 0.0 if bars else 10.0
    low, high = min(across, default=0.0), max(across, default=1.0)
    to_x = scale(low - margin, high + margin, area.left + inset, area.right - inset)
    to_y = scale(ticks[0], ticks[-1], area.base, area.top)
    labels = x.ticks or tuple((at, short(at)) for at in round_ticks(low, high) if low <= at <= high)
    body = [
        _grid(area, to_y, ticks),
        _x_axis(area, to_x, labels),
        _names(frame, area, x.label, y.label),
        *(_level(area, to_y, one) for one in levels),
        *(_bar(to_x, to_y, ticks[0], one, _bar_width(to_x)) for one in bars),
        *(_series(to_x, to_y, one) for one in series),
    ]
    return document(name, title, description, frame.width, frame.height, body)


def document(
    name: str,
    title: str,
    description: str,
    width: float,
    height: float,
    body: Iterable[str | Markup],
    *,
    look: str = "",
    fixed: bool = False,
) -> Markup:
    """The outer element: scales with its place (``fixed``: keeps its size), and says what it is."""
    return el(
        "svg",
        el("title", title, id=f"{name}-title"),
        el("desc", description, id=f"{name}-desc"),
        *body,
        id=name,
        class_=f"chart {look}".strip(),
        viewBox=f"0 0 {width:g} {height:g}",
        width=width if fixed else None,
        height=height if fixed else None,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def tip(text: str) -> Markup:
    """What the pointer shows on a mark."""
    return el("title", visible(text))


def _extent(points: Iterable[Point]) -> list[float]:
    return [value for one in points for value in (one.y, one.low, one.high) if value is not None]


def _grid(area: Area, to_y: Position, ticks: Sequence[float]) -> Markup:
    parts = []
    for value in ticks:
        at = to_y(value)
        parts.append(el("line", x1=area.left, x2=area.right, y1=at, y2=at))
        parts.append(el("text", short(value), x=area.left - 6, y=at + 4, class_="y"))
    return el("g", *parts, class_="grid")


def _x_axis(area: Area, to_x: Position, ticks: Sequence[tuple[float, str]]) -> Markup:
    parts = [el("line", x1=area.left, x2=area.right, y1=area.base, y2=area.base)]
    free = -1e9
    for value, label in ticks:
        at, half = to_x(value), 3.4 * len(label) + 3
        if at - half >= free:
            parts.append(el("text", label, x=at, y=area.base + 16))
            free = at + half
    return el("g", *parts, class_="axis")


def _names(frame: Frame, area: Area, x: str, y: str) -> Markup:
    across = el("text", x, x=(area.left + area.right) / 2, y=frame.height - 6)
    return el("g", across, el("text", y, x=0, y=10, class_="start"), class_="name")


def _level(area: Area, to_y: Position, level: Level) -> Markup:
    start, end = area.left, area.right
    parts = []
    if level.low is not None and level.high is not None and level.high > level.low:
        top = to_y(level.high)
        parts.append(el("rect", x=start, y=top, width=end - start, height=to_y(level.low) - top))
    parts.append(el("line", x1=start, x2=end, y1=to_y(level.y), y2=to_y(level.y)))
    # A line of two units is hard to meet with a pointer: an unseen wider one carries the text.
    note = tip(level.note or level.name)
    parts.append(el("line", note, x1=start, x2=end, y1=to_y(level.y), y2=to_y(level.y), class_="hit"))
    return el("g", *parts, class_=f"level {level.look}")


def _bar_width(to_x: Position) -> float:
    return max(2.0, min(34.0, (to_x(1.0) - to_x(0.0)) * 0.72))


def _bar(to_x: Position, to_y: Position, floor: float, point: Point, width: float) -> Markup:
    at, top, base = to_x(point.x), to_y(point.y), to_y(floor)
    rect = el("rect", tip(point.note), x=at - width / 2, y=top, width=width, height=max(0.5, base - top), rx=1.5)
    return el("g", rect, class_="bar" if point.valid else "bar weak")


def _series(to_x: Position, to_y: Position, series: Series) -> Markup:
    parts = []
    for run in _runs(series.points) if series.joined else ():
        path = " ".join(f"{to_x(one.x):.1f},{to_y(one.y):.1f}" for one in run)
        parts.append(el("polyline", points=path))
    for point in series.points:
        parts += _whisker(to_x, to_y, point)
    if series.marked:
        parts += [_mark(to_x(one.x), to_y(one.y), one, series.look) for one in series.points]
    return el("g", *parts, class_=f"series {series.look}")


def _runs(points: Iterable[Point]) -> list[list[Point]]:
    """Neighbours that a line may join: it does not bridge what is not valid."""
    groups = [list(group) for valid, group in itertools.groupby(points, key=lambda one: one.valid) if valid]
    return [group for group in groups if len(group) > 1]


def _whisker(to_x: Position, to_y: Position, point: Point) -> list[Markup]:
    if point.low is None or point.high is None or point.high <= point.low:
        return []
    at, top, low = to_x(point.x), to_y(point.high), to_y(point.low)
    path = f"M{at - 3:.1f} {top:.1f}h6M{at:.1f} {top:.1f}V{low:.1f}M{at - 3:.1f} {low:.1f}h6"
    return [el("path", d=path, class_="whisker")]


_CROSS = "M-4-4L4 4M-4 4L4-4"
_SHAPES = {
    "s0": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "s1": "M-3.6-3.6h7.2v7.2h-7.2Z",
    "s2": "M0-4.8L4.6 3.4H-4.6Z",
    "s3": "M0-5L5 0L0 5L-5 0Z",
    "s4": "M0 4.8L-4.6-3.4H4.6Z",
    "s5": "M-4.6-1.6h3v-3h3.2v3h3v3.2h-3v3h-3.2v-3h-3Z",
    "s6": "M-5.2-2h10.4v4H-5.2Z",
    "s7": "M-2-5.2h4v10.4h-4Z",
}


def _mark(x: float, y: float, point: Point, look: str) -> Markup:
    shape = _SHAPES.get(look, _SHAPES["s0"]) if point.valid else _CROSS
    return el(
        "path",
        tip(point.note),
        d=shape,
        transform=f"translate({x:.1f} {y:.1f})",
        class_="mark" if point.valid else "mark invalid",
    )


def key(look: str) -> Markup:
    """The sample of a look for a legend beside the charts."""
    line = el("line", x1=1, x2=25, y1=7, y2=7, class_="stroke")
    shape = _CROSS if look == "invalid" else _SHAPES.get(look)
    mark = [el("path", d=shape, transform="translate(13 7)", class_=f"mark {look}")] if shape else []
    parts = mark if look == "invalid" else [line, *mark]
    group = "level" if look.startswith("ref-") else "series"
    return el("svg", el("g", *parts, class_=f"{group} {look}"), class_="key", viewBox="0 0 26 14", aria_hidden="true")
