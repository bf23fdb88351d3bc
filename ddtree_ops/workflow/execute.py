"""The transaction of a deploy: every step in turn; at the end a deployment that is recorded, or a host as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from .. import __version__
from ..applying.transaction import Transaction
from ..errors import DdtreeError, Interrupted, RollbackFailed, RolledBack, StepFailed, TransportError, as_error
from ..planning.plan import Prepared
from ..planning.wanted import Wanted
from ..remote.channel import Link
from ..ui.progress import Steps
from . import prepare, record
from .playbook import Playbook
from .session import Survey
from .steps import STEPS, Run, settle


class Failed(msgspec.Struct, frozen=True):
    """The step that failed; ``service``: it belongs to the service, so this is a failed health check."""

    step: str
    title: str
    service: bool
    error: BaseException


def carry_out(
    link: Link,
    survey: Survey,
    playbook: Playbook,
    wanted: Wanted,
    prepared: Prepared,
    progress: Steps,
    secrets: Mapping[str, str],
    beside: Path | None = None,
) -> dict[str, Any]:
    """Carry the plan out; the report of the host.

    Raises:
        RolledBack: the service did not come up or its checks failed; everything was undone and proven (exit 6).
        StepFailed: another step failed; everything was undone and proven (exit 4).
        Interrupted: the same after Ctrl-C. RollbackFailed: the way back did not end where it began (exit 7).
        TransportError: the connection is gone; the host undoes by itself.
    """
    tx = _transaction(link, survey, prepared, progress)
    run = Run(
        host=survey.host,
        facts=survey.facts,
        wanted=wanted,
        prepared=prepared,
        tx=tx,
        progress=progress,
        secrets=secrets,
        link=link,
        beside=beside,
    )
    with progress.step("snapshot", "Lock, and measure what a rollback must bring back"):
        before = tx.begin(on_event=progress.event)
    try:
        failure = _steps(run, playbook)
        if failure is None or _may_stay(failure, playbook):
            unrecorded = _record(run, playbook, failure)
            if unrecorded is None:
                return record.report(run, before, None if failure is None else (failure.step, failure.error))
            failure = unrecorded
        undo(run, failure)
    finally:
        tx.release()


def _transaction(link: Link, survey: Survey, prepared: Prepared, progress: Steps) -> Transaction:
    return Transaction(
        link,
        state_root=prepared.layout.state_root,
        message=f"deploy {prepared.plan.release_id}",
        scope=prepare.scope_of(survey, prepared),
        need_bytes=int(next((need.needed for need in prepared.plan.needs if need.unit == "MB"), 0) * 1e6),
        writes=[prepared.live.root],
        tool_version=__version__,
        tell=progress.output.say,
    )


def _steps(run: Run, playbook: Playbook) -> Failed | None:
    for step in playbook.steps:

        def act(name: str = step.kind.name, params: Mapping[str, Any] = step.params) -> None:
            STEPS[name](run, params)
            run.tx.check_interrupt()

        failure = _attempt(run, step.kind.name, step.title, act, service=step.kind.service)
        if failure is not None:
            return failure
    return None


def _record(run: Run, playbook: Playbook, failure: Failed | None) -> Failed | None:
    """Make it the host's deployment; what cannot be recorded is undone like any failed step."""

    def act() -> None:
        if failure is None and playbook.has("start") and not playbook.has("enable"):
            settle(run)
        run.tx.commit(record.deployment(run, healthy=failure is None), on_event=run.progress.event)

    return _attempt(run, "journal", "Record the deployment", act)


def _attempt(run: Run, name: str, title: str, act: Callable[[], None], *, service: bool = False) -> Failed | None:
    try:
        with run.progress.step(name, title):
            act()
    except BaseException as error:  # whatever it is, the host is put back before anybody hears of it
        return Failed(name, title, service, error)
    return None


def _may_stay(failure: Failed, playbook: Playbook) -> bool:
    """``on_failure: leave`` is for a service that is not well, not for a lost connection or a user who wants out."""
    gone = isinstance(failure.error, Interrupted | TransportError | RollbackFailed)
    return failure.service and playbook.on_failure == "leave" and isinstance(failure.error, DdtreeError) and not gone


def undo(run: Run, failure: Failed) -> NoReturn:
    """Take everything back, prove it, and raise what the exit code has to say."""
    cause = failure.error
    if isinstance(cause, TransportError):
        raise _left_to_the_host(cause, run)
    if isinstance(cause, KeyboardInterrupt):  # the second Ctrl-C
        raise run.tx.stopped()
    if isinstance(cause, Interrupted) and cause.reason == "stopped":
        raise cause
    try:
        with run.progress.step("undo", "Undo everything and prove it"):
            undone = run.tx.abort(f"{failure.step}: {cause}", on_event=run.progress.event)
    except TransportError as lost:
        raise _left_to_the_host(lost, run) from cause
    except RollbackFailed as failed:
        failed.why = failed.why or f"it began with: {failure.title}: {as_error(cause).what}"
        raise failed from cause
    raise _outcome(failure, run.host.name, _proof(undone)) from cause


def _outcome(failure: Failed, host: str, proof: str) -> DdtreeError:
    """The error for a run that was undone and proven."""
    cause = failure.error
    if isinstance(cause, Interrupted):
        return Interrupted("interrupted; everything was undone", why=proof, next_step="nothing was left behind")
    error = as_error(cause)
    if error.exit_code == DdtreeError.exit_code:  # a bug of ours, here or on the host, stays one
        error.why = "; ".join(part for part in (error.why, proof) if part)
        return error
    kind = RolledBack if failure.service else StepFailed
    return kind(
        f"{failure.title}: {error.what}",
        where=error.where or host,
        why="; ".join(part for part in (error.why, proof) if part),
        next_step=error.next_step,
        code=error.reason,
        details={"step": failure.step, **error.details},
    )


def _left_to_the_host(error: TransportError, run: Run) -> TransportError:
    error.why = "; ".join(part for part in (error.why, "the host undoes an open transaction by itself") if part)
    host = run.host.name
    error.next_step = (
        f"ddtree-ops status --host {host} tells what it is in; ddtree-ops recover --host {host} finishes the rest"
    )
    return error


def _proof(undone: Mapping[str, Any]) -> str:
    root = str(undone.get("root") or "")
    return f"the host is as before, root hash {root[:16]}" if root else "the host is as before"
