"""One look at the host: the request's parameters, the clock, and what everyone adds to the report."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Tuple

Params = Dict[str, Any]
Fact = Dict[str, Any]

PACKAGE = "sglang"


class Look:
    """Parameters and accumulating notes of one ``facts`` request. List appends are atomic: threads may share it."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.started = time.monotonic()
        self.deadline = self.started + float(params.get("timeout_s") or 30.0)
        self.warnings: List[str] = []
        self.searched: List[str] = []
        self.tools: Dict[str, str] = {}

    def left(self, most: float = 30.0) -> float:
        """Seconds that a step may still take, at most ``most`` and at least a tenth."""
        return max(0.1, min(most, self.deadline - time.monotonic()))

    @property
    def late(self) -> bool:
        """True when the time for this look is used up."""
        return time.monotonic() >= self.deadline

    def warn(self, text: str) -> None:
        """Add a warning once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def looked(self, place: str) -> None:
        """Add a place to the list of places that were searched, once."""
        if place not in self.searched:
            self.searched.append(place)

    def text(self, key: str) -> str:
        """Parameter ``key`` as text, "" when absent."""
        return str(self.params.get(key) or "")

    def texts(self, key: str) -> List[str]:
        """Parameter ``key`` as a list of texts."""
        return [str(item) for item in self.params.get(key) or ()]


def user_path(path: str) -> str:
    """``path`` absolute, with ``~`` resolved; symbolic links stay."""
    return os.path.normpath(os.path.join("/", os.path.expanduser(path)))


def is_within(path: str, folder: str) -> bool:
    """``path`` is ``folder`` or lies in it (by text, both normalised)."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def read_bytes(path: str, limit: int = 1 << 20) -> bytes:
    """The first ``limit`` bytes of a file, b"" when it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(limit)
    except (OSError, ValueError):
        return b""


def read_text(path: str, limit: int = 1 << 20) -> str:
    """As :func:`read_bytes`, decoded as the file system's text."""
    return os.fsdecode(read_bytes(path, limit))


def names_in(folder: str) -> List[str]:
    """Sorted names in ``folder``, [] when it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def owner_of(path: str) -> Tuple[int, str]:
    """User id and name that own ``path`` (the link's target); (-1, "") when it cannot be asked."""
    import pwd

    try:
        uid = os.stat(path).st_uid
    except (OSError, ValueError):
        return -1, ""
    try:
        return uid, pwd.getpwuid(uid).pw_name
    except KeyError:
        return uid, str(uid)
