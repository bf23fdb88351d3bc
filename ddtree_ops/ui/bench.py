"""Bench results on a terminal: 80 columns hold a line, colours only where somebody watches, words of hosts defused."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.diff import WORDS, Diff, Difference, Judgement, name
from ..bench.render.document import glance, loses, ordered, shared_notes
from ..bench.render.text import DASH, visible
from ..bench.schema import Cell, Interval, Summary

_STYLE = {"better": "green", "worse": "bold red"}
_MOST = 24  # conditions that differ; --json has all


def show_summary(console: Console, summary: Summary) -> None:
    """The end of a bench: what loses first, a line per cell, and what explains a cell or makes it INVALID."""
    for index, line in enumerate(summary.headline):
        style = "bold red" if line.startswith(("SLOWER", "INVALID")) else "bold" if index == 0 else ""
        console.print(Text(visible(line), style=style))
    console.print(cells_table(summary.cells))
    shared = shared_notes(summary.cells)
    for note in shared:
        console.print(Text(f"all cells: {visible(note)}", style="yellow"))
    for cell in summary.cells:
        if not cell.valid:
            console.print(Text(f"INVALID {visible(cell.name)}: {visible('; '.join(cell.why))}", style="red"))
        for note in (*cell.failures[:3], *(one for one in cell.notes[:3] if one not in shared)):
            console.print(Text(f"{visible(cell.name)}: {visible(note)}", style="yellow"))


def cells_table(cells: Sequence[Cell]) -> Table:
    """One line per cell, grouped by regime and concurrency; the fastest valid tree of each group is bold."""
    best = {id(one.best) for one in glance(cells)}
    table = _table(("arm", "tokens/s", "95 %", "per step", "first ms", "× AR", "× DFLASH"))
    settings: dict[tuple[str, int, float], list[Cell]] = {}
    for cell in ordered(cells):
        settings.setdefault((cell.regime, cell.concurrency, cell.temperature), []).append(cell)
    for (regime, concurrency, temperature), here in settings.items():
        heat = f", temperature {temperature:g}" if temperature else ""
        table.add_row(Text(f"{visible(regime)}, concurrency {concurrency}{heat}", style="cyan"))
        for cell in here:
            table.add_row(*_cell_row(cell), style="bold" if id(cell) in best else "")
        table.add_section()
    return table


def _cell_row(cell: Cell) -> tuple[Text, ...]:
    arm = f"  {visible(cell.arm)}" + ("" if cell.budget is None else f" {cell.budget}")
    style = "" if cell.valid else "red strike"
    values = (
        _middle(cell.tok_per_s, 1),
        _range(cell.tok_per_s, 0),
        _middle(cell.tokens_per_verify, 2),
        DASH if cell.ttft_ms is None else f"{cell.ttft_ms.p50:.1f}",
    )
    speedups = [
        Text(_middle(one, 2), style=_STYLE.get(loses(one), "")) for one in (cell.speedup_vs_ar, cell.speedup_vs_dflash)
    ]
    name_ = Text(arm, style=style)
    if not cell.valid:
        name_.append(" INVALID", style="bold red")
    return (name_, *(Text(value, style=style) for value in values), *speedups)


def show_diff(console: Console, found: Diff) -> None:
    """Conditions that differ, then every cell that both folders have."""
    console.print(Text.assemble(("A ", "bold"), visible(found.a), "\n", ("B ", "bold"), visible(found.b)))
    _show_conditions(console, found.conditions)
    if found.cells:
        console.print(_diff_table(found))
    for label, only in (("only in A", found.only_a), ("only in B", found.only_b)):
        if only:
            console.print(Text(f"{label}: {visible('; '.join(only))}", style="dim"))
    for why in dict.fromkeys(f"{name(one)}: {one.why}" if "INVALID" in one.why else one.why for one in found.cells):
        if why:
            console.print(Text(f"not compared: {visible(why)}", style="yellow"))
    console.print(Text(diff_sentence(found), style="bold"))


def _show_conditions(console: Console, conditions: Sequence[Difference]) -> None:
    if not conditions:
        console.print(Text("same conditions", style="green"))
        return
    console.print(Text("conditions that differ", style="bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for one in conditions[:_MOST]:
        text = Text(f"{visible(one.a) or DASH} → {visible(one.b) or DASH}", style="yellow" if one.work else "")
        table.add_row(f"  {visible(one.name)}", text)
    console.print(table)
    if len(conditions) > _MOST:
        console.print(Text(f"  and {len(conditions) - _MOST} more; --json has all", style="dim"))


def _diff_table(found: Diff) -> Table:
    table = _table(("tokens/s", "A", "B", "B/A", "95 %", "", "tokens/step B/A"))
    groups: dict[str, list[tuple[Text, ...]]] = {}
    for one in found.cells:
        speed, accept = one.figure("tok_per_s"), one.figure("tokens_per_verify")
        arm = f"  {visible(one.arm)}" + ("" if one.budget is None else f" {one.budget}")
        heat = f" T={one.temperature:g}" if one.temperature else ""
        groups.setdefault(f"{one.regime} c={one.concurrency}{heat}", []).append(
            (
                Text(arm),
                Text(_middle(speed.a, 1)),
                Text(_middle(speed.b, 1)),
                Text(_middle(speed.ratio, 3)),
                Text(_range(speed.ratio, 3)),
                _judgement(speed.judgement),
                _judgement(accept.judgement, _middle(accept.ratio, 3)),
            )
        )
    for setting, rows in groups.items():
        table.add_row(Text(visible(setting), style="cyan"))
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def _judgement(found: Judgement, figure: str = "") -> Text:
    short = {"same": "within noise", "unjudged": "one sample", "not compared": DASH}
    word = short.get(found, found)
    return Text(f"{figure} {word}".strip() if found != "not compared" else DASH, style=_STYLE.get(found, "dim"))


def diff_sentence(found: Diff) -> str:
    """How the cells fell, in one line."""
    if not found.cells:
        return "no cell in common: nothing can be compared"
    counts: dict[Judgement, int] = {}
    for one in found.cells:
        judgement = one.figure("tok_per_s").judgement
        counts[judgement] = counts.get(judgement, 0) + 1
    parts = [f"{counts[key]} {words}" for key, words in WORDS.items() if key in counts]
    return f"tokens/s of {len(found.cells)} cells: {', '.join(parts)}"


def _table(head: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", collapse_padding=True)
    for index, title in enumerate(head):
        table.add_column(title, justify="left" if index == 0 else "right", no_wrap=index > 0, overflow="fold")
    return table


def _middle(found: Interval | None, digits: int) -> str:
    return DASH if found is None else f"{found.median:.{digits}f}"


def _range(found: Interval | None, digits: int) -> str:
    if found is None or found.high <= found.low:
        return DASH
    return f"{found.low:.{digits}f}-{found.high:.{digits}f}"
