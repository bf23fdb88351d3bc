"""The verbs ``rollback`` (take back a finished run) and ``recover`` (take back an interrupted one)."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import deployments, entry, journal, locks, roothash, undo
from .ops import Params, Work, absolute
from .protocol import Emit, HostError, verb

_SHOWN = 50


@verb("rollback")
def rollback(params: Params, emit: Emit) -> Params:
    """Take back the current deployment and prove the state before it.

    Params: ``state_root``, ``who``, ``message``; ``run_id`` (must then be the current deployment's), ``force`` (also
    overwrite what others changed since on the same paths). Result: that of :func:`undo.unwind` with ``deployment`` (the
    one that is current now) or ``{"nothing": true}``. ``foreign`` names what others changed elsewhere since; it stays.
    Raises ``drifted`` (exit 4, nothing done), ``rollback_failed`` (exit 7).
    """
    state_root = absolute(params, "state_root")
    entry.check(state_root)
    deployment = deployments.read(state_root)
    if deployment is None:
        return {"nothing": True}
    run_id = str(deployment.get("run_id") or "")
    if params.get("run_id") not in (None, "", run_id):
        raise HostError(
            "not_current",
            "run %s is not the current deployment, which is %s" % (params["run_id"], run_id),
            next="roll back %s first; deployments are taken back newest first" % run_id,
        )
    records = journal.read(journal.path_of(state_root, run_id))
    work = Work(state_root, run_id, emit)
    entry.enter(state_root, run_id, params)
    try:
        expected = _compare(work, dict(records[0].get("scope") or {}), bool(params.get("force")))
        result = undo.unwind(work, "rollback by %s" % (params.get("who") or "somebody"), expected)
    finally:
        locks.release(state_root)
    return {**result, "deployment": deployments.read(state_root), "nothing": False}


@verb("recover")
def recover(params: Params, emit: Emit) -> Params:
    """Take back the interrupted run, if there is one, and prove the state before it.

    Params: ``state_root``, ``who``; ``force`` (when paths still differ that no undo record restores, and a human looked
    at them: end the run all the same). Result: as for ``rollback``, ``run`` (what was found) and ``accepted`` (paths);
    or ``{"nothing": true}``.
    """
    state_root = absolute(params, "state_root")
    locks.refuse_if_held(state_root)
    run = journal.unfinished(state_root)
    if run is None:
        return {"nothing": True}
    if run.get("error"):
        raise HostError("journal_damaged", str(run["error"]), where=journal.path_of(state_root, run["run_id"]), exit=7)
    work = Work(state_root, str(run["run_id"]), emit)
    entry.enter(state_root, work.run_id, params, may_be_interrupted=True)
    try:
        reason = "recovered by %s" % (params.get("who") or "somebody")
        result = undo.unwind(work, reason, accept=bool(params.get("force")))
    finally:
        locks.release(state_root)
    return {**result, "run": run, "deployment": deployments.read(state_root), "nothing": False}


def _compare(work: Work, scope: Dict[str, Any], force: bool) -> Optional[undo.Expected]:
    """What others changed since the run ended. Refuses when that is on paths which the run changed itself."""
    before, after = (
        roothash.Manifest.load(undo.before_manifest(work)),
        roothash.Manifest.load(undo.after_manifest(work)),
    )
    cache = undo.cache_for(work.state_root)
    now = roothash.measure(scope, cache)
    cache.save()
    foreign = roothash.differences(after, now)
    touched = roothash.differences(before, after)
    both = {path: text for path, text in foreign.items() if path in touched}
    if both and not force:
        first = next(iter(both))
        raise HostError(
            "drifted",
            "%d paths that the deploy changed were changed again since, for example %s, which %s"
            % (len(both), first, both[first]),
            where=first,
            next="look at them, then: ddtree-ops rollback --force (puts them back to what they were before the deploy)",
            details={"paths": dict(list(both.items())[:_SHOWN]), "count": len(both)},
        )
    return undo.Expected({path: text for path, text in foreign.items() if path not in both}, now)
