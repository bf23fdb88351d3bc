"""``transport: local``: the same program as a child process, for a GPU machine one already sits on, and for tests."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import IO


class LocalStream:
    """A helper as a child of this process, in a session of its own so that Ctrl-C here does not reach it."""

    def __init__(self, command: str) -> None:
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def read(self, size: int) -> bytes:
        """Bytes of stdout, ``b""`` at the end."""
        return os.read(_pipe(self.process.stdout).fileno(), size)

    def read_error(self, size: int) -> bytes:
        """Bytes of stderr, ``b""`` at the end."""
        return os.read(_pipe(self.process.stderr).fileno(), size)

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to stdin."""
        pipe = _pipe(self.process.stdin)
        view = memoryview(data)
        while view:
            view = view[pipe.write(view) or 0 :]

    def close_input(self) -> None:
        """End of stdin."""
        try:
            _pipe(self.process.stdin).close()
        except OSError:
            return

    def wait(self, timeout: float) -> int | None:
        """Exit status, None when it does not end in time."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def abandon(self) -> None:
        """Let go of the child. It is never killed: without its controller it undoes what is open and ends."""
        self.close_input()
        if self.process.poll() is None:
            threading.Thread(target=self._reap, daemon=True).start()
        else:
            self._reap()

    def _reap(self) -> None:
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the child has no pipe")
    return pipe
