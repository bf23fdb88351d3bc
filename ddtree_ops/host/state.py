"""What earlier runs of the tool left in the state folder: lock, deployment, a run without an end. Read only."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional

from . import journal, locks
from .interpreters import writable
from .look import Fact, Look, read_bytes
from .protocol import HostError


def default_root() -> str:
    """The state folder when the inventory names none."""
    return "/var/lib/ddtree-ops" if os.geteuid() == 0 else os.path.expanduser("~/.local/state/ddtree-ops")


def describe(look: Look) -> Dict[str, Any]:
    """The fields about the state folder of model.Facts: where it is, lock, deployment, interrupted run."""
    root = look.text("state_root") or default_root()
    lock = _quietly(look, lambda: locks.read(root))
    alive = bool(lock and lock.get("alive"))
    return {
        "state_root": root,
        "state_root_exists": os.path.isdir(root),
        "state_root_writable": writable(_existing(root)),
        "lock": _lock(lock) if lock else None,
        "deployment": _deployment(look, os.path.join(root, "deployment.json")),
        "interrupted": None if alive else _interrupted(look, root),
    }


def _deployment(look: Look, path: str) -> Optional[Fact]:
    """The deployment's record; one that is damaged is not the same as none, so that is said."""
    raw = read_bytes(path, 64 << 20)
    try:
        record = json.loads(raw.decode("utf-8")) if raw else None
    except ValueError as error:
        record = error
    if record is not None and not isinstance(record, dict):
        look.warn("state folder: %s is damaged; what is deployed is unknown" % path)
        return None
    return record


def _lock(owner: Dict[str, Any]) -> Fact:
    return {
        "run_id": str(owner.get("run_id") or ""),
        "pid": int(owner.get("pid") or 0),
        "who": str(owner.get("who") or ""),
        "since": float(owner.get("since") or 0.0),
        "message": str(owner.get("message") or ""),
        "alive": bool(owner.get("alive")),
    }


def _interrupted(look: Look, root: str) -> Optional[Fact]:
    run = _quietly(look, lambda: journal.unfinished(root))
    if not run:
        return None
    return {
        "run_id": str(run["run_id"]),
        "started": float(run["started"]),
        "last_step": str(run["last_step"]),
        "message": str(run.get("error") or run["message"]),
    }


def _quietly(look: Look, read: Any) -> Any:
    try:
        return read()
    except (OSError, ValueError) as error:
        look.warn("state folder: %s" % error)
    except HostError as error:
        look.warn("state folder: %s (%s)" % (error.message, error.where))
    return None


def _existing(path: str) -> str:
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def disks(state_root: str, prefixes: List[str]) -> List[str]:
    """The paths whose free space a plan depends on."""
    return list(dict.fromkeys([state_root, *prefixes, "/run", "/tmp"]))
