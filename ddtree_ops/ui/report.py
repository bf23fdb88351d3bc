"""The end of a deploy for people: what was done, how long each part took, and what proves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..bench.report import headline, identity_line


def show(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report of one host."""
    deployed = report["outcome"] == "deployed"
    state = "deployed" if deployed else "installed, but not healthy"
    console.print(
        Text.assemble(
            ("✓ " if deployed else "! ", "green" if deployed else "yellow"),
            (f"{report['host']}: ", "bold"),
            f"DDTREE build {str(report['build_id'])[:12]} is {state}",
            (f"  ({report.get('seconds', 0):.0f} s)", "dim"),
        )
    )
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for label, text in _rows(report):
        table.add_row(label, text)
    console.print(table)
    failure = report.get("failure")
    if failure:
        console.print(Text(f"  {failure['step']}: {failure['what']}", style="yellow"))
        console.print(Text("  left in place as the playbook says; ddtree-ops rollback takes it back", style="bold"))


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    seen = report["seen"]
    rows = [("tree", str(report["tree"]))]
    if report["unit"]:
        rows.append(("unit", str(report["unit"])))
    proof = seen.get("identity")
    if proof:
        processes = len(proof.get("processes", ()))
        rows.append(("proof", f"{processes} processes of the unit run build {str(proof.get('build_id', ''))[:12]}"))
    bench = seen.get("smoke")
    if bench:
        rows += [("bench", headline(bench)), ("identity", identity_line(bench))]
    gate = seen.get("gate")
    if gate:
        passed = sum(bool(one["passed"]) for one in gate["gates"])
        rows.append(("gates", f"{passed} of {len(gate['gates'])} passed; figures: {gate['folder']}"))
    rows.append(("rollback", f"brings back root hash {str(report['root_before'])[:16]}"))
    slow = sorted(report["steps"].items(), key=lambda item: -item[1])[:6]
    rows.append(("time", ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slow)))
    return rows
