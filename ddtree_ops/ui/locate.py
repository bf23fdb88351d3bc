"""``locate-source`` for people: a short table, the verdict in one sentence, the evidence; and as a JSON body."""

from __future__ import annotations

from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..jsontext import printable
from ..model import Copy, Facts, Verdict
from ..source import words

_DDTREE_STYLE = {"ours": "green", "native": "yellow", "foreign": "red", "partial": "red", "none": "dim"}


def show(console: Console, facts: Facts, verdict: Verdict, *, host: str = "", evidence: bool = True) -> None:
    """Print what ``locate-source`` found. ``facts`` should have ``version_content`` filled in (``with_versions``)."""
    console.print(_head(facts, host))
    if facts.copies:
        console.print(_table(facts, verdict))
    _servers(console, facts)
    style = "bold red" if verdict.refusal is not None else "bold"
    console.print(Text("\n" + printable(verdict.sentence), style=style))
    if verdict.refusal is not None:
        _refusal(console, verdict)
    if evidence:
        _lines(console, "Evidence", verdict.evidence, "·", "dim")
        title = "Not live" if verdict.live else "Found"
        _lines(console, title, (f"{one.copy}: {one.why}" for one in verdict.others), "·", "dim")
    _lines(console, "Warnings", verdict.warnings, "!", "yellow")


def body(facts: Facts, verdict: Verdict) -> dict[str, Any]:
    """The JSON body of one host: a summary of the facts, every copy in full, and the verdict."""
    document: dict[str, Any] = {
        "host": msgspec.to_builtins(facts.host),
        "copies": msgspec.to_builtins(facts.copies),
        "resolutions": msgspec.to_builtins(facts.resolutions),
        "divergences": msgspec.to_builtins(facts.divergences),
        "interpreters": msgspec.to_builtins(facts.interpreters),
        "servers": msgspec.to_builtins(facts.servers),
        "containers": msgspec.to_builtins(facts.containers),
        "searched": list(facts.searched),
        "duration": facts.duration,
        "verdict": msgspec.to_builtins(verdict),
    }
    return document


def _head(facts: Facts, host: str) -> Text:
    name = f"{host} " if host else ""
    about = f"{facts.host.hostname}, {facts.host.os}, as {facts.host.user}"
    return Text.assemble((name, "bold cyan"), (f"{about}; looked for {facts.duration:.1f} s", "dim"))


def _table(facts: Facts, verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", width=4, no_wrap=True)
    table.add_column("copy", ratio=3, overflow="fold")
    table.add_column("kind", overflow="fold")
    table.add_column("version", overflow="fold")
    table.add_column("DFLASH", no_wrap=True)
    table.add_column("DDTREE", no_wrap=True)
    table.add_column("git", ratio=2, overflow="fold")
    for copy in sorted(facts.copies, key=lambda one: one.id != verdict.live):
        live = copy.id == verdict.live
        table.add_row(
            Text("live", style="bold green") if live else Text(""),
            Text(printable(words.place(facts, copy)), style="bold" if live else ""),
            words.kind(copy),
            _version(copy),
            Text("-" if copy.dflash == "none" else copy.dflash, style="dim" if copy.dflash == "none" else ""),
            Text("-" if copy.ddtree == "none" else copy.ddtree, style=_DDTREE_STYLE[copy.ddtree]),
            Text(printable(words.git(copy.git)) if copy.git is not None else "", style=_git_style(copy)),
        )
    return table


def _version(copy: Copy) -> Text:
    claimed, content = copy.version_claimed, copy.version_content
    if copy.kind == "skeleton":
        return Text("-", style="dim")
    if content and claimed in ("", content):
        return Text.assemble(content, _modified(copy))
    if content:
        return Text.assemble(content, _modified(copy), (f"\nclaims {claimed}", "yellow"))
    return Text.assemble(claimed or "unknown", ("\ncontent unknown", "yellow"))


def _modified(copy: Copy) -> tuple[str, str]:
    changed = copy.record is not None and bool(copy.record.modified or copy.record.missing or copy.record.unrecorded)
    return ("\nmodified", "yellow") if changed else ("", "")


def _git_style(copy: Copy) -> str:
    trouble = copy.git is not None and bool(copy.git.dirty or copy.git.error or copy.git.ownership_trouble)
    return "yellow" if trouble else "dim"


def _servers(console: Console, facts: Facts) -> None:
    for server in facts.servers:
        where = server.unit or ("in a container" if server.foreign_namespace else "no unit")
        port = f"port {server.port}" if server.port else "no port yet"
        console.print(
            Text.assemble(
                ("serving ", "green"),
                printable(
                    f"pid {server.pid}, {where}, {port}, {server.interpreter or server.exe or 'unknown interpreter'}"
                ),
                (f", {server.algorithm}" if server.algorithm else "", "dim"),
            )
        )


def _refusal(console: Console, verdict: Verdict) -> None:
    refusal = verdict.refusal
    if refusal is None:
        return
    searched = [place for place in refusal.looked_at if place.startswith("/") and " " not in place]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if len(searched) > 2:
        table.add_row(Text("  looked at", style="dim"), Text(printable(", ".join(searched)), style="dim"))
    for place in refusal.looked_at:
        if len(searched) <= 2 or place not in searched:
            table.add_row(Text("  looked at", style="dim"), Text(printable(place), style="dim"))
    table.add_row(Text("  next", style="bold"), Text(printable(refusal.next_step), style="bold"))
    console.print(table)


def _lines(console: Console, title: str, lines: Any, mark: str, style: str) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row(Text(f"  {mark}", style=style), Text(printable(line), style=style if style == "dim" else ""))
    if table.row_count:
        console.print(Text(f"\n{title}", style="bold"))
        console.print(table)
