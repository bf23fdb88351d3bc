"""The host's lock: one run at a time. A folder, because its rename is atomic; the owner's file says who and why."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Dict, Optional

from . import durable
from .protocol import HostError

Owner = Dict[str, Any]


def boot_id() -> str:
    """Identifier of this boot of the kernel, "" where the system has none."""
    return _first_line("/proc/sys/kernel/random/boot_id")


def start_time(pid: int) -> int:
    """Start of process ``pid`` in clock ticks since boot; 0 when it does not run or cannot be asked."""
    text = _first_line("/proc/%d/stat" % pid)
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


def lives(owner: Owner) -> bool:
    """The process that wrote ``owner`` still runs: same boot, same pid, same start (a reused pid is not it)."""
    pid = int(owner.get("pid") or 0)
    if pid <= 0 or (owner.get("boot_id") and owner["boot_id"] != boot_id()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    started = int(owner.get("start_time") or 0)
    return not started or started == start_time(pid)


def read(state_root: str) -> Optional[Owner]:
    """The lock's owner with ``alive``, None when the lock is free. Writes nothing."""
    if not os.path.isdir(_path(state_root)):
        return None
    owner: Owner = dict(durable.read_json(os.path.join(_path(state_root), "owner.json")) or {})
    owner["alive"] = lives(owner)
    return owner


def refuse_if_held(state_root: str) -> None:
    """Raise ``locked`` when a living process holds the lock."""
    owner = read(state_root)
    if owner is not None and owner["alive"]:
        raise _locked(owner)


def acquire(state_root: str, run_id: str, who: str, message: str) -> Owner:
    """Take the lock for ``run_id``; a lock whose owner is dead is taken over. Raises :class:`HostError` ``locked``."""
    owner: Owner = {
        "run_id": run_id,
        "pid": os.getpid(),
        "start_time": start_time(os.getpid()),
        "boot_id": boot_id(),
        "who": who,
        "since": time.time(),
        "message": message,
    }
    guard = os.open(os.path.join(state_root, "lock.guard"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Two runs may both find a dead owner; only the guard's holder may put itself in its place.
        fcntl.flock(guard, fcntl.LOCK_EX)
        refuse_if_held(state_root)
        _remove(_path(state_root))
        staged = os.path.join(state_root, "lock.new")
        _remove(staged)
        os.mkdir(staged, 0o700)
        durable.replace_json(os.path.join(staged, "owner.json"), owner)
        os.rename(staged, _path(state_root))
        durable.sync_folder(state_root)
    finally:
        os.close(guard)
    return owner


def release(state_root: str) -> None:
    """Give the lock back, if this process holds it."""
    owner = read(state_root)
    if owner is not None and owner.get("pid") == os.getpid():
        _remove(_path(state_root))
        durable.sync_folder(state_root)


def _locked(owner: Owner) -> HostError:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(float(owner.get("since") or 0)))
    return HostError(
        "locked",
        "run %s of %s works on this host since %s" % (owner.get("run_id"), owner.get("who") or "somebody", since),
        where="process %s" % owner.get("pid"),
        next="wait until it ends, or end process %s on the host; the run then undoes itself" % owner.get("pid"),
        exit=5,
        details={"owner": owner},
    )


def _path(state_root: str) -> str:
    return os.path.join(state_root, "lock")


def _remove(folder: str) -> None:
    durable.discard(os.path.join(folder, "owner.json"))
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        durable.discard(os.path.join(folder, name))
    os.rmdir(folder)


def _first_line(path: str) -> str:
    try:
        with open(path, "r", encoding="utf-8", errors="replace") as handle:
            return handle.readline().strip()
    except OSError:
        return ""
