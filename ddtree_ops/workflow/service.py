"""``status``, ``verify``, ``logs``, ``start``, ``stop``, ``restart``: the deployed service, day by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..attest.request import attest, spec_of
from ..errors import Drift, Refused, UsageError
from ..inventory import Host
from ..model import Deployment, Facts
from ..ui import status as ui
from ..ui.progress import Steps
from .session import Outcome, consent, each, facts_of, hosts_of, linked, look

if TYPE_CHECKING:
    from ..cli import Context


def deployed(facts: Facts, host: Host, *, service: bool = True) -> Deployment:
    """The deployment of a host.

    Raises:
        Refused: nothing is deployed, or (with ``service``) it was deployed without one.
    """
    if facts.deployment is None:
        pending = facts.interrupted is not None
        raise Refused(
            "nothing is deployed",
            where=host.name,
            why="a run was interrupted there" if pending else f"{facts.state_root} holds no deployment",
            next_step="ddtree-ops recover" if pending else f"ddtree-ops deploy --host {host.name}",
            code="not_deployed",
        )
    if service and not facts.deployment.unit:
        raise Refused(
            "it was deployed without a service",
            where=host.name,
            next_step="ddtree-ops rollback, then deploy without --no-service",
            code="no_service",
        )
    return facts.deployment


def status(context: Context) -> int:
    """What is deployed and runs; exit 0 also when it is nothing, 9 when the service is not healthy."""
    inventory, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            survey = look(link, host, inventory.beside)
            found: dict[str, Any] = {"host": host.name, "deployment": _brief(survey.facts.deployment)}
            if survey.facts.deployment is not None and survey.facts.deployment.unit:
                service = spec_of(survey.facts.deployment).ref()
                found["service"] = link.call("service_status", {"service": service}, timeout=60.0)
                found["beacons"] = link.call("beacons", {"service": service}, timeout=30.0)["beacons"]
        found |= {"lock": survey.facts.lock, "interrupted": survey.facts.interrupted}
        found |= {"verdict": survey.verdict.sentence, "warnings": survey.facts.warnings}
        part: dict[str, Any] = msgspec.to_builtins(found)
        if not context.output.json:
            ui.show_status(context.output.out, part)
        return ui.status_code(part), part

    return each(context, "status", hosts, one)


def _brief(deployment: Deployment | None) -> Deployment | None:
    """A deployment less the bulk: the answers of its baseline."""
    if deployment is None:
        return None
    baseline = {key: value for key, value in deployment.baseline.items() if key != "answers"}
    return msgspec.structs.replace(deployment, baseline=baseline)


def verify(context: Context) -> int:
    """Exit 10 when disk, import or processes are not what was deployed; names each difference."""
    inventory, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            survey = look(link, host, inventory.beside)
            deployment = deployed(survey.facts, host, service=False)
            found = attest(link, deployment)
        findings = [str(line) for line in found.get("findings", ())]
        live = next((copy for copy in survey.facts.copies if copy.id == survey.verdict.live), None)
        if live is None or live.ddtree_build_id != deployment.build_id:
            what = live.root if live is not None else "nothing"
            findings.insert(0, f"the environment imports {what}, not the deployed tree {deployment.package_dir}")
        part = {"host": host.name, "ok": not findings, "findings": findings, "evidence": found}
        if context.output.json:
            return Drift.exit_code if findings else 0, part
        if findings:
            raise Drift(
                f"{len(findings)} difference{'s' if len(findings) > 1 else ''} from the deployment",
                where=host.name,
                why="\n".join(findings),
                next_step="ddtree-ops rollback and deploy again, or restart the service if only processes are old",
                details={"findings": findings},
            )
        ui.show_verified(context.output.out, host.name, deployment, found)
        return 0, part

    return each(context, "verify", hosts, one)


def logs(context: Context, follow: bool, lines: int) -> int:
    """The service's log on stdout; with ``--json`` as one document."""
    if follow and context.output.json:
        raise UsageError("--follow never ends, and --json is one document", next_step="leave one of them out")
    _, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        found: list[str] = []

        def show(event: dict[str, Any]) -> None:
            for line in event.get("lines", ()):
                if context.output.json:
                    found.append(line)
                else:
                    context.output.line(line)

        with linked(context, host) as link:
            facts = facts_of(link, host)
            service = spec_of(deployed(facts, host)).ref()
            request = {"service": service, "lines": lines, "follow": follow}
            link.call("logs", request, timeout=None if follow else 60.0, on_event=show)
        return 0, {"host": host.name, "lines": found}

    return each(context, "logs", hosts, one)


def control(context: Context, action: str, yes: bool) -> int:
    """``start``, ``stop``, ``restart``; waits until it serves."""
    _, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            facts = facts_of(link, host)
            spec = spec_of(deployed(facts, host))
            consent(context, yes, f"{action.capitalize()} {spec.unit} on {host.name}?")
            service = spec.ref()
            with Steps(context.output, host.name) as progress:
                with progress.step(action, f"{action.capitalize()} {spec.unit}"):
                    request = {"service": service, "action": action}
                    found = link.call("service_control", request, timeout=600.0, on_event=progress.event)
                if action != "stop":
                    with progress.step("ready", "Wait until it serves"):
                        waiting = {
                            "service": service,
                            "start": found["start"],
                            "timeout": host.service.readiness_timeout,
                        }
                        found["ready"] = link.call("wait_ready", waiting, timeout=None, on_event=progress.event)
        return 0, {"host": host.name, "unit": spec.unit, "action": action, **found}

    return each(context, action, hosts, one)
