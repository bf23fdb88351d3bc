"""A service's log, read piece by piece; what SGLang's lines say about the phase of a start, and about its death."""

from __future__ import annotations

import os
import re
from typing import Callable, List, Tuple

from . import systemd

Hide = Callable[[str], str]


class Log:
    """New lines since the last :meth:`read`, secrets replaced."""

    def read(self) -> List[str]:
        """The lines that were added."""
        raise NotImplementedError


class JournalLog(Log):
    """The journal of a unit; ``after`` is a cursor, or ``@seconds`` since the epoch where the journal was empty."""

    def __init__(self, unit: str, after: str, hide: Hide) -> None:
        self._unit = unit
        self._cursor = "" if after.startswith("@") else after
        self._since = float(after[1:]) if after.startswith("@") else 0.0
        self._hide = hide

    def read(self) -> List[str]:
        """One call of ``journalctl`` (about 10 ms)."""
        lines, self._cursor = systemd.journal(self._unit, self._cursor, since=self._since)
        return [self._hide(line) for line in lines]


def _as_is(line: str) -> str:
    return line


class FileLog(Log):
    """A log file; a mark is ``inode:offset``, so that a rotated file is read from its beginning."""

    def __init__(self, path: str, after: str = "", hide: Hide = _as_is) -> None:
        self._path = path
        inode, _, offset = after.partition(":")
        self._inode = int(inode) if inode.isdigit() else 0
        self._offset = int(offset) if offset.isdigit() else 0
        self._rest = b""
        self._hide = hide

    def mark(self) -> str:
        """The present end."""
        try:
            status = os.stat(self._path)
            return "%d:%d" % (status.st_ino, status.st_size)
        except OSError:
            return ""

    def read(self) -> List[str]:
        """Complete lines that were added."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset, self._rest = status.st_ino, 0, b""
                file.seek(self._offset)
                data = file.read(4 * 1024 * 1024)
                self._offset += len(data)
        except OSError:
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._hide(line.decode("utf-8", "replace").rstrip("\r")) for line in lines]


# -- what the lines mean --

#: First match wins; the texts are what progress shows. SGLang 0.5.11 to 0.5.23 word these lines alike.
_PHASES: Tuple[Tuple[str, str], ...] = (
    (r"The server is fired up and ready", "ready"),
    (r"Uvicorn running on|Application startup complete", "HTTP is up, warming up"),
    (r"Capture .*graph.* end", "CUDA graphs captured"),
    (r"Capture .*graph|Capturing batches", "capturing CUDA graphs"),
    (r"Memory pool end|max_total_num_tokens=", "KV cache is there"),
    (r"KV Cache is allocated", "allocating the KV cache"),
    (r"Load weight end", "weights loaded"),
    (r"Load weight begin|Loading safetensors", "loading weights"),
    (r"Init torch distributed", "starting the workers"),
    (r"server_args=", "reading the arguments"),
)
_COMPILED = tuple((re.compile(pattern), text) for pattern, text in _PHASES)
_PERCENT = re.compile(r"(\d{1,3})%\|")
_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b\s*[:(]|\bCRITICAL\b|\bFATAL\b|\bERROR\b|error:|out of memory|No such file|"
    r"cannot open shared object|undefined symbol|address already in use",
    re.IGNORECASE,
)
_MANAGER = re.compile(r"Main process exited|Failed with result|Failed at step|Killed")
_NOISE = re.compile(
    r"Traceback \(most recent call last\)|^\s+File \"|^\s+\^+\s*$|raise_error|ErrorHandler|error_code=0"
)
_STAMP = re.compile(r"^\[?\d{4}-\d\d-\d\d[T ][\d:.,]+\]?\s*")


def phase(line: str) -> str:
    """What a line says about the progress of a start; "" for most lines."""
    for pattern, text in _COMPILED:
        if pattern.search(line):
            percent = _PERCENT.search(line)
            return "%s, %s%%" % (text, percent.group(1)) if percent else text
    return ""


def errors(lines: List[str], most: int = 8) -> List[str]:
    """The last distinct lines that name an error, without their time stamps, oldest first.

    What systemd says about the death ("Failed with result ...") counts only where the service itself said nothing.
    """
    found = _distinct(lines, _ERROR, most)
    return found or _distinct(lines, _MANAGER, most)


def _distinct(lines: List[str], pattern: "re.Pattern[str]", most: int) -> List[str]:
    found: List[str] = []
    for line in reversed(lines):
        if _NOISE.search(line) or not pattern.search(line):
            continue
        text = _STAMP.sub("", line).strip()[:500]
        if text and text not in found:
            found.append(text)
        if len(found) == most:
            break
    return found[::-1]
