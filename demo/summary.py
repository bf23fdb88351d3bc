"""What the demo showed, on one screen; every line is read from the tool's JSON or measured beside the tool."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from demo.walk import StepStopped, Walk

# What a serving host writes by itself and no deploy tool owns: caches of the model code, temporary files.
_BY_ITSELF = ("/root/.cache", "/root/.triton", "/root/.config", "/root/.local", "/dev/shm", "/tmp", "/run")
_CHANGED = "changed: "


def left_behind(before: dict[str, Any], after: dict[str, Any]) -> Counter[str]:
    """Count what differs on the host's disk between two looks, by kind; a ``changed: PATH`` is one that must not be."""
    found: Counter[str] = Counter()
    for path in before.keys() | after.keys():
        if path in before and path in after and before[path] == after[path]:
            continue
        if "__pycache__" in path:
            found["byte code"] += 1
        elif path.startswith(_BY_ITSELF):
            found["server caches"] += 1
        else:
            found[_CHANGED + path] += 1
    return found


@dataclass
class Result:
    """What came out."""

    budget: int
    setup_seconds: float = 0.0
    walk: Walk | None = None
    stopped: StepStopped | None = None
    compared: str = "disk"
    left: Counter[str] = field(default_factory=Counter)
    located: dict[str, Any] = field(default_factory=dict)
    bench: dict[str, Any] = field(default_factory=dict)
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        """Paths that are not as they were and should be."""
        return sorted(name.removeprefix(_CHANGED) for name in self.left if name.startswith(_CHANGED))

    @property
    def good(self) -> bool:
        """Every command ended as it should, and nothing of the host is changed after the rollback."""
        return self.stopped is None and not self.changed

    def read(self, walk: Walk, bench: Path) -> None:
        """The JSON of locate-source, bench and status."""
        files = sorted(bench.glob("*.json"))
        self.bench = json.loads(files[-1].read_text()) if files else {}
        self.located, self.status = (walk.ask(name)["hosts"][0] for name in ("locate-source", "status"))

    def rows(self) -> dict[str, str]:
        """What each command showed, by its name."""
        if not self.status:
            return {}
        figures, counters = self.bench["figures"], self.bench["counters"]
        identity, deployment = self.bench["identity"], self.status["deployment"]
        budget = self.bench["conditions"]["budget"]
        counts = identity["counts"]
        near = f", {counts['near_tie']} at a near tie" if counts["near_tie"] else ""
        return {
            "deploy": f"build {deployment['build_id'][:12]} by {deployment['strategy']}, as a {self._service()}",
            "bench": (
                f"{figures['tokens_per_verify_step']:.2f} tokens per verify step at budget {budget};"
                f" {counters['non_first_accepted']} accepted nodes were not the drafter's first choice\n"
                f"greedy output: {counts['equal']} of {sum(counts.values())} answers equal to the same server without"
                f" speculation{near} ({identity['tokens']} tokens)"
            ),
            "status": f"{len(self.status['beacons'])} processes report that build",
            "rollback": f"root hash {deployment['root_before'][:16]}, the one before the deploy",
        }

    def _service(self) -> str:
        systemd = self.status["deployment"]["settings"].get("init", "systemd") == "systemd"
        return "systemd unit" if systemd else "process group"


def show(console: Console, result: Result) -> None:
    """The end summary."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("step")
    table.add_column("seconds", justify="right")
    table.add_column("")
    table.add_row("set-up", f"{result.setup_seconds:.1f}", "[dim]downloads included[/]")
    rows = result.rows()
    for step in result.walk.steps if result.walk else []:
        text = rows.get(step.words[0], "") if step.code == 0 else f"[red]exit {step.code}[/]"
        table.add_row(step.words[0], f"{step.seconds:.1f}", text)
    total = result.setup_seconds + (result.walk.seconds if result.walk else 0.0)
    table.add_row("[bold]in all[/]", f"[bold]{total:.1f}[/]", _disk(result))
    title = "[green]all as it should be[/]" if result.good else "[red]not as it should be[/]"
    console.print()
    console.print(Panel(table, title=f"demo: {title}", title_align="left", expand=False))
    for path in result.changed[:20]:
        console.print(f"  [red]changed and not taken back:[/] {path}")
    if result.stopped:
        console.print(f"[bold red]{result.stopped}[/]; what it said is above")


def _disk(result: Result) -> str:
    if not result.walk:
        return ""
    kinds = {kind: count for kind, count in result.left.items() if not kind.startswith(_CHANGED)}
    new = "; new: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())) if kinds else ""
    state = f"{len(result.changed)} paths changed" if result.changed else "every path as before (content, mode, owner)"
    return f"{result.compared}: {state}{new}"
