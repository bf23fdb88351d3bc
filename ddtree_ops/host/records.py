"""The reading verbs: ``deployment`` (what is deployed, who works, what was interrupted) and ``root_hash``."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from . import deployments, hashing, journal, locks, roothash, undo
from .ops import Params, Work, absolute, need
from .protocol import Emit, HostError, verb

_SHOWN = 200


@verb("deployment")
def deployment(params: Params, emit: Emit) -> Params:
    """What the state folder knows. Params: ``state_root``, ``run_id`` (adds that run's ``records``). Writes nothing.

    Result: ``deployment`` or null, ``lock`` or null, ``interrupted`` or null, ``runs`` (oldest first).
    """
    state_root = absolute(params, "state_root")
    result = overview(state_root)
    if params.get("run_id"):
        result["records"] = records_of(state_root, str(params["run_id"]))
    return result


def overview(state_root: str) -> Dict[str, Any]:
    """Deployment, lock, interrupted run and the list of runs, read only."""
    lock = locks.read(state_root)
    run = journal.unfinished(state_root)
    working = lock is not None and lock["alive"] and run is not None and run["run_id"] == lock.get("run_id")
    return {
        "deployment": deployments.read(state_root),
        "lock": lock,
        "interrupted": None if working else run,
        "runs": journal.scan(state_root),
    }


def records_of(state_root: str, run_id: str) -> List[Dict[str, Any]]:
    """The journal of one run. Raises ``unknown_run``."""
    path = journal.path_of(state_root, run_id)
    try:
        return journal.read(path)
    except FileNotFoundError:
        raise HostError("unknown_run", "no run is called %s" % run_id, where=path, exit=2) from None


@verb("root_hash")
def root_hash(params: Params, emit: Emit) -> Params:
    """Measure ``scope`` (see :mod:`roothash`). Writes nothing.

    Params: ``scope``; ``state_root`` (its hash cache makes it fast; with ``fresh`` every byte is read again);
    ``against``: ``{"run_id", "when": "before" | "after"}`` adds ``differences`` (path -> what differs) to that list.
    Result: ``root``, ``parts``, ``bytecode_left_out``, ``seconds``, ``read_files``, ``read_bytes``.
    """
    state_root = str(params.get("state_root") or "")
    cached = os.path.isdir(state_root) and not params.get("fresh")
    cache = undo.cache_for(state_root) if cached else hashing.HashCache()

    def report(done: int, total: int) -> None:
        emit({"kind": "progress", "step": "measure", "done": done, "total": total, "text": ""})

    manifest, summary = roothash.timed(dict(need(params, "scope")), cache, report)
    against: Optional[Dict[str, Any]] = params.get("against")
    if against:
        work = Work(absolute(params, "state_root"), str(need(against, "run_id")), emit)
        path = undo.after_manifest(work) if against.get("when") == "after" else undo.before_manifest(work)
        try:
            found = roothash.differences(roothash.Manifest.load(path), manifest)
        except (OSError, ValueError, KeyError) as error:
            raise HostError("snapshot_lost", "the list cannot be read: %s" % error, where=path) from None
        summary["differences"] = dict(list(found.items())[:_SHOWN])
        summary["different"] = len(found)
    return summary
