"""Progress of the steps of a run: a live list on a terminal, one line per step elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
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
                TextColumn("{task.fields[note]}", style="dim", markup=False),
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
        self._try(self._open)
        try:
            yield
        except BaseException:
            self._close(name, start, ok=False)
            raise
        self._close(name, start, ok=True)

    def _open(self) -> None:
        self._last = time.monotonic()
        if self._progress:
            self._task = self._progress.add_task(self._title, total=None, note="")

    def _close(self, name: str, start: float, *, ok: bool) -> None:
        took = self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start
        self._try(lambda: self._show_end(took, ok))
        self._task = None

    def _show_end(self, took: float, ok: bool) -> None:
        if self._progress and self._task is not None:
            self._progress.update(self._task, total=1, completed=1 if ok else 0, note="" if ok else "failed")
            if not ok:
                self._progress.stop_task(self._task)
        else:
            prefix = f"{self.host}: " if self.host else ""
            self.output.note(f"{prefix}{'ok    ' if ok else 'FAILED'} {self._title} ({took:.1f} s)")

    def event(self, event: Mapping[str, Any]) -> None:
        """Show what the host says; heartbeats only keep the clock running."""
        self._try(lambda: self.output.detail(3, str(dict(event))))
        if event.get("text"):
            self._try(lambda: self._show_event(str(event["text"]), event.get("done"), event.get("total")))

    def _show_event(self, text: str, done: Any, total: Any) -> None:
        if self._progress and self._task is not None:
            self._progress.update(self._task, note=text[:70], completed=done or 0, total=total or None)
            return
        chatty = self.output.verbosity >= 1
        rest = 10.0 if not chatty else 1.0 if total else 0.0  # seconds between two lines where nothing moves
        if time.monotonic() - self._last >= rest:
            self._last = time.monotonic()
            share = f" ({100 * (done or 0) / total:.0f} %)" if total else ""
            self.output.note(f"  … {text}{share}", style="dim")

    def _try(self, show: Callable[[], None]) -> None:
        """A display that fails is switched off: it is no reason to end the work that it shows."""
        try:
            show()
        except Exception:
            display, self._progress = self._progress, None
            if display:
                with contextlib.suppress(Exception):
                    display.stop()
