"""``make demo``: set up a throw-away host, do the whole job on it with the real command, take it back, prove it."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from demo.stage import ROOT, Job, SetupFailed, Stage, choose
from demo.summary import Result, left_behind, show
from demo.walk import StepStopped, Walk

BUDGET = 16


def set_up(console: Console, stage: Stage) -> float:
    """Run the stage's jobs, each with its line and clock; seconds."""
    start = time.monotonic()
    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description:<58}"),
        BarColumn(bar_width=12),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}[/]"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for job in stage.jobs():
            _one(console, progress, job)
    return time.monotonic() - start


def _one(console: Console, progress: Progress, job: Job) -> None:
    start = time.monotonic()
    task = progress.add_task(job.title, total=None, note=job.note)
    job.work()
    progress.update(task, total=1, completed=1, note="")
    if not console.is_terminal:
        console.print(f"ok {job.title} ({time.monotonic() - start:.1f} s)")


def play(console: Console, stage: Stage, folder: Path) -> Result:
    """The walk itself: look, plan, deploy, measure, ask, and take it back."""
    result = Result(budget=BUDGET, compared=stage.compared)
    result.setup_seconds = set_up(console, stage)
    stage.inventory()
    before = stage.differs()
    walk = result.walk = Walk(console, folder)
    try:
        walk.run("locate-source", note="Which of the copies on the host does the service really import?")
        walk.run("plan", "--baseline", "--diff", "-o", "plan.json", note="What a deploy would change; writes nothing.")
        note = "Holds to that plan. Two server starts: one without speculation as the control, one with DDTREE."
        walk.run("deploy", "--baseline", "--plan", "plan.json", "--yes", note=note)
        walk.run("bench", "--against-service", "--budget", str(BUDGET), "--out", "bench")
        walk.run("status")
        result.read(walk, folder / "bench")
        walk.run("rollback", "--yes", note="Back to the state before, proven by one root hash.")
        walk.run("purge", "--yes", note="And the tool's own state: journal, releases, snapshots.")
    except StepStopped as stopped:
        result.stopped = stopped
    result.left = left_behind(before, stage.differs())
    if result.good:
        stage.proven()
    return result


def _ended(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; exit 0 when every step did what it should, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="wait for Enter before the host is thrown away")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _ended)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    if sys.platform != "linux":
        console.print("The demo makes a host on this machine and needs Linux. Against a host of your own: README.md.")
        return 2
    folder = ROOT / ".demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stage, reason = choose(folder)
    text = f"The whole job of ddtree-ops, with the real command, against {stage.description}."
    if reason:
        text += f"\n\n[yellow]No real host here[/] ({reason}). Left out:\n" + "\n".join(
            f"- {x}" for x in stage.left_out
        )
    console.print(Panel(text, title="ddtree-ops demo", expand=False))
    return _guarded(console, stage, lambda: play(console, stage, folder), options.keep)


def _guarded(console: Console, stage: Stage, call: Callable[[], Result], keep: bool) -> int:
    try:
        result = call()
        show(console, result)
        if keep and sys.stdin.isatty():
            console.input(f"\nThe host is up; its inventory is {stage.folder}/inventory.yaml. Enter ends it. ")
        return 0 if result.good else 1
    except SetupFailed as failed:
        console.print(f"\n[bold red]stopped:[/] {failed}")
        return 1
    except KeyboardInterrupt:
        console.print("\ninterrupted; the host is being thrown away")
        return 130
    finally:
        stage.close()


if __name__ == "__main__":
    sys.exit(main())
