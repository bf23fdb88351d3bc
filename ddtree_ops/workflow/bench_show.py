"""A result on the terminal: what loses first, one line per cell, identity, gates, and what the words mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..bench.definitions import NAMES
from ..bench.gates import sentence
from ..bench.results import Folder, IdentityPair, IdentityReport

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = ("tok_per_s", "tokens_per_verify", "ttft_ms", "tpot_ms", "speedup_vs_ar")


def show(console: Console, folder: Folder) -> None:
    """Print everything that a folder concludes."""
    from ..ui.bench import show_summary

    summary = folder.summary
    if summary is None:
        return
    show_summary(console, summary)
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
