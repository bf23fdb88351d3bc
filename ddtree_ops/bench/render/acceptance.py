"""Figures about acceptance: by budget beside the offline curve, by depth, and where the first miss stood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..schema import AcceptanceCell, Cell, Offline, OfflinePoint
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
    regimes_of,
    setting,
    share,
    spread,
)
from .svg import Axis, Frame, Point, Series, chart, key
from .text import number, short


def accept_length(cells: Sequence[Cell], offline: Offline | None) -> Plot | None:
    """Tokens per verify step against the budget, a line per concurrency, beside the offline curve."""
    counted = [one for one in cells if one.tokens_per_verify is not None]
    trees = [one for one in counted if is_tree(one)]
    if not trees:
        return None
    looks = looks_for(sorted({one.concurrency for one in trees}))
    columns = columns_for(len(regimes_of(trees)))
    panels = [
        _accept_panel(
            f"plot-accept-{index}",
            [one for one in counted if one.regime == regime],
            _near(offline, regime, trees) if offline else (),
            looks,
            frame_for(columns),
        )
        for index, regime in enumerate(regimes_of(trees))
    ]
    legend = [(key(look), f"DDTREE, concurrency {level_}") for level_, look in looks.items()]
    if offline is not None:
        legend.append((key("offline"), f"expected: {offline.source or 'offline baseline'}"))
    rows = [(*setting(one), *spread(one.tokens_per_verify, 3), "server") for one in counted]
    return Plot(
        name="plot-accept",
        label="Accept length",
        title="Tokens per verify step against the budget",
        caption="Accepted drafts plus the target's own token, summed over requests. "
        + ("Dotted: what the recorded baseline expects." if offline else "No offline baseline was recorded."),
        panels=tuple(panels),
        columns=columns,
        legend=(*legend, *(one for one in control_legend(counted) if "DFLASH" in one[1])),
        table=Table(
            head=(*SETTING, "tokens/step", "low", "high", "from"),
            rows=(*rows, *(_offline_row(one) for one in (offline.points if offline else ()))),
            struck=invalid(counted),
        ),
    )


def _accept_panel(
    name: str, here: Sequence[Cell], curve: Sequence[OfflinePoint], looks: dict[str, str], frame: Frame
) -> Panel:
    regime = here[0].regime
    at = budget_positions([*(one.budget for one in here), *(one.budget for one in curve)])
    trees = sorted((one for one in here if is_tree(one)), key=lambda one: at[str(one.budget)])
    marks = [(one, point(at[str(one.budget)], one, one.tokens_per_verify)) for one in trees if one.tokens_per_verify]
    series = [
        Series(
            name=f"concurrency {concurrency}" + (", automatic" if auto else ""),
            look=look,
            joined=not auto,
            points=tuple(mark for cell, mark in marks if _is(cell, concurrency, auto)),
        )
        for concurrency, look in looks.items()
        for auto in (False, True)
        if not auto or "auto" in at
    ]
    expected = Series(name="offline", look="offline", points=tuple(_offline_points(curve, at)), marked=False)
    linear = [one for one in here if one.arm == "dflash" and one.valid and one.tokens_per_verify]
    words = [f"{one.name}: {', '.join(short(mark.y) for mark in one.points)}" for one in (*series, expected)]
    svg = chart(
        name,
        f"Tokens per verify step, {regime}",
        "; ".join(words),
        x=Axis(label="budget (draft nodes)", ticks=_ticks(at, [one.budget for one in trees])),
        y=Axis(label="tokens per verify step"),
        series=(expected, *series),
        levels=[level(one, one.tokens_per_verify) for one in linear[:1] if one.tokens_per_verify],
        frame=frame,
    )
    return Panel(heading=regime, svg=svg)


def _is(cell: Cell, concurrency: str, auto: bool) -> bool:
    return str(cell.concurrency) == concurrency and (cell.budget == "auto") is auto


def _near(offline: Offline, regime: str, trees: Sequence[Cell]) -> tuple[OfflinePoint, ...]:
    """The expected curve as far as twice the widest measured budget: a recording may go on for hundreds of nodes."""
    measured = [one.budget for one in trees if isinstance(one.budget, int)]
    widest = 2 * max(measured, default=512)
    return tuple(one for one in offline.curve(regime) if one.budget is not None and one.budget <= widest)


def _ticks(at: dict[str, float], measured: Sequence[int | str | None]) -> tuple[tuple[float, str], ...]:
    """Budgets that were measured, and the ends of the expected curve."""
    ticks = budget_ticks(at)
    wanted = {str(one) for one in measured} | {ticks[0][1], ticks[-1][1]}
    return tuple(one for one in ticks if one[1] in wanted)


def _offline_points(curve: Sequence[OfflinePoint], at: dict[str, float]) -> Iterable[Point]:
    for one in curve:
        note = f"offline, budget {one.budget}: {short(one.tokens_per_verify)}"
        yield Point(x=at[str(one.budget)], y=one.tokens_per_verify, low=one.low, high=one.high, note=note)


def _offline_row(one: OfflinePoint) -> tuple[str, ...]:
    name = "linear" if one.budget is None else str(one.budget)
    figures = (number(one.tokens_per_verify, 3), number(one.low, 3), number(one.high, 3))
    return ("", name, one.regime, "", *figures, "offline")


def by_depth(cells: Sequence[AcceptanceCell]) -> Plot | None:
    """How often the walk goes on at each depth, a line per budget."""
    counted = [one for one in _quietest(cells) if one.by_depth]
    if not counted:
        return None
    budgets = sorted({one.budget for one in counted if one.budget is not None}, key=lambda one: (one == "auto", one))
    looks = looks_for(budgets)
    regimes = regimes_of(counted)
    columns = columns_for(len(regimes))
    panels = [
        _depth_panel(f"plot-depth-{index}", [one for one in counted if one.regime == regime], looks, frame_for(columns))
        for index, regime in enumerate(regimes)
    ]
    rows = [
        (
            *setting(one),
            str(depth.depth),
            number(depth.reached, 0),
            number(depth.accepted, 0),
            share(depth.accepted, depth.reached),
        )
        for one in counted
        for depth in one.by_depth
    ]
    return Plot(
        name="plot-depth",
        label="By depth",
        title="Acceptance by depth",
        caption="Of the request-steps whose walk reached a depth, the share that accepted a node there.",
        panels=tuple(panels),
        columns=columns,
        legend=tuple((key(look), f"budget {budget}") for budget, look in looks.items()),
        table=Table(head=(*SETTING, "depth", "reached", "accepted", "share"), rows=tuple(rows)),
    )


def _depth_panel(name: str, here: Sequence[AcceptanceCell], looks: dict[str, str], frame: Frame) -> Panel:
    series = [
        Series(name=f"budget {one.budget}", look=looks[str(one.budget)], points=tuple(_depth_points(one)))
        for one in here
    ]
    depths = sorted({int(mark.x) for one in series for mark in one.points})
    svg = chart(
        name,
        f"Acceptance by depth, {_at(here[0])}",
        "; ".join(f"{one.name}: {', '.join(f'{mark.y:.0f}' for mark in one.points)} %" for one in series),
        x=Axis(label="depth (1: first draft token)", ticks=tuple((float(one), str(one)) for one in depths)),
        y=Axis(label="accepted of reached, %"),
        series=series,
        frame=frame,
    )
    return Panel(heading=_at(here[0]), svg=svg)


def _depth_points(cell: AcceptanceCell) -> Iterable[Point]:
    for one in cell.by_depth:
        if one.reached:
            note = f"budget {cell.budget}, depth {one.depth}: {number(one.accepted, 0)} of {number(one.reached, 0)}"
            yield Point(x=one.depth, y=100 * one.accepted / one.reached, note=note)


def first_miss(cells: Sequence[AcceptanceCell]) -> Plot | None:
    """Where the target's token stood among the drafter's candidates when the walk left the tree."""
    counted = [one for one in _widest(_quietest(cells)) if _misses(one)]
    if not counted:
        return None
    columns = columns_for(len(counted))
    panels = [_miss_panel(f"plot-miss-{index}", one, frame_for(columns)) for index, one in enumerate(counted)]
    rows = [
        (*setting(one), rank, number(count, 0), share(count, _misses(one)))
        for one in counted
        for rank, count in _ranks(one)
    ]
    return Plot(
        name="plot-miss",
        label="First miss",
        title="First-miss rank",
        caption="Rank of the token that the target wanted, at the node where the walk left the tree: what a larger "
        "budget could have caught. None: it was not among the drafter's candidates at all.",
        panels=tuple(panels),
        columns=columns,
        table=Table(head=(*SETTING, "rank", "misses", "share"), rows=tuple(rows)),
    )


def _miss_panel(name: str, one: AcceptanceCell, frame: Frame) -> Panel:
    total, ranks = _misses(one), _ranks(one)
    bars = [
        Point(x=index, y=100 * count / total, note=f"rank {rank}: {number(count, 0)} of {number(total, 0)}")
        for index, (rank, count) in enumerate(ranks)
    ]
    svg = chart(
        name,
        f"First-miss rank, {_at(one)}, budget {one.budget}",
        "; ".join(f"rank {rank}: {share(count, total)}" for rank, count in ranks),
        x=Axis(
            label="rank at the drafter (0: its best)",
            ticks=tuple((float(index), rank) for index, (rank, _) in enumerate(ranks)),
        ),
        y=Axis(label="share of first misses, %"),
        bars=bars,
        frame=frame,
    )
    return Panel(heading=f"{_at(one)}, budget {one.budget}", svg=svg)


def _ranks(one: AcceptanceCell) -> list[tuple[str, int]]:
    """Labels and counts: ranks 0 to 3 alone, then by powers of two where there are many, and no candidate at all."""
    counts = one.first_miss_rank
    size = len(counts)
    ends = range(1, size + 1) if size <= 10 else [1, 2, 3, *(1 << power for power in range(2, size.bit_length() + 1))]
    found, start = [], 0
    for end in (min(end, size) for end in ends):
        if end > start:
            label = str(start) if end == start + 1 else f"{start}-{end - 1}"
            found.append((label, sum(counts[start:end])))
            start = end
    return found if one.first_miss_outside is None else [*found, ("none", one.first_miss_outside)]


def _misses(one: AcceptanceCell) -> int:
    return sum(one.first_miss_rank) + (one.first_miss_outside or 0)


def _quietest(cells: Sequence[AcceptanceCell]) -> list[AcceptanceCell]:
    """Trees at the lowest concurrency: acceptance hardly depends on it, and one line per budget can be read."""
    trees = [one for one in cells if is_tree(one)]
    lowest = min((one.concurrency for one in trees), default=0)
    return [one for one in trees if one.concurrency == lowest]


def _widest(cells: Sequence[AcceptanceCell]) -> list[AcceptanceCell]:
    """The largest fixed budget of each regime."""
    found: dict[str, AcceptanceCell] = {}
    for one in cells:
        if one.regime not in found or _size(one) > _size(found[one.regime]):
            found[one.regime] = one
    return list(found.values())


def _size(cell: AcceptanceCell) -> int:
    return cell.budget if isinstance(cell.budget, int) else 0


def _at(cell: AcceptanceCell) -> str:
    return f"{cell.regime} · concurrency {cell.concurrency}"
