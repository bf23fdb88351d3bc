"""The plan: ordered changes, commands, units, the window, needs and checks. Pure; nothing here asks the host."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from .. import __version__
from ..inventory import Host
from ..model import Change, Check, Copy, Facts, Need, Plan, PlannedUnit, Verdict
from ..service import estimates, fit
from ..service.settings import ServiceSpec
from ..service.units import service_unit
from ..source.environment import server_for
from . import checks
from .build import Build
from .digest import facts_digest
from .layout import Layout, layout_for, state_root
from .service_spec import service_spec
from .wanted import Wanted


@dataclass(frozen=True)
class Prepared:
    """A plan with the bytes and settings that carry it out.

    ``source`` is the copy that the tree is made from: the live one, or a clean checkout that holds exactly its content.
    """

    plan: Plan
    build: Build
    layout: Layout
    live: Copy
    source: Copy
    spec: ServiceSpec | None
    unit: PlannedUnit | None


def make_plan(host: Host, facts: Facts, verdict: Verdict, live: Copy, build: Build, wanted: Wanted) -> Prepared:
    """The plan for one host; ``live`` is the copy that the verdict names.

    Raises:
        ConfigError: settings of the service contradict each other.
    """
    source = source_of(verdict.strategy, live, facts)
    layout = layout_for(verdict.strategy, source, state_root(host, facts), build.release_id)
    spec = unit = None
    # Without a target and a drafter there is no service to describe; the checks then say what is missing.
    if wanted.service and host.service.target_model and host.service.drafter:
        ids = (build.release_id, build.build_id)
        spec = service_spec(host, facts, verdict.environment, layout.state_root, wanted.budget, ids)
        unit = service_unit(spec)
    window = estimates.downtime(facts, baseline=wanted.baseline) if wanted.service else (0.0, 0.0)
    plan = Plan(
        tool_version=__version__,
        host=host.name,
        address=host.address or "this machine",
        created=facts.host.time,
        facts_digest=facts_digest(facts, verdict),
        verdict=verdict,
        release_id=build.release_id,
        build_id=build.build_id,
        changes=tuple(_changes(facts, live, source, build, layout, spec, unit)),
        diff=build.patch.diff,
        commands=tuple(_commands(facts, verdict, layout, spec, wanted)),
        units=(unit,) if unit else (),
        stops=tuple(_stops(facts, wanted)),
        downtime_seconds=window,
        needs=tuple(_needs(facts, live, layout, spec)),
        checks=(*checks.preconditions(host, facts, verdict, wanted), *_fit(facts, spec)),
        notes=tuple(_notes(live, verdict, wanted)),
        settings={}
        if spec is None
        else {"budget": spec.budget, "auto_budget": spec.auto_budget, "port": spec.port, "unit": spec.unit},
    )
    return Prepared(plan=plan, build=build, layout=layout, live=live, source=source, spec=spec, unit=unit)


def source_of(strategy: str, live: Copy, facts: Facts) -> Copy:
    """What the tree is made from. A wheel has no git state; its twin, a clean checkout of the same content, has."""
    if strategy != "checkout" or live.git is not None:
        return live
    twins = (one for one in facts.copies if one.git is not None and one.content_hash == live.content_hash)
    return next((one for one in twins if one.git is not None and not one.git.dirty), live)


def _changes(
    facts: Facts,
    live: Copy,
    source: Copy,
    build: Build,
    layout: Layout,
    spec: ServiceSpec | None,
    unit: PlannedUnit | None,
) -> Iterator[Change]:
    what = f"the commit and local edits of {source.root}" if layout.borrowed else f"a copy of {live.root}"
    yield Change(
        path=layout.tree, kind="create", after=build.base_hash, why=f"{what}: {live.files} files, git commit 'pristine'"
    )
    folder = posixpath.join(layout.package, build.payload.target)
    yield Change(
        path=folder + "/",
        kind="create",
        after=build.payload.hash,
        why=f"the DDTree package: {len(build.payload.files)} files",
    )
    for change in build.patch.changes:
        how = {"recorded": "recorded patch", "merged": "merged with local edits", "created": "recipe's edits"}[
            change.how
        ]
        path = posixpath.join(layout.package, change.path)
        yield Change(path=path, kind="modify", before=change.before_sha, after=change.after_sha, why=how)
    yield Change(
        path=live.root,
        kind="replace",
        before=live.content_hash,
        after=build.build_id,
        why="editable install: a .pth points at the tree; what leaves is kept for the rollback",
    )
    if unit is not None:
        digest = hashlib.sha256(unit.text.encode()).hexdigest()
        exists = any(known.path == unit.path for known in facts.units)
        yield Change(
            path=unit.path, kind="modify" if exists else "create", after=digest, mode=unit.mode, why="the service"
        )
    if spec is not None and spec.secrets:
        names = ", ".join(spec.secrets)
        yield Change(path=spec.secrets_path, kind="create", mode=0o600, why=f"secrets by name: {names}")


def _commands(
    facts: Facts, verdict: Verdict, layout: Layout, spec: ServiceSpec | None, wanted: Wanted
) -> Iterator[tuple[str, ...]]:
    git = facts.tools.get("git")
    if git:
        yield (git, "-C", layout.tree, "init")
        yield (git, "-C", layout.tree, "commit", "-m", "pristine")
        yield (git, "-C", layout.tree, "commit", "-m", "DDTREE")
    if wanted.takeover:
        yield ("systemctl", "stop", wanted.takeover)
        yield ("systemctl", "disable", wanted.takeover)
    interpreter = next((one for one in facts.interpreters if one.path == verdict.environment), None)
    offline = ("--no-deps", "--no-build-isolation")
    if interpreter is not None and interpreter.has_pip:
        yield (interpreter.path, "-m", "pip", "install", "--no-index", *offline, "-e", layout.project)
    elif "uv" in facts.tools:
        yield (
            facts.tools["uv"],
            "pip",
            "install",
            "--python",
            verdict.environment,
            "--offline",
            *offline,
            "-e",
            layout.project,
        )
    if spec is not None and spec.init == "systemd":
        yield ("systemctl", "daemon-reload")
        yield ("systemctl", "start", spec.unit)
        yield ("systemctl", "enable", spec.unit)
    elif spec is not None:
        yield spec.argv()


def _stops(facts: Facts, wanted: Wanted) -> Iterator[str]:
    server = server_for(facts, wanted.takeover) if wanted.takeover else None
    if server is not None:
        where = f"port {server.port}" if server.port else "not listening yet"
        yield f"{server.unit or f'process {server.pid}'} ({where}, {server.algorithm or 'no speculation'})"
    elif wanted.takeover:
        yield wanted.takeover


def _needs(facts: Facts, live: Copy, layout: Layout, spec: ServiceSpec | None) -> Iterator[Need]:
    disk = next((disk for disk in facts.disks if layout.state_root.startswith(disk.path.rstrip("/") or "/")), None)
    if disk is not None:
        needed = estimates.disk_bytes(live.size) / 1e6
        yield Need(
            what=f"disk under {layout.state_root}",
            needed=needed,
            available=disk.free / 1e6,
            unit="MB",
            enough=disk.free / 1e6 >= needed and not disk.read_only,
            note="read-only file system" if disk.read_only else "tree, its history, and what the rollback needs",
        )
    if spec is not None:
        yield from estimates.gpu_memory(facts, spec)


def _fit(facts: Facts, spec: ServiceSpec | None) -> tuple[Check, ...]:
    return () if spec is None else tuple(fit.check_fit(facts.models, spec))


def _notes(live: Copy, verdict: Verdict, wanted: Wanted) -> Iterator[str]:
    if live.record is not None and live.record.modified:
        changed = ", ".join(live.record.modified[:5])
        yield f"local edits in the live copy are kept: {changed}"
    yield from verdict.warnings
    if not wanted.service:
        yield "--no-service: tree, patch, editable install and import probe only; nothing is stopped or started"
