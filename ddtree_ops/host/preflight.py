"""What can be refused before anything is written: no space, read-only, no permission."""

from __future__ import annotations

import os
from typing import Iterable

from .protocol import HostError

_ST_RDONLY = getattr(os, "ST_RDONLY", 1)


def existing(path: str) -> str:
    """``path``, or its nearest ancestor that exists."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def writable(paths: Iterable[str]) -> None:
    """Raise ``read_only`` or ``permission`` for the first path under which we could not write."""
    for path in paths:
        place = existing(path)
        if os.statvfs(place).f_flag & _ST_RDONLY:
            raise HostError(
                "read_only",
                "the file system is mounted read-only",
                where=path,
                next="remount it for writing, or choose another place (state_root, environment)",
            )
        if not os.access(place, os.W_OK | (os.X_OK if os.path.isdir(place) else 0), effective_ids=_effective()):
            raise HostError(
                "permission",
                "this account may not write there",
                where=path,
                next="connect as the owner of %s, or give the account passwordless sudo" % place,
                details={"euid": os.geteuid(), "owner": os.stat(place).st_uid},
            )


def space(path: str, need_bytes: int, need_files: int = 0) -> None:
    """Raise ``no_space`` when the file system under ``path`` has less than what is needed."""
    disk = os.statvfs(existing(path))
    free = disk.f_bavail * disk.f_frsize if os.geteuid() else disk.f_bfree * disk.f_frsize
    if free < need_bytes:
        raise HostError(
            "no_space",
            "%s needed, %s free" % (megabytes(need_bytes), megabytes(free)),
            where=path,
            next="free space there (ddtree-ops purge removes old releases), or set state_root to another disk",
            details={"needed": need_bytes, "free": free},
        )
    if disk.f_files and disk.f_ffree < need_files:
        raise HostError(
            "no_space",
            "%d files needed, %d inodes free" % (need_files, disk.f_ffree),
            where=path,
            next="remove small files there, or set state_root to another disk",
            details={"needed_files": need_files, "free_files": disk.f_ffree},
        )


def megabytes(size: int) -> str:
    """``size`` for people."""
    return "%.1f MB" % (size / 1e6)


def _effective() -> bool:
    return os.access in os.supports_effective_ids
