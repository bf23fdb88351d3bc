"""What the demo showed, on one screen; every line is read from the tool's JSON or measured beside it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.walk import StepStopped, Walk

# What a serving host writes by itself and no deploy tool owns: byte code, caches, the tool's own state (until `purge`).
STATE = "/var/lib/ddtree-ops"
_BY_ITSELF = ("/root/.cache", "/root/.triton", "/root/.config", "/dev/shm", "/tmp", "/run")


def left_behind(before: dict[str, Any], after: dict[str, Any]) -> Counter[str]:
    """Count what differs on the host's disk between two looks, by kind; ``"changed"`` must be 0 after a rollback."""
    found: Counter[str] = Counter()
    for path in before.keys() | after.keys():
        if path in before and path in after and before[path] == after[path]:
            continue
        if path == STATE or path.startswith(f"{STATE}/"):
            found["the tool's own state (until purge)"] += 1
        elif "__pycache__" in path:
            found["byte code written by Python"] += 1
        elif path.startswith(_BY_ITSELF):
            found["caches and temporary files of the server"] += 1
        else:
            found["changed"] += 1
            found[f"changed: {path}"] += 1
    return found


@dataclass
class Result:
    """What came out."""

    budget: int
    setup_seconds: float = 0.0
    walk: Walk | None = None
    stopped: StepStopped | None = None
    left: Counter[str] = field(default_factory=Counter)
    bench: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)
    rollback: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Every command ended as it should, and nothing of the host is changed after the rollback."""
        return self.stopped is None and self.left["changed"] == 0

    def read(self, walk: Walk, bench: Path) -> None:
        """The JSON of bench and status."""
        files = sorted(bench.rglob("*.json"))
        self.bench = json.loads(files[-1].read_text()) if files else {}
        self.status = walk.ask("status")

    def read_rollback(self, walk: Walk) -> None:
        """What the host says after the rollback."""
        self.rollback = walk.ask("status")


def show(console: Console, result: Result) -> None:
    """The end summary."""
    table = Table(title="demo", title_justify="left", show_header=True, box=None, pad_edge=False)
    table.add_column("step")
    table.add_column("time", justify="right")
    table.add_column("result")
    table.add_row("set-up", f"{result.setup_seconds:.1f} s", "[dim]downloads included[/]")
    for step in result.walk.steps if result.walk else []:
        mark = "[green]ok[/]" if step.code == 0 else f"[red]exit {step.code}[/]"
        table.add_row(step.words[0], f"{step.seconds:.1f} s", mark)
    total = result.setup_seconds + (result.walk.seconds if result.walk else 0)
    table.add_row("in all", f"{total:.1f} s", "")
    console.print()
    console.print(table)
    for kind, count in sorted(result.left.items()):
        if not kind.startswith("changed"):
            console.print(f"  after the rollback, new on the host's disk: {count:5d}  {kind}")
    changed = [path for path in result.left if path.startswith("changed: ")]
    if changed:
        console.print(f"[red]changed and not taken back: {len(changed)}[/]")
        for path in sorted(changed)[:20]:
            console.print(f"  {path.removeprefix('changed: ')}")
    elif result.walk:
        console.print("  everything else on the disk is as it was, path by path (content, mode, owner)")
    if result.stopped:
        console.print(f"[bold red]{result.stopped}[/]")
