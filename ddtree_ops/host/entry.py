"""The door that every writing verb goes through: what can be refused without a write, then the lock."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable

from . import journal, locks, preflight
from .protocol import HostError


def check(state_root: str, writes: Iterable[str] = (), need_bytes: int = 0, need_files: int = 0) -> None:
    """Raise ``read_only``, ``permission``, ``no_space``, ``locked`` or ``interrupted``; nothing is written."""
    preflight.writable([state_root] + [str(path) for path in writes])
    if need_bytes or need_files:
        preflight.space(state_root, need_bytes, need_files)
    locks.refuse_if_held(state_root)
    refuse_if_interrupted(state_root)


def enter(state_root: str, run_id: str, params: Dict[str, Any], may_be_interrupted: bool = False) -> None:
    """Make the state folder and take the lock; what another run left unfinished meanwhile is refused again."""
    os.umask(0o022)  # the service's account must be able to read the trees; what is secret says so by its own mode
    os.makedirs(state_root, 0o755, exist_ok=True)
    locks.acquire(state_root, run_id, str(params.get("who") or ""), str(params.get("message") or ""))
    try:
        if not may_be_interrupted:
            refuse_if_interrupted(state_root)
    except HostError:
        locks.release(state_root)
        raise


def refuse_if_interrupted(state_root: str) -> None:
    """Raise ``interrupted`` (exit 5) when a run has no end and nobody works on it."""
    run = journal.unfinished(state_root)
    if run is None:
        return
    what = "could not be undone" if run["state"] == "failed" else "was interrupted"
    raise HostError(
        "interrupted",
        "run %s %s, last step: %s" % (run["run_id"], what, run["last_step"]),
        where=journal.path_of(state_root, run["run_id"]),
        next="ddtree-ops recover undoes it and proves the result",
        exit=5,
        details={"run": run},
    )
