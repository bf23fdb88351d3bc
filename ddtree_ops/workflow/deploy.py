"""``plan`` and ``deploy``: look, decide, show, ask, change, prove; and undo by itself when it fails."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..applying.transaction import Transaction
from ..errors import (
    DdtreeError,
    Interrupted,
    Refused,
    RollbackFailed,
    RolledBack,
    StepFailed,
    TransportError,
    Unhealthy,
)
from ..inventory import HOST_FILE, Host, Inventory
from ..model import Plan, StepCall
from ..patching.text import sha256
from ..planning.plan import Prepared
from ..remote.channel import Link
from ..ui import plan as plan_ui
from ..ui import report as report_ui
from ..ui.progress import Steps
from . import prepare
from .playbook import Playbook, load
from .session import Survey, consent, each, hosts_of, linked, look
from .steps import STEPS, Run, expected_hashes, settle

if TYPE_CHECKING:
    from ..cli import Context


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says beside the inventory."""

    budget: int | None = None
    takeover: str | None = None
    no_service: bool = False
    baseline: bool = False
    playbook: Path | None = None
    diff: bool = False


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A survey and what follows from it; ``prepared`` is None when nothing is to be done."""

    survey: Survey
    playbook: Playbook
    plan: Plan
    prepared: Prepared | None
    wanted: Any


def show_plan(context: Context, options: Options, output: Path | None, detailed: bool) -> int:
    """``plan``, and ``deploy --check``: exit 4 when a deploy would be refused, 0 or (detailed) 10 otherwise."""
    inventory, hosts = hosts_of(context, service__budget=options.budget)
    plans: list[Plan] = []

    def one(host: Host) -> int:
        with linked(context, host) as link:
            found = _look(link, host, inventory, options)
        plans.append(found.plan)
        if not context.output.json:
            plan_ui.show(context.output.out, found.plan, diff=options.diff)
        if output is not None and not found.plan.noop:
            output.write_bytes(msgspec.json.format(msgspec.json.encode(found.plan), indent=2) + b"\n")
            context.output.note(f"saved: {output}")
        if found.plan.noop:
            return 0
        try:
            prepare.refuse_if_blocked(found.plan)
        except Refused as refusal:  # the plan is shown all the same, and then what stands in its way
            context.output.error(refusal, host.name)
            return refusal.exit_code
        return 10 if detailed else 0

    code = each(context, hosts, one)
    if context.output.json:
        context.output.document("plan", {"plans": msgspec.to_builtins(plans)})
    return code


def deploy(context: Context, options: Options, *, yes: bool, plan_file: Path | None) -> int:
    """``deploy``: everything above, carried out."""
    inventory, hosts = hosts_of(context, service__budget=options.budget)
    reports: list[dict[str, Any]] = []

    def one(host: Host) -> int:
        with linked(context, host) as link:
            code, report = _deploy(context, link, host, inventory, options, yes, plan_file)
        reports.append(report)
        return code

    code = each(context, hosts, one)
    if context.output.json:
        context.output.document("deploy", {"hosts": reports})
    return code


def _look(link: Link, host: Host, inventory: Inventory, options: Options) -> Look:
    takeover = options.takeover or host.takeover
    survey = look(link, host, inventory.beside, takeover)
    playbook = load("deploy", options.playbook, inventory.beside)
    wanted, steps = prepare.wanted_for(
        host, playbook, service=not options.no_service, takeover=takeover, baseline=options.baseline
    )
    prepare.refuse_if_verdict_refuses(survey)
    if prepare.is_deployed(survey, wanted):
        return Look(survey=survey, playbook=steps, plan=prepare.noop_plan(survey), prepared=None, wanted=wanted)
    prepared = prepare.prepare(link, survey, wanted)
    calls = tuple(StepCall(name=s.kind.name, title=s.title, params=s.params) for s in steps.steps)
    plan = msgspec.structs.replace(prepared.plan, steps=calls)
    return Look(survey=survey, playbook=steps, plan=plan, prepared=prepared, wanted=wanted)


def _deploy(
    context: Context,
    link: Link,
    host: Host,
    inventory: Inventory,
    options: Options,
    yes: bool,
    plan_file: Path | None,
) -> tuple[int, dict[str, Any]]:
    output = context.output
    found = _look(link, host, inventory, options)
    if plan_file is not None:
        prepare.hold_to(plan_file, found.plan)
    if found.prepared is None:
        output.note(f"{host.name}: nothing to do; build {found.plan.build_id[:12]} is deployed", style="green")
        return 0, {"host": host.name, "outcome": "unchanged", "build_id": found.plan.build_id}
    prepare.refuse_if_blocked(found.plan)
    if not output.json and plan_file is None:  # a saved plan was seen when it was made
        plan_ui.show(output.err, found.plan, diff=options.diff)
    consent(context, yes, f"Change {host.name} as planned?")
    secrets = {n: s.read() for n, s in host.service.secrets.items() if not s.source.startswith(HOST_FILE)}
    started = time.monotonic()
    with Steps(output, host.name) as progress:
        report = _carry_out(link, found, found.prepared, progress, secrets)
    report["seconds"] = round(time.monotonic() - started, 1)
    if not output.json:
        report_ui.show(output.out, report)
    code = 9 if report["outcome"] == "unhealthy" else 0
    return code, report


def _carry_out(link: Link, found: Look, prepared: Prepared, progress: Steps, secrets: dict[str, str]) -> dict[str, Any]:
    survey = found.survey
    tx = Transaction(
        link,
        state_root=prepared.layout.state_root,
        message=f"deploy {prepared.plan.release_id}",
        scope=prepare.scope_of(survey, prepared),
        need_bytes=int(next((need.needed for need in prepared.plan.needs if need.unit == "MB"), 0) * 1e6),
        writes=[prepared.live.root],
        tool_version=__version__,
    )
    run = Run(
        host=survey.host,
        facts=survey.facts,
        wanted=found.wanted,
        prepared=prepared,
        tx=tx,
        progress=progress,
        secrets=secrets,
    )
    with progress.step("snapshot", "Lock, and measure what a rollback must bring back"):
        before = tx.begin(on_event=progress.event)
    failure = _run_steps(run, found.playbook)
    if failure is not None and not _may_stay(failure, found.playbook):
        _undo(run, failure)
    if failure is None and found.playbook.has("start") and not found.playbook.has("enable"):
        settle(run)
    with progress.step("journal", "Record the deployment"):
        tx.commit(_deployment(run, failure), on_event=progress.event)
    return _report(run, before, failure)


class _Failed(msgspec.Struct, frozen=True):
    step: str
    title: str
    service: bool
    error: BaseException


def _run_steps(run: Run, playbook: Playbook) -> _Failed | None:
    for step in playbook.steps:
        try:
            with run.progress.step(step.kind.name, step.title):
                STEPS[step.kind.name](run, step.params)
                run.tx.check_interrupt()
        except (DdtreeError, KeyboardInterrupt) as error:
            return _Failed(step.kind.name, step.title, step.kind.service, error)
        except Exception as error:  # a bug of ours: the host is put back before it is reported
            return _Failed(step.kind.name, step.title, step.kind.service, error)
    return None


def _may_stay(failure: _Failed, playbook: Playbook) -> bool:
    return failure.service and playbook.on_failure == "leave" and isinstance(failure.error, DdtreeError)


def _undo(run: Run, failure: _Failed) -> None:
    """Take everything back, prove it, and raise what the exit code has to say."""
    cause = failure.error
    if isinstance(cause, TransportError):
        cause.details.setdefault("note", "the host undoes an open transaction by itself")
        cause.next_step = "ddtree-ops status tells what the host is in; ddtree-ops recover finishes what it could not"
        raise cause
    with run.progress.step("undo", "Undo everything and prove it"):
        undone = run.tx.abort(f"{failure.step}: {cause}", on_event=run.progress.event)
    if isinstance(cause, RollbackFailed):
        raise cause
    if isinstance(cause, KeyboardInterrupt | Interrupted):
        raise Interrupted("interrupted; everything was undone", why=_proof(undone), next_step="nothing was left behind")
    if not isinstance(cause, DdtreeError):
        raise cause
    kind = RolledBack if failure.service else StepFailed
    raise kind(
        f"{failure.title.lower()} failed: {cause.what}",
        where=cause.where or run.host.name,
        why="; ".join(part for part in (cause.why, _proof(undone)) if part),
        next_step=cause.next_step,
        code=cause.reason,
        details={"step": failure.step, **cause.details},
    ) from cause


def _proof(undone: dict[str, Any]) -> str:
    root = str(undone.get("root") or undone.get("before", {}).get("root", ""))
    return f"the host is as before, root hash {root[:16]}" if root else "the host is as before"


def _deployment(run: Run, failure: _Failed | None) -> dict[str, Any]:
    """``deployment.json`` (model.Deployment), less what the host fills in."""
    prepared, build = run.prepared, run.prepared.build
    files = {f"{prepared.layout.package}/{path}": digest for path, digest in expected_hashes(run).items()}
    if prepared.unit is not None:
        files[prepared.unit.path] = sha256(prepared.unit.text.encode())
    interpreter = next(one for one in run.facts.interpreters if one.path == prepared.plan.verdict.environment)
    spec = prepared.spec
    return {
        "release_id": build.release_id,
        "build_id": build.build_id,
        "strategy": prepared.plan.verdict.strategy,
        "environment": interpreter.path,
        "prefix": interpreter.prefix,
        "tree": prepared.layout.tree,
        "package_dir": prepared.layout.package,
        "unit": spec.unit if spec else "",
        "port": spec.port if spec else 0,
        "created": time.time(),
        "tool_version": __version__,
        "files": files,
        "settings": msgspec.to_builtins(spec) if spec else {},
        "takeover": run.wanted.takeover,
        "series": build.series,
        "base_hash": build.base_hash,
        "patch_hash": build.patch_hash,
        "healthy": failure is None,
        "baseline": run.seen.get("baseline", {}),
    }


def _report(run: Run, before: dict[str, Any], failure: _Failed | None) -> dict[str, Any]:
    build = run.prepared.build
    return {
        "host": run.host.name,
        "outcome": "deployed" if failure is None else "unhealthy",
        "release_id": build.release_id,
        "build_id": build.build_id,
        "strategy": run.prepared.plan.verdict.strategy,
        "tree": run.prepared.layout.tree,
        "unit": run.prepared.spec.unit if run.prepared.spec else "",
        "root_before": before.get("root", ""),
        "steps": {name: round(seconds, 2) for name, seconds in run.progress.seconds.items()},
        "seen": _seen(run),
        "failure": None if failure is None else _failure(failure),
    }


def _seen(run: Run) -> dict[str, Any]:
    """What the steps found, less the bulk: answers of the baseline, and every request of the bench."""
    found = dict(run.seen)
    if "baseline" in found:
        found["baseline"] = {key: value for key, value in found["baseline"].items() if key != "answers"}
    return found


def _failure(failure: _Failed) -> dict[str, Any]:
    error = failure.error if isinstance(failure.error, DdtreeError) else Unhealthy(str(failure.error))
    return {"step": failure.step, **error.as_dict()}
