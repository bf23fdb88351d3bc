"""Hosts of a run, and the look at one of them that every command begins with."""

from __future__ import annotations

import base64
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import Interrupted, Refused, UsageError, as_error, worst
from ..inventory import Host, Inventory, load
from ..model import Copy, Facts, Verdict
from ..patching.plan import load_all, select_series
from ..patching.recipe import Recipe, load_recipe, touched_paths
from ..patching.series import Series
from ..remote.channel import Link
from ..remote.connection import connect
from ..resources import data_dir
from ..source.releases import anchor_paths, with_versions
from ..source.verdict import decide
from ..source.wanted import SeriesKey, WantedService

if TYPE_CHECKING:
    from ..cli import Context

FACTS_TIMEOUT = 120.0


@dataclass(frozen=True)
class Patches:
    """The recipe and the folder that it lies in."""

    folder: Path
    recipe: Recipe

    @classmethod
    def load(cls, beside: Path | None) -> Patches:
        """The patches in force."""
        folder = data_dir("patches", beside)
        return cls(folder, load_recipe(folder / "recipe.yaml"))


@dataclass(frozen=True)
class Survey:
    """One look at a host: facts, verdict, and the series that fits."""

    host: Host
    facts: Facts
    verdict: Verdict
    patches: Patches
    series: Series | None

    @property
    def live(self) -> Copy:
        """The live copy; only for a verdict that names one."""
        return next(copy for copy in self.facts.copies if copy.id == self.verdict.live)


def hosts_of(context: Context, **overrides: Any) -> tuple[Inventory, tuple[Host, ...]]:
    """The hosts that ``--host`` names (or the default host), with the command line's settings on top."""
    inventory = load(context.inventory)
    given = {
        "ssh.config": str(context.ssh_config) if context.ssh_config else None,
        "ssh.accept_host_key": context.host_key,
    }
    return inventory, inventory.select(
        context.hosts, {**given, **{k.replace("__", "."): v for k, v in overrides.items()}}
    )


Outcome = tuple[int, dict[str, Any]]  # exit code of one host, and its part of the ``--json`` document


def each(
    context: Context,
    command: str,
    hosts: tuple[Host, ...],
    run: Callable[[Host], Outcome],
    *,
    key: str = "hosts",
    name: str = "host",
) -> int:
    """Run for every host in turn and, with ``--json``, write the one document ``{key: [part of each host]}``.

    With one host an error goes on to the caller, so that the run ends in one error document. Of several, an error of
    one (``{name: host, "error": ...}``) does not keep the others from their turn, except for an interrupt; the worst
    exit code wins.
    """
    codes: list[int] = []
    parts: list[dict[str, Any]] = []
    for host in hosts:
        try:
            code, part = run(host)
        except (Exception, KeyboardInterrupt) as error:
            if len(hosts) == 1:
                raise
            failure = as_error(error)
            code, part = failure.exit_code, {name: host.name, "error": failure.as_dict()}
            context.output.error(failure, host.name)
        codes.append(code)
        parts.append(part)
        if code == Interrupted.exit_code:
            break
    if context.output.json:
        context.output.document(command, {key: parts})
    return worst(codes)


def only(hosts: tuple[Host, ...], what: str) -> Host:
    """The one host of a command that takes only one.

    Raises:
        UsageError: there are several.
    """
    if len(hosts) != 1:
        names = ", ".join(host.name for host in hosts)
        raise UsageError(f"{what} takes one host, not {len(hosts)}: {names}", next_step="give one --host")
    return hosts[0]


@contextmanager
def linked(context: Context, host: Host) -> Iterator[Link]:
    """The conversation with a host; warnings about the connection are shown."""

    def listen(event: dict[str, Any]) -> None:
        if event.get("kind") == "warning":
            context.output.note(f"warning: {event.get('text', '')}", style="yellow")
        else:
            context.output.detail(3, str(event))

    with connect(host, on_event=listen) as link:
        yield link


