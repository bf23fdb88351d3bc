"""Progress of a bench: one bar per arm on a terminal, a line per start elsewhere, nothing with ``--json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..bench.arms import TITLES
from ..bench.schedule import Block
from ..ui.console import Output
from ..ui.progress import Steps

if TYPE_CHECKING:
    from rich.progress import TaskID


class Bars(Steps):
    """:class:`Steps` with a bar per arm that counts rounds."""

    def __init__(self, output: Output, host: str = "", *, silent: bool = False) -> None:
        super().__init__(output, host)
        self._silent = silent
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._arm = ""

    @contextmanager
    def step(self, name: str, title: str) -> Iterator[None]:
        """As in :class:`Steps`; a step inside of another gives the display back to it."""
        outer = (self._title, self._task)
        try:
            with super().step(name, title):
                yield
        finally:
            self._title, self._task = outer

    def plan(self, blocks: Sequence[Block]) -> None:
        """What is to be measured."""
        for block in blocks:
            self._total[block.arm] = self._total.get(block.arm, 0) + len(block.rounds)
        for arm, total in self._total.items():
            self._done.setdefault(arm, 0)
            if self._progress is not None and arm not in self._tasks:
                title = f"{TITLES[arm]}, {total} round{'s' if total != 1 else ''}"
                self._tasks[arm] = self._progress.add_task(title, total=total, note="waiting", start=False)

    @contextmanager
    def block(self, arm: str, start: int) -> Iterator[None]:
        """The rounds of one start of an arm."""
        self._arm = arm
        try:
            if arm in self._tasks:
                self._try(lambda: self._start(arm))
                yield
                self._try(lambda: self._note(arm, f"start {start} is done"))
            else:
                with self.step(f"measure {arm}", f"Measure {TITLES[arm]}, start {start}"):
                    yield
        finally:
            self._arm = ""

    def warm(self, arm: str, rounds: int) -> None:
        """One more warm-up round."""
        self._try(lambda: self._note(arm, f"warm-up round {rounds}"))

    def advance(self, arm: str) -> None:
        """One more measured round."""
        self._done[arm] = self._done.get(arm, 0) + 1
        self._try(lambda: self._move(arm))

    def event(self, event: Mapping[str, Any]) -> None:
        """What the host says belongs to the arm that is being measured, else to the step."""
        if self._arm in self._tasks and event.get("text"):
            self._try(lambda: self._note(self._arm, str(event["text"])))
            return
        super().event(event)

    def say(self, text: str) -> None:
        """A sentence between two steps."""
        if not self._silent:
            self._try(lambda: self.output.note(text))

    # -- on the screen --

    def _start(self, arm: str) -> None:
        if self._progress is not None:
            self._progress.start_task(self._tasks[arm])

    def _move(self, arm: str) -> None:
        if self._progress is not None and arm in self._tasks:
            self._progress.update(self._tasks[arm], completed=self._done[arm])
        elif self.output.verbosity >= 1:
            self.output.note(f"  … {TITLES[arm]}: {self._done[arm]} of {self._total.get(arm, 0)} rounds", style="dim")

    def _note(self, arm: str, text: str) -> None:
        if self._progress is not None and arm in self._tasks:
            self._progress.update(self._tasks[arm], note=text[:70])

    def _show_end(self, took: float, ok: bool) -> None:
        if not self._silent:
            super()._show_end(took, ok)

    def _show_event(self, text: str, done: Any, total: Any) -> None:
        if not self._silent:
            super()._show_event(text, done, total)
