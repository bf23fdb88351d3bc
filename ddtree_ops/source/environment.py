"""Which environment is the service's: the inventory's, else that of the unit named for takeover, else the only one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..model import Facts, Interpreter, Refusal, Server
from . import words
from .wanted import WantedService


@dataclass(frozen=True)
class Choice:
    """The environment, and why it is that one; or the reason why none can be named."""

    interpreter: Interpreter | None = None
    evidence: tuple[str, ...] = ()
    refusal: Refusal | None = None


def choose(facts: Facts, wanted: WantedService) -> Choice:
    """Apply the rule; two answers that differ are a refusal that names both."""
    named = _named(facts, wanted)
    taken = _takeover(facts, wanted)
    for choice in (named, taken):
        if choice is not None and choice.refusal is not None:
            return choice
    if named is not None and taken is not None and not _same(named, taken):
        return Choice(refusal=_differ(named, taken, wanted))
    if named is not None:
        return Choice(named.interpreter, named.evidence + (taken.evidence if taken else ()))
    return taken or _only(facts)


def candidates(facts: Facts) -> tuple[Interpreter, ...]:
    """The interpreters whose environment has an SGLang of some kind."""
    owning = {copy.environment for copy in facts.copies if copy.environment and copy.kind != "skeleton"}
    return tuple(one for one in facts.interpreters if one.path in owning)


def servers_of(facts: Facts, interpreter: Interpreter) -> tuple[Server, ...]:
    """The running servers that use this environment."""
    return tuple(
        one for one in facts.servers if one.interpreter and _prefix(one.interpreter) == _prefix(interpreter.path)
    )


def server_for(facts: Facts, takeover: str) -> Server | None:
    """The running server that ``takeover`` (unit name or pid) means."""
    unit = takeover if takeover.endswith(".service") else takeover + ".service"
    for server in facts.servers:
        if server.unit == unit or (takeover.isdigit() and int(takeover) in (server.pid, *server.processes)):
            return server
    return None


def _prefix(path: str) -> str:
    return os.path.dirname(os.path.dirname(path))


def _same(one: Choice, other: Choice) -> bool:
    left, right = one.interpreter, other.interpreter
    return left is not None and right is not None and (left.prefix or left.path) == (right.prefix or right.path)


def _named(facts: Facts, wanted: WantedService) -> Choice | None:
    if not wanted.environment:
        return None
    for one in facts.interpreters:
        if "inventory" in one.sources:
            if one.error:
                return Choice(refusal=_cannot_start(one))
            return Choice(one, (f"{one.prefix} is the inventory's environment",))
    known = words.listed((one.prefix for one in candidates(facts)), 5) or "none on this host"
    return Choice(
        refusal=Refusal(
            code="no_environment",
            reason=f"the inventory's environment {wanted.environment} has no Python interpreter",
            looked_at=(f"{wanted.environment}/bin/python", f"environments with SGLang: {known}"),
            next_step="set `environment` of this host in the inventory to one of those that exist",
        )
    )


def _takeover(facts: Facts, wanted: WantedService) -> Choice | None:
    if not wanted.takeover:
        return None
    server = server_for(facts, wanted.takeover)
    if server is not None and server.foreign_namespace:
        return Choice(refusal=_in_container(server))
    path = server.interpreter if server is not None else ""
    said = f"process {server.pid} of {wanted.takeover} runs on it" if server is not None else ""
    if not path:
        unit = wanted.takeover if wanted.takeover.endswith(".service") else wanted.takeover + ".service"
        one = next((one for one in facts.interpreters if f"unit:{unit}" in one.sources), None)
        path, said = (one.path, f"{unit} starts it") if one is not None else ("", "")
    found = next((one for one in facts.interpreters if path and _prefix(one.path) == _prefix(path)), None)
    if found is None:
        running = words.listed((f"{one.unit or 'pid ' + str(one.pid)}" for one in facts.servers), 5) or "none"
        return Choice(
            refusal=Refusal(
                code="no_such_unit",
                reason=f"{wanted.takeover}, named for takeover, is no unit or process that starts SGLang",
                looked_at=(f"running servers: {running}", *(f"unit {unit.name}" for unit in facts.units)),
                next_step="name a unit of that list with --takeover, or leave it out",
            )
        )
    if found.error:
        return Choice(refusal=_cannot_start(found))
    return Choice(found, (said,))


def _only(facts: Facts) -> Choice:
    found = candidates(facts)
    if len(found) == 1:
        if found[0].error:
            return Choice(refusal=_cannot_start(found[0]))
        return Choice(found[0], (f"{found[0].prefix} is the only environment with SGLang",))
    live = [one for one in found if servers_of(facts, one)]
    if len(live) == 1 and not live[0].error:
        server = servers_of(facts, live[0])[0]
        return Choice(live[0], (f"of {len(found)} environments, process {server.pid} runs on this one",))
    return Choice(refusal=_several(found, len(live)) if found else _none(facts))


def _several(found: tuple[Interpreter, ...], live: int) -> Refusal:
    names = " and ".join(one.prefix for one in found)
    return Refusal(
        code="two_environments",
        reason=f"{names} have SGLang and {'none of them runs a server' if not live else f'{live} of them run servers'}",
        looked_at=tuple(f"{one.prefix}: sglang {one.packages.get('sglang', '(no version)')}" for one in found),
        next_step=f"set `environment` of this host in the inventory, for example to {found[0].prefix}",
    )


def _none(facts: Facts) -> Refusal:
    inside = [one for one in facts.servers if one.foreign_namespace]
    if inside or facts.containers:
        what = [f"process {one.pid} ({one.cgroup})" for one in inside]
        what += [f"{one.runtime}: {one.image} {one.name}".rstrip() for one in facts.containers]
        return Refusal(
            code="only_in_container",
            reason="SGLang is only inside a container image; the host itself has none to patch",
            looked_at=(*what, *facts.searched),
            next_step="use ddtree-ops inside the container (transport: local), or install SGLang on the host",
        )
    sources = [copy for copy in facts.copies if copy.kind in ("checkout", "worktree", "path")]
    extra = (
        f"; source without an environment: {words.listed(words.place(facts, one) for one in sources)}"
        if sources
        else ""
    )
    return Refusal(
        code="no_sglang",
        reason=f"no environment with SGLang on this host{extra}",
        looked_at=facts.searched + tuple(one.path for one in facts.interpreters),
        next_step="set `environment` of this host in the inventory, or install sglang 0.5.11 or newer there first",
    )


def _differ(named: Choice, taken: Choice, wanted: WantedService) -> Refusal:
    left = named.interpreter.prefix if named.interpreter else ""
    right = taken.interpreter.prefix if taken.interpreter else ""
    return Refusal(
        code="environments_differ",
        reason=f"the inventory says {left}, but {wanted.takeover} runs on {right}",
        looked_at=(*named.evidence, *taken.evidence),
        next_step=f"set `environment` to {right}, or name another unit for takeover",
    )


def _cannot_start(one: Interpreter) -> Refusal:
    return Refusal(
        code="interpreter_broken",
        reason=f"{one.path} cannot be asked: {one.error}",
        looked_at=(one.path, one.realpath),
        next_step="repair that environment, or name another one as `environment` in the inventory",
    )


def _in_container(server: Server) -> Refusal:
    return Refusal(
        code="in_container",
        reason=f"process {server.pid} lives in a container: patching the host's copy would not change it",
        looked_at=(server.cgroup,),
        next_step="run ddtree-ops inside that container (transport: local), or bake DDTREE into its image",
    )
