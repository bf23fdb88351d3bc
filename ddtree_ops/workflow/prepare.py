"""From a look at the host to a plan that can be carried out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import ConfigError, HostLocked, PlanStale, Refused, UsageError
from ..inventory import Host
from ..jsontext import json_bytes
from ..model import Deployment, Plan, Refusal
from ..patching.payload import load_payload
from ..patching.plan import plan_patch
from ..patching.text import sha256
from ..planning import checks
from ..planning.build import is_current, make_build
from ..planning.digest import facts_digest
from ..planning.layout import state_root
from ..planning.plan import Prepared, make_plan
from ..planning.service_spec import service_spec
from ..planning.wanted import Wanted
from ..remote.channel import Link
from ..service.settings import ServiceSpec
from ..service.units import service_unit
from .playbook import Playbook
from .session import Survey, base_files, live_files


def refuse_if_verdict_refuses(survey: Survey) -> None:
    """Raise what the verdict refused, with where it was looked for and the smallest safe next step."""
    refusal = survey.verdict.refusal
    if survey.verdict.strategy == "refuse":
        refusal = refusal or Refusal(code="refused", reason=survey.verdict.sentence)
        raise Refused(
            refusal.reason,
            where=survey.host.name,
            why="looked at: " + ", ".join(refusal.looked_at) if refusal.looked_at else "",
            next_step=refusal.next_step,
            code=refusal.code,
            details={"looked_at": list(refusal.looked_at)},
        )


def prepare(link: Link, survey: Survey, wanted: Wanted) -> Prepared:
    """The plan for what the survey found; asks the host only for the bytes of the files to be patched.

    Raises:
        Refused: the verdict refuses, or the patch cannot be made (conflict, damaged series, missing anchor).
    """
    refuse_if_verdict_refuses(survey)
    files, base = live_files(link, survey), base_files(link, survey)
    patch = plan_patch(survey.patches.recipe, survey.series, files, base=base)
    payload = load_payload(survey.patches.recipe)
    build = make_build(survey.live, survey.series, patch, payload)
    return make_plan(survey.host, survey.facts, survey.verdict, survey.live, build, wanted)


def is_deployed(survey: Survey, wanted: Wanted) -> bool:
    """Whether exactly what is wanted is recorded as deployed and healthy: build, unit text, and that tree live."""
    deployment = survey.facts.deployment
    if deployment is None or not deployment.healthy:
        return False
    payload = load_payload(survey.patches.recipe)
    live = next((copy for copy in survey.facts.copies if copy.id == survey.verdict.live), None)
    if live is None or live.ddtree_build_id != deployment.build_id or not is_current(deployment, payload):
        return False
    if bool(deployment.unit) != wanted.service:
        return False
    if not wanted.service:
        return True
    if not (survey.host.service.target_model and survey.host.service.drafter):
        return False
    unit = service_unit(_spec_wanted(survey, deployment, wanted))
    return deployment.files.get(unit.path) == sha256(unit.text.encode())


def _spec_wanted(survey: Survey, deployment: Deployment, wanted: Wanted) -> ServiceSpec:
    """The service as the inventory wants it now, on the build that is deployed."""
    root = state_root(survey.host, survey.facts)
    ids = (deployment.release_id, deployment.build_id)
    return service_spec(survey.host, survey.facts, deployment.environment, root, wanted.budget, ids)


def refuse_if_another_is_deployed(survey: Survey, wanted: Wanted) -> None:
    """Raise when something is deployed that is not what is wanted: one deployment at a time, and its way back first."""
    deployment = survey.facts.deployment
    if deployment is None:
        return
    pending = [check for check in checks.state(survey.facts) if check.name in _NOT_NOW]
    if pending:
        raise _NOT_NOW[pending[0].name](pending[0].text, where=survey.host.name, next_step=pending[0].next_step)
    raise Refused(
        f"{_what_is_deployed(survey, deployment, wanted)} (run {deployment.run_id})",
        where=survey.host.name,
        next_step=f"ddtree-ops rollback --host {survey.host.name}, then deploy again",
        code="deployment",
    )


def _what_is_deployed(survey: Survey, deployment: Deployment, wanted: Wanted) -> str:
    if not deployment.healthy:
        return f"build {deployment.build_id[:12]} was left here although its service was not well"
    if not is_current(deployment, load_payload(survey.patches.recipe)):
        return f"another build ({deployment.build_id[:12]}) is deployed"
    if bool(deployment.unit) != wanted.service:
        return "this build is deployed " + ("with a service" if deployment.unit else "without a service")
    new = msgspec.to_builtins(_spec_wanted(survey, deployment, wanted)) if wanted.service else {}
    changed = [
        f"{key} {deployment.settings.get(key)} there, {value} wanted"
        for key, value in new.items()
        if deployment.settings.get(key) != value
    ]
    return "this build is deployed with other settings: " + ("; ".join(changed[:4]) or "another unit text")


def noop_plan(survey: Survey) -> Plan:
    """The plan of a second run: nothing."""
    deployment = survey.facts.deployment
    assert deployment is not None
    return Plan(
        host=survey.host.name,
        address=survey.host.address or "this machine",
        created=survey.facts.host.time,
        facts_digest=facts_digest(survey.facts, survey.verdict),
        verdict=survey.verdict,
        release_id=deployment.release_id,
        build_id=deployment.build_id,
        noop=True,
    )


SERVICE_STEPS = ("unit", "takeover", "baseline", "start", "ready", "identity", "smoke", "gate", "enable")


def wanted_for(
    host: Host, playbook: Playbook, *, service: bool, takeover: str, baseline: bool
) -> tuple[Wanted, Playbook]:
    """The wishes and the steps that apply to them.

    Raises:
        UsageError: options that contradict each other. ConfigError: the playbook lacks a step that they need.
    """
    for flag, given in (("--takeover", bool(takeover)), ("--baseline", baseline)):
        if given and not service:
            raise UsageError(f"{flag} needs the service", where=f"{flag} --no-service", next_step="leave one out")
        if given and not playbook.has(flag[2:]):
            raise ConfigError(
                f"{flag} needs the step {flag[2:]}, which the playbook leaves out",
                where=playbook.origin,
                next_step=f"put `- step: {flag[2:]}` back, or leave {flag} out",
            )
    service = service and playbook.has("unit")
    dropped = [*(SERVICE_STEPS if not service else ()), *(() if takeover else ("takeover",))]
    steps = playbook.without(*dropped, *(() if baseline else ("baseline",)))
    wanted = Wanted(
        budget=host.service.budget,
        takeover=takeover,
        service=service,
        baseline=baseline,
        ready_timeout=host.service.readiness_timeout,
    )
    return wanted, steps


def refuse_if_blocked(plan: Plan) -> None:
    """Raise the checks and needs that forbid the deploy, the first as the message, all in the details.

    Raises:
        HostLocked: another run works there. PlanStale: a run was interrupted there (both exit 5, as when the
        transaction finds it). Refused: anything else (exit 4).
    """
    failing = [*plan.blocked]
    short = [need for need in plan.needs if not need.enough]
    if not failing and not short:
        return
    lines = [f"{check.name}: {check.text}" for check in failing]
    lines += [f"{need.what}: {need.needed:,.0f} of {need.available:,.0f} {need.unit} {need.note}" for need in short]
    next_step = next((check.next_step for check in failing if check.next_step), "free what is missing, then run again")
    name = failing[0].name if failing else "need"
    raise _NOT_NOW.get(name, Refused)(
        lines[0],
        where=plan.host,
        why="; ".join(lines[1:]),
        next_step=next_step,
        code=_CODES.get(name) or name.replace(" ", "_"),
        details={"checks": lines},
    )


def hold_to(saved: Path, plan: Plan) -> None:
    """Raise unless the saved plan is still the plan, or what it planned is deployed already.

    Raises:
        ConfigError: the file is no plan of this version. PlanStale: the host moved, or other options were given now.
    """
    try:
        old = msgspec.json.decode(saved.read_bytes(), type=Plan)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"the plan cannot be read: {error}", where=str(saved), next_step="make it again: ddtree-ops plan -o"
        )
    new = msgspec.json.decode(json_bytes(plan), type=Plan)
    if new.noop and (old.host, old.build_id) == (new.host, new.build_id):
        return
    differences = [name for name in _HELD if getattr(old, name) != getattr(new, name)]
    if not differences:
        return
    moved = old.facts_digest != new.facts_digest
    raise PlanStale(
        "the host is no longer what the plan was made for" if moved else "this is not the deploy that was planned",
        where=f"{saved}: {', '.join(differences)}",
        why="what is installed, imported, deployed or running there changed"
        if moved
        else "the options, the inventory, the playbook or ddtree-ops itself differ from when the plan was saved",
        next_step=f"look at the new plan and save it again: ddtree-ops plan -o {saved}",
    )


_NOT_NOW: dict[str, type[PlanStale]] = {"lock": HostLocked, "interrupted run": PlanStale}
_CODES = {"lock": "locked", "interrupted run": "interrupted"}
_HELD = ("host", "address", "facts_digest", "build_id", "steps", "settings", "units", "commands", "stops")


def scope_of(survey: Survey, prepared: Prepared) -> dict[str, object]:
    """What the root hash covers: environment, the operator's checkouts, units and their enablement."""
    interpreter = next(one for one in survey.facts.interpreters if one.path == survey.verdict.environment)
    checkouts = {copy.git.toplevel for copy in survey.facts.copies if copy.git is not None}
    managed = survey.host.init == "systemd" and survey.facts.host.pid1 == "systemd"
    named = [survey.host.service.unit, *(unit.name for unit in survey.facts.units)] if managed else []
    return {
        "environment": interpreter.prefix,
        "checkouts": sorted(path for path in checkouts if not path.startswith(prepared.layout.state_root)),
        "unit_paths": [prepared.unit.path] if prepared.unit is not None else [],
        "units": sorted(set(named)),
    }
