"""The verbs that write: ``tx_begin``, ``tx_do``, ``tx_commit``, ``tx_abort``.

One transaction at a time in one helper. Whatever ends the helper while it is open (the controller's loss, a signal,
an error that the controller answers with ``tx_abort``) takes back all of it; a helper that was killed outright leaves
a journal without an end, which the next ``tx_begin`` refuses and ``recover`` undoes.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, Optional, Tuple

from . import (  # noqa: F401 - the modules of operations and verbs register themselves
    deployments,
    entry,
    journal,
    locks,
    ops_checkout,
    ops_editable,
    ops_files,
    ops_git,
    ops_probe,
    ops_tree,
    preflight,
    purge,
    records,
    rollback,
    roothash,
    undo,
)
from .ops import OPS, Params, Tx, Work, absolute, need
from .protocol import Emit, HostError, off_lost, on_lost, set_idle_limit, verb

#: Seconds without a word of the controller inside an open transaction, after which it counts as lost.
IDLE_SECONDS = 120.0


class _Open:
    """The one transaction of this process, if any."""

    tx: Optional[Tx] = None


@verb("tx_begin")
def tx_begin(params: Params, emit: Emit) -> Params:
    """Take the lock, measure, start the journal.

    Params: ``run_id, state_root, who, message, scope``; ``writes`` (paths that must be writable), ``need_bytes`` and
    ``need_files`` (free on the state root's file system), ``idle_s``. Result: ``{"run_id", "before": {root, parts}}``.
    Raises ``locked``, ``interrupted`` (exit 5), ``no_space``, ``read_only``, ``permission`` (exit 4); then nothing
    was written.
    """
    if _Open.tx is not None:
        raise HostError("nested", "a transaction is open already", exit=1)
    state_root, run_id = absolute(params, "state_root"), str(need(params, "run_id"))
    path = journal.path_of(state_root, run_id)
    sizes = (int(params.get("need_bytes") or 0), int(params.get("need_files") or 0))
    entry.check(state_root, params.get("writes") or (), *sizes)
    if os.path.exists(path):
        raise HostError("run_known", "run %s exists already" % run_id, where=path, exit=1)
    entry.enter(state_root, run_id, params)
    work = Work(state_root, run_id, emit)
    try:
        log, before = _start(work, path, params)
    except BaseException:
        shutil.rmtree(work.snapshots, ignore_errors=True)
        _unlink(path)
        locks.release(state_root)
        raise
    _Open.tx = Tx(state_root, run_id, emit, log)
    on_lost(_lost)
    set_idle_limit(float(params.get("idle_s") or IDLE_SECONDS))
    return {"run_id": run_id, "before": before}


@verb("tx_do")
def tx_do(params: Params, emit: Emit) -> Params:
    """Run one operation: ``{"op": name, "params": {...}}``; its result, and ``seconds``.

    A failed operation leaves the transaction open for ``tx_abort`` (or, where a playbook accepts that, ``tx_commit``).
    """
    tx = _current(emit)
    name = str(need(params, "op"))
    if name not in OPS:
        raise HostError("unknown_op", "no operation is called %r" % name, exit=1)
    started = time.monotonic()
    tx.op = name
    tx.progress(name)
    tx.journal.append("op", op=name)
    try:
        result = OPS[name].function(tx, dict(params.get("params") or {}))
    except Exception as error:
        if OPS[name].must_hold:
            tx.failed.append(name)
        _note(tx, "op_failed", op=name, error=str(error)[:500])
        raise
    seconds = round(time.monotonic() - started, 3)
    tx.journal.append("done", op=name, seconds=seconds)
    return {**result, "seconds": seconds}


@verb("tx_commit")
def tx_commit(params: Params, emit: Emit) -> Params:
    """End well: write ``deployment`` (when given), measure, journal the end, give the lock back.

    Result: ``{"run_id", "after": {root, parts}}``. Raises ``cannot_commit`` when an operation that must hold failed.
    """
    tx = _current(emit)
    if tx.failed:
        raise HostError(
            "cannot_commit",
            "%s failed, so this run can only be undone" % ", ".join(sorted(set(tx.failed))),
            next="tx_abort",
            exit=1,
        )
    tx.op = "commit"
    deployment = params.get("deployment")
    if deployment:
        begin = tx.journal.records[0]
        known = {"run_id": tx.run_id, "scope": begin["scope"], "root_before": begin["before"]["root"]}
        deployments.replace(tx, {**dict(deployment), **known})
    cache = undo.cache_for(tx.state_root)
    manifest, after = roothash.timed(dict(tx.journal.records[0]["scope"]), cache, _progress(tx, "measure"))
    cache.save()
    manifest.save(undo.after_manifest(tx))
    undo.flush(tx, tx.journal.records[0])
    tx.journal.append("committed", deployment=bool(deployment), after={"root": after["root"]})
    _close(tx)
    _unlink(os.path.join(tx.snapshots, "ballast"))
    return {"run_id": tx.run_id, "after": after}


@verb("tx_abort")
def tx_abort(params: Params, emit: Emit) -> Params:
    """Undo everything and prove it. Result of :func:`undo.unwind`; raises ``rollback_failed`` (exit 7)."""
    tx = _current(emit)
    try:
        return undo.unwind(tx, str(params.get("reason") or "aborted"))
    finally:
        _close(tx)


def _start(work: Work, path: str, params: Params) -> Tuple[journal.Journal, Dict[str, Any]]:
    scope = dict(params.get("scope") or {})
    os.makedirs(work.snapshots, 0o700)
    cache = undo.cache_for(work.state_root)
    manifest, before = roothash.timed(scope, cache, _progress(work, "measure"))
    cache.save()
    manifest.save(undo.before_manifest(work))
    undo.reserve(work)
    log = journal.Journal.create(path)
    log.append(
        "begin",
        run_id=work.run_id,
        who=str(params.get("who") or ""),
        message=str(params.get("message") or ""),
        tool_version=str(params.get("tool_version") or ""),
        pid=os.getpid(),
        scope=scope,
        before={"root": before["root"], "parts": {name: part["hash"] for name, part in before["parts"].items()}},
    )
    return log, before


def _current(emit: Emit) -> Tx:
    if _Open.tx is None:
        raise HostError("no_transaction", "no transaction is open", exit=1)
    _Open.tx.emit = emit
    return _Open.tx


def _close(tx: Tx) -> None:
    _Open.tx = None
    off_lost(_lost)
    set_idle_limit(None)
    locks.release(tx.state_root)


def _lost(reason: str) -> None:
    """The controller is gone while the transaction is open: undo it here and now."""
    tx = _Open.tx
    if tx is None:
        return
    tx.emit = lambda _event: None
    try:
        undo.unwind(tx, "controller lost: %s" % reason)
    finally:
        _close(tx)


def _progress(work: Work, step: str) -> roothash.Progress:
    def report(done: int, total: int) -> None:
        work.progress(step, "read %s" % preflight.megabytes(done), done, total)

    return report


def _note(tx: Tx, kind: str, **fields: Any) -> None:
    try:
        tx.journal.append(kind, **fields)
    except OSError:
        pass  # no space: the journal then ends with the operation's start, which says enough


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
