"""From a look at the host to a plan that can be carried out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import ConfigError, PlanStale, Refused
from ..inventory import Host
from ..model import Plan, Refusal
from ..patching.payload import load_payload
from ..patching.plan import plan_patch
from ..planning.build import is_current, make_build
from ..planning.digest import facts_digest
from ..planning.layout import state_root
from ..planning.plan import Prepared, make_plan
from ..planning.service_spec import service_spec
from ..planning.wanted import Wanted
from ..remote.channel import Link
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
    """Whether exactly what is wanted is deployed already: same build, same unit text, the live copy is that tree."""
    deployment = survey.facts.deployment
    if deployment is None:
        return False
    payload = load_payload(survey.patches.recipe)
    live = next((copy for copy in survey.facts.copies if copy.id == survey.verdict.live), None)
    if live is None or live.ddtree_build_id != deployment.build_id or not is_current(deployment, payload):
        return False
    if not wanted.service:
        return not deployment.unit
    root = state_root(survey.host, survey.facts)
    ids = (deployment.release_id, deployment.build_id)
    spec = service_spec(survey.host, survey.facts, deployment.environment, root, wanted.budget, ids)
    unit = service_unit(spec)
    from ..patching.text import sha256

    return deployment.files.get(unit.path) == sha256(unit.text.encode())


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


def wanted_for(
    host: Host, playbook: Playbook, *, service: bool, takeover: str, baseline: bool
) -> tuple[Wanted, Playbook]:
    """The wishes and the steps that apply to them."""
    steps = playbook
    if not service:
        steps = steps.without("unit", "takeover", "baseline", "start", "ready", "identity", "smoke", "enable")
    if not takeover:
        steps = steps.without("takeover")
    if not baseline:
        steps = steps.without("baseline")
    if baseline and not service:
        raise ConfigError("--baseline needs the service", where="--baseline --no-service", next_step="leave one out")
    wanted = Wanted(
        budget=host.service.budget,
        takeover=takeover,
        service=service,
        baseline=baseline,
        steps=tuple(step.kind.name for step in steps.steps),
        ready_timeout=host.service.readiness_timeout,
    )
    return wanted, steps


def refuse_if_blocked(plan: Plan) -> None:
    """Raise the checks and needs that forbid the deploy, the first as the message, all in the details."""
    failing = [*plan.blocked]
    short = [need for need in plan.needs if not need.enough]
    if not failing and not short:
        return
    lines = [f"{check.name}: {check.text}" for check in failing]
    lines += [f"{need.what}: {need.needed:,.0f} of {need.available:,.0f} {need.unit} {need.note}" for need in short]
    next_step = next((check.next_step for check in failing if check.next_step), "free what is missing, then run again")
    raise Refused(
        lines[0],
        where=plan.host,
        why="; ".join(lines[1:]),
        next_step=next_step,
        code=failing[0].name.replace(" ", "_") if failing else "need",
        details={"checks": lines},
    )


def hold_to(saved: Path, plan: Plan) -> None:
    """Raise unless the saved plan is still the plan.

    Raises:
        ConfigError: the file is no plan of this version. PlanStale: the host moved, or the build is another one.
    """
    try:
        old = msgspec.json.decode(saved.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"the plan cannot be read: {error}", where=str(saved), next_step="make it again: ddtree-ops plan -o"
        )
    differences = [
        name
        for name in ("host", "address", "facts_digest", "build_id", "steps", "settings")
        if getattr(old, name) != getattr(plan, name)
    ]
    if [unit.text for unit in old.units] != [unit.text for unit in plan.units]:
        differences.append("unit")
    if differences:
        raise PlanStale(
            "the host is no longer what the plan was made for",
            where=f"{saved}: {', '.join(differences)}",
            why="what is installed, imported, deployed or running there changed, or another ddtree-ops made the plan",
            next_step=f"look at the new plan and save it again: ddtree-ops plan -o {saved}",
        )


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
