"""A plan for people: what changes, what stops and for how long, what is needed, what forbids it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..model import Change, Check, Need, Plan
from .diff import coloured, counts

_MARK = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}
_KIND = {"create": ("+", "green"), "modify": ("~", "yellow"), "remove": ("-", "red"), "replace": ("±", "yellow")}
_TREE = "<tree>"


def show(console: Console, plan: Plan, *, diff: bool) -> None:
    """Print ``plan``; with ``diff`` the patch and the units too."""
    console.print(Text.assemble(("Plan for ", "bold"), (plan.host, "bold cyan"), f"  {plan.address}"))
    console.print(_lines([("", "", Text(plan.verdict.sentence))]))
    if plan.noop:
        console.print(Text("  Nothing to do: this build is deployed and on disk as recorded.", style="green"))
        return
    _section(console, "Changes", _changes(plan))
    _section(console, "Commands on the host", [("", "", Text(shlex.join(words))) for words in plan.commands])
    _section(console, "Window", _window(plan))
    _section(console, "Needs", [_need(need) for need in plan.needs])
    _section(console, "Checks", [_check(check) for check in plan.checks])
    _section(console, "Notes", [("·", "dim", Text(note)) for note in plan.notes])
    if diff:
        _diffs(console, plan)


Row = tuple[str, str, Text]  # mark, its style, text


def _lines(rows: Iterable[Row]) -> Table:
    """Rows with a hanging indent under their mark."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=3, justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for mark, style, text in rows:
        table.add_row(Text(mark, style=style), text)
    return table


def _section(console: Console, title: str, rows: list[Row]) -> None:
    if rows:
        console.print(Text(f"\n{title}", style="bold"))
        console.print(_lines(rows))


def _changes(plan: Plan) -> list[Row]:
    tree = plan.changes[0].path if plan.changes else ""
    rows = [_change(change, tree) for change in plan.changes]
    if plan.diff:
        added, removed = counts(plan.diff)
        rows.append(
            ("", "", Text(f"the patch: {added} lines added to SGLang's own files, {removed} removed", style="dim"))
        )
    return rows


def _change(change: Change, tree: str) -> Row:
    mark, style = _KIND[change.kind]
    inside = tree and change.path.startswith(tree + "/")
    path = _TREE + change.path.removeprefix(tree) if inside else change.path
    label = f"  = {_TREE}" if change.path == tree else ""
    hashes = f"  {change.before[:8] or 'absent'} → {change.after[:8]}" if change.after else ""
    return mark, style, Text.assemble(path, (label, "cyan"), (hashes, "dim"), "\n", (change.why, "dim"))


def _window(plan: Plan) -> list[Row]:
    low, high = plan.downtime_seconds
    rows: list[Row] = [("", "", Text("stops: " + (", ".join(plan.stops) if plan.stops else "nothing that runs now")))]
    if high:
        rows.append(("", "", Text(f"until the new service answers, proven: about {low:.0f}-{high:.0f} s")))
    return rows


def _need(need: Need) -> Row:
    mark, style = _MARK["ok" if need.enough else "fail"]
    amounts = f"{need.what}: {need.needed:,.0f} of {need.available:,.0f} {need.unit}"
    return mark, style, Text.assemble(amounts, (f"  {need.note}" if need.note else "", "dim"))


def _check(check: Check) -> Row:
    mark, style = _MARK[check.state]
    text = Text(f"{check.name}: {check.text}")
    if check.next_step and check.state != "ok":
        text.append(f"\nnext: {check.next_step}", style="bold")
    return mark, style, text


def _diffs(console: Console, plan: Plan) -> None:
    if plan.diff:
        console.print(Text("\nPatch", style="bold"))
        console.print(coloured(plan.diff), soft_wrap=True)
    for unit in plan.units:
        console.print(Text(f"\n{unit.path}  (mode {unit.mode:04o})", style="bold"))
        console.print(Text("".join(f"+{line}\n" for line in unit.text.splitlines()), style="green"), soft_wrap=True)
