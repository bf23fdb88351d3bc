"""The way back: carry out the undo records of a journal, newest first, and prove it by the root hash."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any, Dict, List, Optional

from . import durable, hashing, journal, roothash
from .ops import RUN_VARIABLE, UNDOERS, Work
from .protocol import ControllerLost, HostError

_BALLAST = 256 * 1024
_SHOWN = 50  # differing paths that travel in an error


def reserve(work: Work) -> None:
    """Set space aside, so that a full disk does not keep the way back from being journaled."""
    with open(os.path.join(work.snapshots, "ballast"), "wb") as handle:
        handle.write(os.urandom(_BALLAST))  # random: a compressing file system must really hold it
        handle.flush()
        os.fsync(handle.fileno())


def unwind(work: Work, reason: str, expected: Optional["Expected"] = None, accept: bool = False) -> Dict[str, Any]:
    """Undo everything that the run's journal still holds, and prove it.

    Reads the journal from the disk: it does not matter which process wrote it, or where that one stopped. A lost
    controller does not stop the way back. Returns ``{"root", "undone", "seconds", "notes", "foreign"}``; raises
    :class:`HostError` ``rollback_failed`` (exit 7) with the differing paths. ``accept``: somebody looked at these paths
    and wants the run to end all the same; they are journaled and returned as ``accepted``, and nothing is proven.
    """
    started = time.monotonic()
    work.emit = _deaf(work.emit)
    _drop(os.path.join(work.snapshots, "ballast"))
    log = journal.Journal.open(journal.path_of(work.state_root, work.run_id))
    work.committed = any(record["kind"] == "committed" for record in log.records)
    _append(log, "undoing", reason=reason)
    end_children(work.run_id)
    todo, errors = journal.pending(log.records), []
    for done, record in enumerate(todo):
        work.progress("undo", str(record.get("text") or record["undo"]), done, len(todo))
        try:
            UNDOERS[record["undo"]](work, dict(record["data"]))
            _append(log, "undid", will=record["n"])
        except Exception as error:  # go on: every further step brings the host closer to what it was
            text = error.message if isinstance(error, HostError) else "%s: %s" % (type(error).__name__, error)
            errors.append({"undo": record["undo"], "text": record.get("text", ""), "error": text})
    proof = _prove(work, log.records[0], expected)
    accepted = proof["differences"] if accept and not errors else {}
    if errors or (proof["differences"] and not accepted):
        _append(log, "failed", errors=errors, differences=dict(list(proof["differences"].items())[:_SHOWN]))
        raise _failed(work, log.path, errors, proof)
    flush(work, log.records[0])
    _append(log, "undone", reason=reason, root=proof["root"], accepted=accepted)
    shutil.rmtree(work.snapshots, ignore_errors=True)
    return {
        "run_id": work.run_id,
        "undone": len(todo),
        "root": proof["root"],
        "root_before": proof["root_before"],
        "proven": not accepted,
        "accepted": accepted,
        "foreign": proof["foreign"],
        "notes": work.notes,
        "seconds": round(time.monotonic() - started, 3),
    }


class Expected:
    """For the rollback of a finished run: what others changed since, and may therefore still differ after it."""

    def __init__(self, foreign: Dict[str, str], now: roothash.Manifest) -> None:
        self.foreign = foreign
        self.now = now


def before_manifest(work: Work) -> str:
    """Where the list of everything before the run is kept."""
    return os.path.join(work.snapshots, "before.json.gz")


def after_manifest(work: Work) -> str:
    """Where the list of everything at the end of the run is kept."""
    return os.path.join(work.snapshots, "after.json.gz")


def cache_for(state_root: str) -> hashing.HashCache:
    """The host's cache of content hashes."""
    return hashing.HashCache(os.path.join(state_root, "hashcache.json"))


def flush(work: Work, begin: Dict[str, Any]) -> None:
    """Put what the run wrote on the disk, before the journal says that it ended: installers do not do it."""
    places = {work.state_root, str((begin.get("scope") or {}).get("environment") or work.state_root)}
    devices = {os.stat(place).st_dev: place for place in sorted(places) if os.path.exists(place)}
    for place in devices.values():
        durable.sync_filesystem(place)


def end_children(run_id: str) -> None:
    """End processes that a killed helper of this run left behind (a pip that still writes), by their own mark."""
    mark = ("%s=%s" % (RUN_VARIABLE, run_id)).encode()
    deadline = time.monotonic() + 10.0
    while True:
        pids = [pid for pid in _processes() if mark in _environment(pid)]
        if not pids or time.monotonic() > deadline:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.05)


def _prove(work: Work, begin: Dict[str, Any], expected: Optional[Expected]) -> Dict[str, Any]:
    root_before = str((begin.get("before") or {}).get("root", ""))
    cache = cache_for(work.state_root)
    now = roothash.measure(dict(begin.get("scope") or {}), cache)
    cache.save()
    proof: Dict[str, Any] = {"root": now.root, "root_before": root_before, "differences": {}, "foreign": {}}
    if now.root == root_before:
        return proof
    try:
        before = roothash.Manifest.load(before_manifest(work))
    except (OSError, ValueError, KeyError) as error:
        proof["differences"] = {before_manifest(work): "the list of what was there before cannot be read: %s" % error}
        return proof
    found = roothash.differences(before, now)
    if expected is not None:
        was, entries = expected.now.flat(), now.flat()
        for path in [p for p in found if p in expected.foreign and was.get(p) == entries.get(p)]:
            proof["foreign"][path] = found.pop(path)
    proof["differences"] = found
    return proof


def _failed(work: Work, where: str, errors: List[Dict[str, str]], proof: Dict[str, Any]) -> HostError:
    paths = list(proof["differences"].items())
    words = ["%d paths differ from before" % len(paths)] if paths else []
    words += ["%d undo steps failed" % len(errors)] if errors else []
    return HostError(
        "rollback_failed",
        "the way back of run %s did not end where it began: %s" % (work.run_id, "; ".join(words)),
        where=paths[0][0] if paths else where,
        next="look at these paths and at %s; what is needed to restore them is kept in %s; ddtree-ops recover "
        "tries again, with --force it takes the host as it is then" % (where, work.snapshots),
        exit=7,
        details={
            "differences": dict(paths[:_SHOWN]),
            "different": len(paths),
            "errors": errors,
            "root": proof["root"],
            "root_before": proof["root_before"],
        },
    )


def _append(log: journal.Journal, kind: str, **fields: Any) -> None:
    """Journal best effort: undo steps may be repeated, so a missing line costs nothing but time."""
    try:
        log.append(kind, **fields)
    except OSError:
        pass


def _deaf(emit: Any) -> Any:
    def quiet(event: Dict[str, Any]) -> None:
        try:
            emit(event)
        except (ControllerLost, OSError):
            pass

    return quiet


def _drop(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _processes() -> List[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    except OSError:
        return []


def _environment(pid: int) -> List[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as handle:
            return handle.read().split(b"\0")
    except OSError:
        return []
