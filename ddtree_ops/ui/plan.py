"""A plan for people: what changes, what stops and for how long, what is needed, what forbids it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model import Change, Check, Need, Plan
from .diff import coloured, counts

_MARK = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
_KIND = {"create": ("+", "green"), "modify": ("~", "yellow"), "remove": ("-", "red"), "replace": ("±", "yellow")}


def show(console: Console, plan: Plan, *, diff: bool) -> None:
    """Print ``plan``; with ``diff`` the patch and the units too."""
    console.print(Text.assemble(("Plan for ", "bold"), (plan.host, "bold cyan"), f"  {plan.address}"))
    console.print(Text("  " + plan.verdict.sentence))
    if plan.noop:
        console.print(Text("  Nothing to do: this build is deployed and on disk as recorded.", style="green"))
        return
    _section(console, "Changes", _changes(plan.changes))
    if plan.diff:
        added, removed = counts(plan.diff)
        console.print(Text(f"  patch into SGLang's own files: {added} lines added, {removed} removed", style="dim"))
    _section(console, "Commands on the host", (Text("  " + " ".join(_quoted(c))) for c in plan.commands))
    _window(console, plan)
    _section(console, "Needs", (_need(need) for need in plan.needs))
    _section(console, "Checks", (line for check in plan.checks for line in _check(check)))
    _section(console, "Notes", (Text("  " + note) for note in plan.notes))
    if diff:
        if plan.diff:
            console.print(Text("\nPatch", style="bold"))
            console.print(coloured(plan.diff))
        for unit in plan.units:
            console.print(Text(f"\n{unit.path}  (mode {unit.mode:04o})", style="bold"))
            console.print(Text("".join(f"+{line}\n" for line in unit.text.splitlines()), style="green"))


def _section(console: Console, title: str, lines: Iterable[Text | Table]) -> None:
    body = list(lines)
    if body:
        console.print(Text(f"\n{title}", style="bold"))
        for line in body:
            console.print(line)


def _changes(changes: tuple[Change, ...]) -> list[Table]:
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    for column in ("  ", "path", "hashes", "why"):
        table.add_column(column, overflow="fold", no_wrap=column in ("  ", "hashes"))
    for change in changes:
        sign, style = _KIND[change.kind]
        hashes = (
            f"{change.before[:8] or '-':<8} → {change.after[:8] or '-':<8}" if change.before or change.after else ""
        )
        table.add_row(
            Text(f"  {sign}", style=style), change.path, Text(hashes, style="dim"), Text(change.why, style="dim")
        )
    return [table] if changes else []


def _window(console: Console, plan: Plan) -> None:
    low, high = plan.downtime_seconds
    stops = ", ".join(plan.stops) if plan.stops else "nothing that runs now"
    lines = [Text(f"  stops: {stops}")]
    if high:
        lines.append(Text(f"  from the stop until the new service answers: about {low:.0f}-{high:.0f} s"))
    _section(console, "Window", lines)


def _need(need: Need) -> Text:
    mark, style = _MARK["ok" if need.enough else "fail"]
    amounts = f"{need.needed:,.1f} of {need.available:,.1f} {need.unit}"
    return Text.assemble(
        (f"  {mark} ", style), f"{need.what}: {amounts}", (f"  {need.note}" if need.note else "", "dim")
    )


def _check(check: Check) -> list[Text]:
    mark, style = _MARK[check.state]
    lines = [Text.assemble((f"  {mark} ", style), f"{check.name}: {check.text}")]
    if check.next_step and check.state != "ok":
        lines.append(Text(f"      next: {check.next_step}", style="bold"))
    return lines


def _quoted(words: Iterable[str]) -> list[str]:
    import shlex

    return [shlex.quote(word) for word in words]
