"""Ctrl-C inside a transaction: once finishes the step and unwinds, twice stops now and says how to go on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import Interrupted


class InterruptGuard:
    """Holds SIGINT and SIGTERM back while a transaction is open.

    The first signal is remembered (and told through ``tell``); the second raises KeyboardInterrupt at once. Only the
    main thread can take signals; elsewhere the guard does nothing.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._before: dict[int, Any] = {}
        self.count = 0
        self.too_late = False  # the end is being written already

    def install(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            with contextlib.suppress(ValueError, TypeError):
                signal.signal(number, handler)
        self._before = {}

    def check(self) -> None:
        """Raise :class:`Interrupted` when somebody asked to stop; called between steps."""
        if self.count:
            raise Interrupted("interrupted", next_step="everything of this run is undone")

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        if self.too_late:
            self._tell("It is being recorded already; afterwards `ddtree-ops rollback` takes it back.")
        else:
            self._tell("Stopping after this step; everything is then undone. Ctrl-C again stops at once.")
