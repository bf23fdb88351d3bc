"""Writes that survive a crash: a name holds its old bytes or its new ones, never a part of either."""

from __future__ import annotations

import json
import os
import shutil
import stat
from typing import Any, Optional


def sync_folder(path: str) -> None:
    """Flush the names in ``path``; file systems that cannot do this are believed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def sync_filesystem(path: str) -> None:
    """Flush the file system that holds ``path``: for thousands of new files one call is cheaper than an fsync each."""
    handle = os.open(path, os.O_RDONLY)
    try:
        import ctypes

        if ctypes.CDLL(None, use_errno=True).syncfs(handle) == 0:
            return
    except (ImportError, OSError, AttributeError):
        pass  # a small Python without ctypes, or a C library without syncfs
    finally:
        os.close(handle)
    os.sync()


def temporary_name(path: str) -> str:
    """The name beside ``path`` for its next content: always the same (one run at a time), so a leftover is found."""
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.ddtree-ops" % name)


def replace_bytes(
    path: str, data: bytes, mode: int = 0o644, owner: Optional[os.stat_result] = None, exclusive: bool = False
) -> None:
    """Put ``data`` under the name ``path``: temporary file in the same folder, fsync, rename, fsync of the folder.

    Other names of the old file (hard links) keep the old bytes. ``owner`` gives uid and gid where we may set them;
    ``exclusive`` fails with FileExistsError instead of replacing.
    """
    temporary = temporary_name(path)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            if owner is not None and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(handle, owner.st_uid, owner.st_gid)
            os.fchmod(handle, stat.S_IMODE(mode))
            os.fsync(handle)
        finally:
            os.close(handle)
        if exclusive:
            os.link(temporary, path)
            os.unlink(temporary)
        else:
            os.replace(temporary, path)
    except BaseException:
        discard(temporary)
        raise
    sync_folder(os.path.dirname(path))


def replace_json(path: str, value: Any, mode: int = 0o600) -> None:
    """``value`` as the JSON file ``path``, atomically."""
    replace_bytes(path, json.dumps(value, ensure_ascii=True, sort_keys=True).encode("ascii") + b"\n", mode)


def read_json(path: str, default: Any = None) -> Any:
    """Content of the JSON file ``path``; ``default`` when it does not exist or is no JSON."""
    try:
        with open(path, "rb") as handle:
            return json.loads(handle.read().decode("ascii"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return default


def discard(path: str) -> None:
    """Remove the name ``path`` if it is there (not a folder)."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def discard_folder(path: str) -> None:
    """Remove the folder ``path`` if it is there and holds nothing but bytecode; otherwise leave it."""
    shutil.rmtree(os.path.join(path, "__pycache__"), ignore_errors=True)
    try:
        os.rmdir(path)
    except OSError:
        pass  # absent, or something that is not ours lies in it
