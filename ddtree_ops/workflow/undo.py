"""``rollback``, ``recover`` and ``purge``: the ways back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..applying import rollback as back
from ..inventory import Host
from ..model import Facts
from ..planning.layout import state_root
from ..remote.channel import Link
from ..ui.progress import Steps
from .playbook import load
from .session import Outcome, consent, each, facts_of, hosts_of, linked

if TYPE_CHECKING:
    from ..cli import Context

Action = Callable[[Link, str, Steps], dict[str, Any]]


def rollback(context: Context, yes: bool, force: bool) -> int:
    """To the state before the deploy, proven by the root hash; ``force`` overwrites what was changed since."""

    def ask(host: Host, facts: Facts) -> str | None:
        if facts.deployment is None:
            return None
        brings = f" and start {facts.deployment.takeover} again" if facts.deployment.takeover else ""
        return f"Roll back {facts.deployment.release_id} on {host.name}{brings}?"

    book = load("rollback", None, hosts_of(context)[0].beside)

    def act(link: Link, root: str, progress: Steps) -> dict[str, Any]:
        with progress.step("rollback", "Undo the deployment and prove it"):
            found = back.rollback(link, root, force=force, on_event=progress.event)
        if book.has("purge"):
            with progress.step("purge", "Remove the state folder"):
                found["purged"] = back.purge(link, root, on_event=progress.event)
        return found

    return _run(context, "rollback", yes, ask, act, "nothing is deployed")


def recover(context: Context, yes: bool) -> int:
    """Undo a run that was interrupted."""

    def ask(host: Host, facts: Facts) -> str | None:
        if facts.interrupted is None:
            return None
        return f"Undo the interrupted run {facts.interrupted.run_id} on {host.name}?"

    def act(link: Link, root: str, progress: Steps) -> dict[str, Any]:
        with progress.step("recover", "Undo the interrupted run and prove it"):
            return back.recover(link, root, on_event=progress.event)

    return _run(context, "recover", yes, ask, act, "no run is unfinished")


def purge(context: Context, yes: bool, force: bool) -> int:
    """Remove the state folder, once nothing is deployed; ``force`` also trees that somebody worked in."""

    def ask(host: Host, facts: Facts) -> str | None:
        if not facts.state_root_exists:
            return None
        return f"Remove {state_root(host, facts)} on {host.name}, with releases, journal and snapshots?"

    def act(link: Link, root: str, progress: Steps) -> dict[str, Any]:
        with progress.step("purge", "Remove the state folder"):
            return back.purge(link, root, force=force, on_event=progress.event)

    return _run(context, "purge", yes, ask, act, "there is nothing of ddtree-ops")


def _run(
    context: Context,
    command: str,
    yes: bool,
    ask: Callable[[Host, Facts], str | None],
    act: Action,
    nothing: str,
) -> int:
    _, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            facts = facts_of(link, host)
            question = ask(host, facts)
            if question is None:
                context.output.note(f"{host.name}: {nothing}")
                return 0, {"host": host.name, "outcome": "unchanged"}
            consent(context, yes, question)
            with Steps(context.output, host.name) as progress:
                found = act(link, state_root(host, facts), progress)
        if not context.output.json:
            _show(context, host, found)
        return 0, {"host": host.name, "outcome": "done", **found}

    return each(context, command, hosts, one)


def _show(context: Context, host: Host, found: dict[str, Any]) -> None:
    def say(text: str, style: str = "") -> None:
        context.output.out.print(text, style=style or None, soft_wrap=True)

    foreign = found.get("foreign") or {}
    if found.get("proven"):
        root = str(found["root"])[:16]
        equal = f"root hash {root} equals the one before the deploy"
        say(f"{host.name}: as before; " + ("except for what others changed since" if foreign else equal), "green")
    elif "freed" in found:
        left = f"; left, not ours: {', '.join(found['left'])}" if found.get("left") else ""
        say(f"{host.name}: nothing of ddtree-ops is left, {found['freed'] / 1e6:,.0f} MB freed{left}", "green")
    for path, change in list(foreign.items())[:_SHOWN]:
        say(f"  not ours, left alone: {path} {change}")
    if len(foreign) > _SHOWN:
        say(f"  and {len(foreign) - _SHOWN} more; --json lists them")
    for note in found.get("notes", ()):
        say(f"  {note}")


_SHOWN = 10