def facts_of(link: Link, host: Host, *, takeover: str = "", keys: Sequence[SeriesKey] = ()) -> Facts:
    """What is on the host; needs none of this machine's patches, so that a damaged folder of them keeps nobody from
    ``rollback`` or ``stop``. Writes nothing on the host."""
    params = {
        "environment": host.environment or None,
        "checkouts": list(host.checkouts),
        "unit": takeover or host.takeover or None,
        "our_unit": host.service.unit,
        "working_directory": host.service.working_directory,
        "service_environment": dict(host.service.environment),
        "port": host.service.port,
        "target_model": host.service.target_model,
        "drafter": host.service.drafter,
        "state_root": host.state_root,
        "anchors": list(anchor_paths(keys)),
    }
    answer = link.call("facts", params, timeout=FACTS_TIMEOUT)
    try:
        return with_versions(msgspec.convert(answer, Facts), keys)
    except msgspec.ValidationError as error:  # of all facts only our own records are written down before they are read
        raise Refused(
            f"what is recorded on the host is not understood: {error}",
            where=f"{answer.get('state_root')} on {host.name}",
            why="it is damaged, or another version of ddtree-ops wrote it",
            next_step="use the version that deployed there (deployment.json names it), or restore that file",
            code="record_damaged",
        )


def look(link: Link, host: Host, beside: Path | None, takeover: str = "") -> Survey:
    """Facts and verdict. Writes nothing on the host."""
    patches = Patches.load(beside)
    keys = [series_key(series) for series in load_all(patches.folder)]
    facts = facts_of(link, host, takeover=takeover, keys=keys)
    wanted = WantedService(
        environment=host.environment,
        takeover=takeover or host.takeover,
        port=host.service.port,
        working_directory=host.service.working_directory,
        variables=dict(host.service.environment),
    )
    verdict = decide(facts, wanted, keys)
    live = next((copy for copy in facts.copies if copy.id == verdict.live), None)
    series = select_series(patches.folder, live.anchors) if live is not None else None
    return Survey(host=host, facts=facts, verdict=verdict, patches=patches, series=series)


def series_key(series: Series) -> SeriesKey:
    """What the verdict needs to recognise a series."""
    files = series.meta.files
    return SeriesKey(
        name=series.name,
        release=series.meta.release,
        spec=series.meta.spec,
        content_hash=series.meta.base.content_hash,
        before={**series.meta.identity, **{state.path: state.before for state in files}},
        after={state.path: state.after for state in files},
    )


def live_files(link: Link, survey: Survey) -> dict[str, bytes]:
    """The bytes of the files that the recipe touches, from the live copy; absent ones left out."""
    wanted = {"base": survey.live.root, "paths": list(touched_paths(survey.patches.recipe))}
    found = link.call("read_files", wanted, timeout=60.0)["files"]
    return {item["path"]: base64.b64decode(item["content"]) for item in found if "content" in item}


def base_files(link: Link, survey: Survey) -> dict[str, bytes]:
    """Pristine bytes of touched files that carry local edits, where the host has them: at the checkout's HEAD, or in
    another copy of the same release. Only bytes with the recorded hash count."""
    series, live = survey.series, survey.live
    if series is None:
        return {}
    wanted = {state.path: state.before for state in series.meta.files}
    missing = [path for path, before in wanted.items() if live.anchors.get(path) not in (before, None)]
    found: dict[str, bytes] = {}
    if missing and live.git is not None:
        inside = posixpath.relpath(live.realpath, live.git.toplevel)
        request = {"toplevel": live.git.toplevel, "paths": [posixpath.join(inside, path) for path in missing]}
        for item in link.call("read_blobs", request, timeout=60.0)["files"]:
            path = posixpath.relpath(item["path"], inside)
            if item.get("sha256") == wanted[path]:
                found[path] = base64.b64decode(item["content"])
    for copy in survey.facts.copies:
        paths = [path for path in missing if path not in found and copy.anchors.get(path) == wanted[path]]
        if paths:
            answer = link.call("read_files", {"base": copy.root, "paths": paths}, timeout=60.0)["files"]
            found |= {item["path"]: base64.b64decode(item["content"]) for item in answer if "content" in item}
    return found


def consent(context: Context, yes: bool, question: str) -> None:
    """Return when the user agrees.

    Raises:
        UsageError: no terminal and no ``--yes``, or the answer is no (exit 2; nothing was changed).
    """
    if yes:
        return
    if context.output.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "this changes the host, and nobody is there to ask",
            why="no terminal, and neither --yes nor DDTREE_OPS_YES=1 was given",
            next_step="look at the plan, then run again with --yes",
        )
    import click

    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort:  # Ctrl-C or the end of input at the question
        raise Interrupted("not done: no answer", next_step="nothing was changed")
    if not agreed:
        raise UsageError("not done: the answer was no", next_step="nothing was changed")
