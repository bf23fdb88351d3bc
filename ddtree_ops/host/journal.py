"""The journal of one run: append-only lines, flushed one by one, each naming the hash of the line before it.

==============  ======================================================================================
``begin``       who started the run and why, the helper's process, the scope and the root hash before
``op``          an operation starts
``will``        an undo record, written *before* the mutation that it takes back
``done``        the operation ended
``op_failed``   the operation failed; what it did is still to be taken back
``committed``   the run ended well
``undoing``     the way back starts, and why
``undid``       one undo record was carried out
``undone``      the way back ended, proven by the root hash
``failed``      the way back ended, but the host is not as it was
==============  ======================================================================================

A line cut by a crash was never acted on (the mutation follows the flush), so it is dropped when the journal is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any, Dict, List, Optional

from . import durable
from .protocol import HostError

Record = Dict[str, Any]

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
_STATES = {"committed": "committed", "undoing": "undoing", "undone": "undone", "failed": "failed"}


def folder(state_root: str) -> str:
    """Where the journals of a host are kept."""
    return os.path.join(state_root, "journal")


def path_of(state_root: str, run_id: str) -> str:
    """The journal of one run. Raises :class:`HostError` for an identifier that is no plain name."""
    if not _RUN_ID.match(run_id):
        raise HostError("bad_run_id", "%r cannot name a run (letters, digits, . _ -)" % run_id, exit=2)
    return os.path.join(folder(state_root), run_id + ".jsonl")


class Journal:
    """An open journal; :meth:`append` returns only when the line is on the disk."""

    def __init__(self, path: str, records: List[Record], previous: str) -> None:
        self.path = path
        self.records = records
        self._previous = previous

    @classmethod
    def create(cls, path: str) -> "Journal":
        """A new journal; FileExistsError when the run is known already."""
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        durable.sync_folder(os.path.dirname(path))
        return cls(path, [], "")

    @classmethod
    def open(cls, path: str) -> "Journal":
        """An existing journal, its chain verified and a torn last line cut off."""
        with open(path, "rb") as handle:
            data = handle.read()
        records, previous, good = _parse(path, data)
        if good < len(data):
            os.truncate(path, good)
        return cls(path, records, previous)

    def append(self, kind: str, **fields: Any) -> Record:
        """Write one record and flush it. OSError (no space) leaves the journal as it was."""
        record: Record = {"n": len(self.records), "kind": kind, "time": round(time.time(), 3), "prev": self._previous}
        record.update(fields)
        line = json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(handle).st_size
            try:
                _write_all(handle, line + b"\n")
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)
        self._previous = hashlib.sha256(line).hexdigest()
        self.records.append(record)
        return record


def read(path: str) -> List[Record]:
    """The records of a journal, without opening it for writing."""
    with open(path, "rb") as handle:
        return _parse(path, handle.read())[0]


def state_of(records: List[Record]) -> str:
    """``open``, ``committed``, ``undoing``, ``undone`` or ``failed``; a journal without its begin is ``undone``."""
    if not records:
        return "undone"  # died before the begin record: nothing had happened
    state = "open"
    for record in records:
        state = _STATES.get(str(record["kind"]), state)
    return state


def pending(records: List[Record]) -> List[Record]:
    """The undo records that were not carried out yet, newest first."""
    undid = {record["will"] for record in records if record["kind"] == "undid"}
    return [record for record in reversed(records) if record["kind"] == "will" and record["n"] not in undid]


def summary(run_id: str, records: List[Record]) -> Record:
    """One run in short, for lists and for messages."""
    begin = records[0] if records else {}
    steps = [record for record in records if record["kind"] in ("op", "will", "undoing")]
    committed = [record for record in records if record["kind"] == "committed"]
    return {
        "run_id": run_id,
        "state": state_of(records),
        "started": float(begin.get("time", 0.0)),
        "ended": float(records[-1]["time"]) if records else 0.0,
        "who": str(begin.get("who", "")),
        "message": str(begin.get("message", "")),
        "last_step": _step(steps[-1]) if steps else "begin",
        "deployment": bool(committed and committed[-1].get("deployment")),
        "root_before": str((begin.get("before") or {}).get("root", "")),
    }


def scan(state_root: str) -> List[Record]:
    """Summaries of every run that this host knows, oldest first. A damaged journal is listed with ``error``."""
    runs: List[Record] = []
    try:
        names = sorted(os.listdir(folder(state_root)))
    except OSError:
        return runs
    for name in names:
        if not name.endswith(".jsonl"):
            continue
        run_id = name[: -len(".jsonl")]
        try:
            runs.append(summary(run_id, read(os.path.join(folder(state_root), name))))
        except HostError as error:
            runs.append({**summary(run_id, []), "state": "failed", "error": error.message})
    return sorted(runs, key=lambda run: (run["started"], run["run_id"]))


def unfinished(state_root: str) -> Optional[Record]:
    """The run whose journal has no end, if any (whether its helper still lives is the lock's business)."""
    for run in scan(state_root):
        if run["state"] in ("open", "undoing", "failed"):
            return run
    return None


def _step(record: Record) -> str:
    if record["kind"] == "op":
        return str(record.get("op", ""))
    if record["kind"] == "undoing":
        return "undoing: %s" % record.get("reason", "")
    return "%s (%s)" % (record.get("op", ""), record.get("text") or record.get("undo", ""))


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _parse(path: str, data: bytes) -> "tuple[List[Record], str, int]":
    records: List[Record] = []
    previous, good = "", 0
    lines = data.split(b"\n")
    tail = lines.pop()  # "" after a complete line
    for index, line in enumerate(lines):
        try:
            record = json.loads(line.decode("ascii"))
            intact = record["n"] == index and record["prev"] == previous
        except ValueError:
            if index == len(lines) - 1 and not tail:
                break  # the last line, torn by a crash
            intact = False
        except (KeyError, TypeError):
            intact = False
        if not intact:
            raise HostError(
                "journal_damaged",
                "the journal's chain of hashes breaks at line %d" % (index + 1),
                where=path,
                next="look at the file; what it says after that line cannot be trusted, so nothing was undone",
                exit=7,
            )
        records.append(record)
        previous = hashlib.sha256(line).hexdigest()
        good += len(line) + 1
    return records, previous, good
