"""A standard stream that never ends a run: a reader that went away, odd characters and a full disk are not its end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TextIO

from ..jsontext import printable


class Stream:
    """What :class:`rich.console.Console` writes to.

    When nobody reads any more, the rest is dropped: a deploy must not stop in its middle because ``| head`` had enough.
    What the stream's encoding cannot say is escaped. ``vital``: other errors of writing (a full disk) are raised,
    because what is written is what the user asked for.
    """

    def __init__(self, stream: TextIO, *, vital: bool) -> None:
        self._stream = stream
        self._vital = vital
        self.deaf = False

    @property
    def encoding(self) -> str:
        """The stream's own; rich asks for it."""
        return self._stream.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write ``text``, or drop it."""
        safe = printable(text).encode(self.encoding, "backslashreplace").decode(self.encoding)
        self._guarded(lambda: self._stream.write(safe))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as they are, or drop them."""

        def both() -> None:
            self._stream.flush()
            self._stream.buffer.write(data)
            self._stream.flush()

        self._guarded(both)

    def flush(self) -> None:
        """Flush, if somebody listens."""
        self._guarded(self._stream.flush)

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The stream's descriptor."""
        return self._stream.fileno()

    def _guarded(self, call: Callable[[], object]) -> None:
        if self.deaf:
            return
        try:
            call()
        except BrokenPipeError:
            self._go_deaf()
        except (OSError, RuntimeError, ValueError):  # RuntimeError: a signal handler writes while a write is under way
            if self._vital:
                raise

    def _go_deaf(self) -> None:
        self.deaf = True
        with contextlib.suppress(OSError, ValueError):  # what is still buffered must not fail at exit either
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
