"""Progress of the steps of a run: a live list on a terminal, one line per step elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .console import Output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Steps:
    """Shows steps as they run; :attr:`seconds` keeps what each took.

    Use as a context manager around the whole run; :meth:`step` around each step; :meth:`event` for the events that the
    host program sends while a verb runs (``{"kind": "progress", "text": ..., "done": n, "total": m}``).
    """

    def __init__(self, output: Output, host: str = "") -> None:
        self.output = output
        self.host = host
        self.seconds: dict[str, float] = {}
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._title = ""
        self._last = 0.0

    def __enter__(self) -> Steps:
        if self.output.live:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                SpinnerColumn(finished_text="[green]✓[/]"),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=18),
                TimeElapsedColumn(),
                TextColumn("[dim]{task.fields[note]}"),
                console=self.output.err,
            )
            self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._progress:
            self._progress.stop()

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """One step: its line appears at once, and is closed with its time or a cross."""
        self._title, start = title, time.monotonic()
        if self._progress:
            self._task = self._progress.add_task(title, total=None, note="")
        try:
            yield
        except BaseException:
            self._close(name, start, ok=False)
            raise
        self._close(name, start, ok=True)

    def _close(self, name: str, start: float, *, ok: bool) -> None:
        took = self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
        if self._progress and self._task is not None:
            mark = "" if ok else "failed"
            self._progress.update(self._task, total=1, completed=1 if ok else 0, note=mark)
            if not ok:
                self._progress.stop_task(self._task)
        else:
            prefix = f"{self.host}: " if self.host else ""
            self.output.note(f"{prefix}{'ok    ' if ok else 'FAILED'} {self._title} ({took:.1f} s)")
        self._task = None

    def event(self, event: Mapping[str, Any]) -> None:
        """Show what the host says; heartbeats only keep the clock running."""
        text = str(event.get("text", ""))
        if not text:
            return
        done, total = event.get("done"), event.get("total")
        if self._progress and self._task is not None:
            self._progress.update(self._task, note=text[:70], completed=done or 0, total=total or None)
        elif self.output.verbosity >= 1 or time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            share = f" {done}/{total}" if total else ""
            self.output.note(f"  … {text}{share}", style="dim")
