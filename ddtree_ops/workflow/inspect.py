"""Commands that only look: locate-source, init, config show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Refused
from ..inventory import Host
from .session import Outcome, each, hosts_of, linked, look, only

if TYPE_CHECKING:
    from ..cli import Context


def locate(context: Context, takeover: str | None) -> int:
    """``locate-source``: the table, then the verdict in one sentence; exit 4 without a strategy."""
    from ..ui import locate as ui

    inventory, hosts = hosts_of(context)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            survey = look(link, host, inventory.beside, takeover or "")
        if not context.output.json:
            ui.show(context.output.out, survey.facts, survey.verdict, host=host.name)
        code = Refused.exit_code if survey.verdict.strategy == "refuse" else 0
        return code, {"name": host.name, **ui.body(survey.facts, survey.verdict)}

    return each(context, "locate-source", hosts, one, name="name")


def init(context: Context, name: str | None, output: Path | None) -> int:
    """``init``: an inventory entry from a server that runs."""
    from ..initialise import add_entry, entry_from

    inventory, hosts = hosts_of(context)
    host = only(hosts, "init")
    with linked(context, host) as link:
        survey = look(link, host, inventory.beside)
    entry = entry_from(host, survey.facts, name or "")
    if output is not None:
        add_entry(output, entry)
    if context.output.json:
        written = {"name": entry.name, "entry": entry.text, "written": str(output or ""), "notes": list(entry.notes)}
        context.output.document("init", written)
    elif output is None:
        context.output.line(entry.text.rstrip("\n"))
    else:
        context.output.note(
            f"{entry.name} was written to {output}; look it over, then: ddtree-ops plan --host {entry.name}"
        )
    for note in entry.notes:
        context.output.note(f"note: {note}", style="yellow")
    return 0


def show_config(context: Context, origin: bool) -> int:
    """``config show``: every setting of a host, with ``--origin`` where it comes from."""
    from ..inventory import shown

    inventory, hosts = hosts_of(context)
    rows = {host.name: shown(host) for host in hosts}
    if context.output.json:
        body = {
            name: {key: {"value": value, "origin": where} for key, value, where in found}
            for name, found in rows.items()
        }
        context.output.document("config show", {"inventory": str(inventory.path or ""), "hosts": body})
        return 0
    from rich.table import Table
    from rich.text import Text

    for name, found in rows.items():
        context.output.out.print(Text(name, style="bold cyan"))
        table = Table(box=None)
        table.add_column("setting", no_wrap=True)
        for heading in ("value", *(["origin"] if origin else [])):
            table.add_column(heading, overflow="fold")
        for key, value, where in found:
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            table.add_row(key, text, *([where] if origin else []))
        context.output.out.print(table)
    return 0
