"""``plan`` and ``deploy``: look, decide, show, ask, change, prove; and undo by itself when it fails."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..attest.request import attest
from ..errors import ConfigError, DdtreeError, Drift, Unhealthy, UsageError
from ..inventory import HOST_FILE, Host, Inventory
from ..jsontext import json_bytes
from ..model import Plan, StepCall
from ..planning.plan import Prepared
from ..planning.wanted import Wanted
from ..remote.channel import Link
from ..ui import plan as plan_ui
from ..ui import report as report_ui
from . import prepare
from .bench_gate import planned
from .bench_progress import Bars
from .execute import carry_out
from .playbook import Playbook, load
from .session import Outcome, Survey, consent, each, hosts_of, linked, look, only

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
    gate: Path | None = None


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A survey and what follows from it; ``prepared`` is None when nothing is to be done."""

    survey: Survey
    playbook: Playbook
    wanted: Wanted
    plan: Plan
    prepared: Prepared | None


def show_plan(
    context: Context,
    options: Options,
    *,
    output: Path | None = None,
    detailed: bool = False,
    plan_file: Path | None = None,
) -> int:
    """``plan``, and ``deploy --check``: exit 4 when a deploy would be refused, 0 or (detailed) 10 otherwise."""
    inventory, hosts = hosts_of(context, service__budget=options.budget)
    if output is not None:
        only(hosts, "plan -o")
    if plan_file is not None:
        only(hosts, "deploy --plan")

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            found = _look(link, host, inventory, options)
        if plan_file is not None:
            prepare.hold_to(plan_file, found.plan)
        if not context.output.json:
            plan_ui.show(context.output.out, found.plan, diff=options.diff)
        if output is not None:
            _save(output, found.plan)
            context.output.note(f"saved: {output}")
        return _plan_code(context, host, found.plan, detailed), msgspec.to_builtins(found.plan)

    return each(context, "plan", hosts, one, key="plans")


def _plan_code(context: Context, host: Host, plan: Plan, detailed: bool) -> int:
    if plan.noop:
        return 0
    try:
        prepare.refuse_if_blocked(plan)
    except DdtreeError as refusal:  # the plan is shown all the same, and then what stands in its way
        context.output.error(refusal, host.name)
        return refusal.exit_code
    return Drift.exit_code if detailed else 0


def _save(path: Path, plan: Plan) -> None:
    try:
        path.write_bytes(json_bytes(plan, indent=2))
    except OSError as error:
        raise ConfigError(f"the plan cannot be saved: {error.strerror}", where=str(path), next_step="check -o")


def deploy(context: Context, options: Options, *, yes: bool, plan_file: Path | None) -> int:
    """``deploy``: everything above, carried out."""
    inventory, hosts = hosts_of(context, service__budget=options.budget)
    if plan_file is not None:
        only(hosts, "deploy --plan")

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            report = _deploy(context, link, host, inventory, options, yes, plan_file)
        if not context.output.json and report["outcome"] != "unchanged":
            report_ui.show(context.output.out, report)
        return Unhealthy.exit_code if report["outcome"] == "unhealthy" else 0, report

    return each(context, "deploy", hosts, one)


def _look(link: Link, host: Host, inventory: Inventory, options: Options) -> Look:
    takeover = unit_name(options.takeover or ("" if options.no_service else host.takeover))
    wanted, steps = prepare.wanted_for(
        host,
        load("deploy", options.playbook, inventory.beside),
        service=not options.no_service,
        takeover=takeover,
        baseline=options.baseline,
    )
    steps = _gated(steps, options, wanted.budget, inventory)
    survey = look(link, host, inventory.beside, takeover)
    prepare.refuse_if_verdict_refuses(survey)
    if prepare.is_deployed(survey, wanted):
        _refuse_if_drifted(link, survey)
        return Look(survey=survey, playbook=steps, plan=prepare.noop_plan(survey), prepared=None, wanted=wanted)
    prepare.refuse_if_another_is_deployed(survey, wanted)
    prepared = prepare.prepare(link, survey, wanted)
    calls = tuple(StepCall(name=s.kind.name, title=s.title, params=s.params) for s in steps.steps)
    plan = msgspec.structs.replace(prepared.plan, steps=calls)
    return Look(survey=survey, playbook=steps, plan=plan, prepared=prepared, wanted=wanted)


def _gated(steps: Playbook, options: Options, budget: int, inventory: Inventory) -> Playbook:
    """The steps with the gate of the command line; every gate is read before anything starts.

    Raises:
        UsageError: a gate without a service. ConfigError: a mistake in the gates, or gates that cannot be decided.
    """
    if options.gate is not None and not steps.has("start"):
        raise UsageError("--gate needs the service", where="--gate", next_step="leave one out")
    if options.gate is not None:
        steps = steps.with_gate(options.gate.absolute())
    for step in steps.steps:
        if step.kind.name == "gate":
            step.params["file"] = str((inventory.beside or Path()).absolute() / step.params["file"])
            planned(Path(step.params["file"]), budget, inventory.beside)
    return steps


def unit_name(text: str) -> str:
    """A unit's full name, or a pid, as ``--takeover`` may give it."""
    return text if not text or text.isdigit() or text.endswith(".service") else f"{text}.service"


def _refuse_if_drifted(link: Link, survey: Survey) -> None:
    """What is wanted is recorded as deployed; "nothing to do" is only said when it is also there, and runs."""
    deployment = survey.facts.deployment
    assert deployment is not None
    findings = [str(line) for line in attest(link, deployment).get("findings", ())]
    if not findings:
        return
    kind = Unhealthy if deployment.unit else Drift
    again = "ddtree-ops restart, if only the service is not well; else " if deployment.unit else ""
    raise kind(
        f"this build is deployed, but not as it was: {findings[0]}",
        where=survey.host.name,
        why="; ".join(findings[1:]),
        next_step=f"{again}ddtree-ops rollback, then deploy again",
        details={"findings": findings},
    )


def _deploy(
    context: Context,
    link: Link,
    host: Host,
    inventory: Inventory,
    options: Options,
    yes: bool,
    plan_file: Path | None,
) -> dict[str, Any]:
    output = context.output
    found = _look(link, host, inventory, options)
    if plan_file is not None:
        prepare.hold_to(plan_file, found.plan)
    if found.prepared is None:
        output.note(f"{host.name}: nothing to do; build {found.plan.build_id[:12]} is deployed", style="green")
        return {"host": host.name, "outcome": "unchanged", "build_id": found.plan.build_id}
    prepare.refuse_if_blocked(found.plan)
    secrets = {n: s.read() for n, s in host.service.secrets.items() if not s.source.startswith(HOST_FILE)}
    seen = plan_file is not None or (yes and output.verbosity < 0)  # when it was saved; or nobody wants to see it
    if not output.json and not seen:
        plan_ui.show(output.err, found.plan, diff=options.diff)
    consent(context, yes, f"Change {host.name} as planned?")
    started = time.monotonic()
    progress = Bars(output, host.name)
    with progress:
        report = carry_out(
            link, found.survey, found.playbook, found.wanted, found.prepared, progress, secrets, inventory.beside
        )
    return {**report, "seconds": round(time.monotonic() - started, 1)}
