"""A result on the terminal: what loses first, one line per cell, identity, gates, and what the words mean."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..bench.definitions import NAMES
from ..bench.gates import sentence
from ..bench.results import Cell, Folder, IdentityPair, IdentityReport, Interval, Percentiles

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SHOWN = ("tok_per_s", "tokens_per_verify", "ttft_ms", "tpot_ms", "speedup_vs_ar")


def show(console: Console, folder: Folder) -> None:
    """Print everything that a folder concludes."""
    summary = folder.summary
    if summary is None:
        return
    for index, line in enumerate(summary.headline):
        bad = line.startswith(("SLOWER", "INVALID"))
        console.print(line, style="bold red" if bad else "bold" if index == 0 else "", soft_wrap=True)
    console.print(table(summary.cells))
    for cell in summary.cells:
        for note in (*cell.failures[:3], *cell.notes[:3]):
            console.print(f"{cell.name}: {note}", style="yellow", soft_wrap=True)
    if folder.identity is not None:
        _show_identity(console, folder.identity)
    if folder.auto is not None:
        for line in folder.auto.text:
            console.print(line, soft_wrap=True)
    if folder.gates is not None:
        for gate in folder.gates.gates:
            console.print(
                f"{'passed' if gate.passed else 'FAILED'}: {sentence(gate)}",
                style="green" if gate.passed else "bold red",
                soft_wrap=True,
            )
    for name in _SHOWN:
        if name in summary.definitions:
            console.print(f"{NAMES.get(name, name)}: {summary.definitions[name]}", style="dim", soft_wrap=True)


def table(cells: Iterable[Cell]) -> Table:
    """One line per cell; a cell that is INVALID is marked, its figures stay for the search."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (
        ("arm", "left"),
        ("regime", "left"),
        ("at once", "right"),
        ("tokens/s", "right"),
        ("per verify", "right"),
        ("first, ms", "right"),
        ("token, ms", "right"),
        ("x plain", "right"),
        ("x DFLASH", "right"),
        ("", "left"),
    ):
        found.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for cell in cells:
        budget = "" if cell.budget is None else f" {cell.budget}"
        found.add_row(
            f"{cell.arm}{budget}",
            cell.regime,
            str(cell.concurrency),
            _interval(cell.tok_per_s, 1),
            _interval(cell.tokens_per_verify, 2),
            _middle(cell.ttft_ms),
            _middle(cell.tpot_ms),
            _interval(cell.speedup_vs_ar, 2),
            _interval(cell.speedup_vs_dflash, 2),
            "" if cell.valid else "INVALID",
            style="" if cell.valid else "red",
        )
    return found


def _interval(found: Interval | None, digits: int) -> str:
    if found is None:
        return "-"
    if found.low == found.high:
        return f"{found.median:.{digits}f}"
    return f"{found.median:.{digits}f} ({found.low:.{digits}f}-{found.high:.{digits}f})"


def _middle(found: Percentiles | None) -> str:
    return "-" if found is None else f"{found.p50:.1f}"


def _show_identity(console: Console, report: IdentityReport) -> None:
    if report.floor is not None:
        console.print(f"identity, floor: plain decoding at concurrency {report.floor.concurrency} against one by one: "
                      f"{report.floor.text}", soft_wrap=True)  # fmt: skip
    for pair in report.pairs:
        style = "" if pair.verdict == "ok" else "bold red"
        console.print(f"identity, {_pair(pair)}: {pair.text}", style=style, soft_wrap=True)
    console.print(report.rule, style="dim", soft_wrap=True)


def _pair(pair: IdentityPair) -> str:
    budget = "" if pair.budget is None else f" budget {pair.budget}"
    return f"{pair.arm}{budget}, concurrency {pair.concurrency}"
