"""What must be true before a deploy may begin; each check says what it saw and, where it fails, the next step."""

from __future__ import annotations

from collections.abc import Iterator

from ..inventory import Host
from ..model import Check, Facts, Verdict
from ..source.environment import server_for, servers_of
from .wanted import Wanted


def preconditions(host: Host, facts: Facts, verdict: Verdict, wanted: Wanted) -> tuple[Check, ...]:
    """The checks that need nothing but facts, verdict and wishes."""
    found = [*state(facts), *_environment(facts, verdict)]
    if wanted.service:
        found += [*_spec(verdict), *_init(host, facts), *_settings(host), *_takeover(facts, wanted)]
        found += _builds_kernels(host, facts, verdict)
        found += _port(host, facts, wanted)
    return (*found, *_same_environment(host, facts, verdict, wanted))


def state(facts: Facts) -> Iterator[Check]:
    """What other runs, and this one's before, left in the state folder."""
    if facts.lock is not None and facts.lock.alive:
        yield Check(
            name="lock",
            state="fail",
            text=f"held by {facts.lock.who or 'another run'} (run {facts.lock.run_id}): {facts.lock.message}",
            next_step="wait until that run ends",
        )
    if facts.interrupted is not None:
        yield Check(
            name="interrupted run",
            state="fail",
            text=f"run {facts.interrupted.run_id} has no end; its last step was {facts.interrupted.last_step}",
            next_step="ddtree-ops recover",
        )
    if facts.deployment is not None:
        yield Check(
            name="deployment",
            state="fail",
            text=f"build {facts.deployment.build_id[:12]} is deployed (run {facts.deployment.run_id})",
            next_step="ddtree-ops rollback, then deploy again",
        )
    if not facts.state_root_writable:
        yield Check(
            name="state folder",
            state="fail",
            text=f"{facts.state_root} cannot be written",
            next_step="set `state_root` in the inventory, or `become: true`",
        )


def _environment(facts: Facts, verdict: Verdict) -> Iterator[Check]:
    interpreter = next((one for one in facts.interpreters if one.path == verdict.environment), None)
    if interpreter is None:
        return
    if not interpreter.writable:
        yield Check(
            name="environment",
            state="fail",
            text=f"{interpreter.prefix} cannot be written by {facts.host.user}",
            next_step="connect as its owner, or set `become: true` in the inventory",
        )
    if interpreter.enclosing_repository:
        yield Check(
            name="environment",
            state="warn",
            text=f"lies inside the git work tree {interpreter.enclosing_repository}; that repository is not touched",
        )
    how = "pip" if interpreter.has_pip else "uv" if "uv" in facts.tools else "ddtree-ops itself"
    yield Check(name="installer", state="ok", text=f"{how}, with {interpreter.path}")
    if "git" not in facts.tools:
        yield Check(name="git", state="warn", text="not on the host: the tree gets no history, only hashes")


def _spec(verdict: Verdict) -> Iterator[Check]:
    if verdict.spec == "v1":
        yield Check(
            name="worker",
            state="fail",
            text="this SGLang has speculative decoding v1; the DDTREE worker needs v2 (SGLang 0.5.14 or newer)",
            next_step="use a newer SGLang, or `deploy --no-service` for tree, patch, install and import probe",
        )


def _init(host: Host, facts: Facts) -> Iterator[Check]:
    systemd = facts.host.pid1 == "systemd"
    if host.init == "systemd" and not systemd:
        yield Check(
            name="service manager",
            state="fail",
            text=f"PID 1 is {facts.host.pid1 or 'unknown'}, not systemd",
            next_step="set `init: process` for this host; such a service does not survive a reboot",
        )
    if host.init == "process":
        yield Check(name="service manager", state="warn", text="a supervised process group; it does not start at boot")
    if host.init == "systemd" and systemd and facts.host.euid != 0:
        yield Check(
            name="service manager",
            state="fail",
            text=f"units of the system need root, and this is {facts.host.user}",
            next_step="connect as root, set `become: true`, or use `init: process`",
        )


def _settings(host: Host) -> Iterator[Check]:
    for key in ("target_model", "drafter"):
        if not getattr(host.service, key):
            yield Check(
                name="service",
                state="fail",
                text=f"no {key.replace('_', ' ')} is named",
                next_step=f"set `service: {key}` for {host.name} in the inventory, or use --no-service",
            )


def _builds_kernels(host: Host, facts: Facts, verdict: Verdict) -> Iterator[Check]:
    """SGLang compiles kernels when it starts on a GPU; what it needs for that may be on the login's PATH alone."""
    interpreter = next((one for one in facts.interpreters if one.path == verdict.environment), None)
    missing = interpreter is not None and interpreter.builds_kernels is False
    if facts.gpus and missing and "PATH" not in host.service.environment:
        yield Check(
            name="ninja",
            state="warn",
            text="not where the service looks: a kernel that SGLang compiles at start would end it",
            next_step=f"install ninja into {verdict.environment}, or set PATH under `service: environment`",
        )


def _takeover(facts: Facts, wanted: Wanted) -> Iterator[Check]:
    """What is to be replaced must be there, and must be a unit: nothing else can be brought back."""
    if not wanted.takeover:
        return
    server = server_for(facts, wanted.takeover)
    if server is None and not any(unit.name == wanted.takeover for unit in facts.units):
        yield Check(
            name="takeover",
            state="fail",
            text=f"no unit or server {wanted.takeover} was found",
            next_step="ddtree-ops locate-source lists the servers that run",
        )
    if server is not None and not server.unit:
        yield Check(
            name="takeover",
            state="fail",
            text=f"process {server.pid} belongs to no unit: it could be stopped, but not brought back",
            next_step=f"end process {server.pid} on the host yourself, then deploy without --takeover",
        )


def _port(host: Host, facts: Facts, wanted: Wanted) -> Iterator[Check]:
    named = server_for(facts, wanted.takeover) if wanted.takeover else None
    for owner in facts.ports:
        known = {host.service.unit, wanted.takeover} - {""}
        ours = owner.unit in known or (named is not None and owner.pid in (named.pid, *named.processes))
        if owner.port == host.service.port and not ours:
            holder = owner.unit or f"process {owner.pid}: {owner.command}"
            yield Check(
                name="port",
                state="fail",
                text=f"{owner.port} is held by {holder}",
                next_step=f"{_out_of_the_way(owner.unit, owner.pid)}; or choose another port",
            )


def _out_of_the_way(unit: str, pid: int) -> str:
    return f"--takeover {unit}: stopped in the window, brought back on failure" if unit else f"end process {pid} there"


def _same_environment(host: Host, facts: Facts, verdict: Verdict, wanted: Wanted) -> Iterator[Check]:
    """A server that runs imports more modules as it goes on: its environment is not changed under it."""
    interpreter = next((one for one in facts.interpreters if one.path == verdict.environment), None)
    named = server_for(facts, wanted.takeover) if wanted.takeover else None
    for server in servers_of(facts, interpreter) if interpreter is not None else ():
        if server != named and server.unit != host.service.unit and not server.foreign_namespace:
            yield Check(
                name="environment in use",
                state="fail",
                text=f"{server.unit or f'process {server.pid}'} runs from {verdict.environment}"
                + (f" on port {server.port}" if server.port else ""),
                next_step=_out_of_the_way(server.unit, server.pid)
                if wanted.service
                else f"stop {server.unit or f'process {server.pid}'} first, or leave --no-service out",
            )
