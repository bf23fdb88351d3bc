"""Baselines and comparisons for people: tables, and one round as two small trees side by side. Fits 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..bench.schema import Offline
from .compare import Comparison
from .levels import Difference, Level
from .pairs import Nodes
from .traces import Round, Trace

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SHOWN_NODES = 14
_STATE = {"ok": "green", "failed": "bold red", "not compared": "yellow"}


def summary(found: Trace) -> dict[str, Any]:
    """What a trace holds, for JSON: per prompt and in all."""
    prompts = []
    for one in found.requests:
        steps, tokens = len(one.rounds), sum(len(each.emitted) for each in one.rounds)
        item: dict[str, Any] = {"id": one.name, "rounds": steps, "tokens_per_verify": _ratio(tokens, steps)}
        if one.answer is not None:
            item |= {"tokens": len(one.answer.ids), "finish": one.answer.finish, **one.answer.extra}
        prompts.append(item)
    steps = sum(len(one.rounds) for one in found.requests)
    tokens = sum(len(each.emitted) for each in found.rounds)
    header = found.header
    return {
        "engine": header.engine,
        "version": header.version,
        "mode": header.extra.get("mode", "tree"),
        "budget": header.budget,
        "dtype": header.dtype,
        "rounds": steps,
        "tokens_per_verify": _ratio(tokens, steps),
        "prompts": prompts,
    }


def _ratio(above: float, below: float) -> float | None:
    return round(above / below, 4) if below else None


def recorded(found: Trace) -> RenderableType:
    """A recording: one line, and its curve where it has exact walks."""
    from rich.console import Group
    from rich.text import Text

    from .curve import offline

    whole = summary(found)
    controls = [one["control"]["verdict"] for one in whole["prompts"] if "control" in one]
    line = f"{len(found.requests)} prompts, {whole['rounds']} verify steps, "
    line += f"{whole['tokens_per_verify'] or 0:.3f} tokens per verify step"
    if controls:
        counts = ", ".join(f"{controls.count(word)} {word}" for word in ("equal", "near tie", "differs"))
        line += f"; against the target's own greedy answers: {counts}"
    parts: list[RenderableType] = [Text(line)]
    if any(one.answer and one.answer.extra.get("walks") for one in found.requests):
        parts.append(curve(offline(found)))
    return Group(*parts)


def curve(found: Offline) -> RenderableType:
    """Tokens per verify step by budget."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"Tokens per verify step, bonus included ({found.source})", box=box.SIMPLE, title_justify="left"
    )
    for name in ("regime", "budget", "tokens/step", "95 % interval", "steps"):
        table.add_column(name, justify="left" if name == "regime" else "right")
    for one in found.points:
        interval = f"{one.low:.3f} to {one.high:.3f}" if one.low is not None and one.high is not None else ""
        budget = "linear" if one.budget is None else str(one.budget)
        table.add_row(one.regime, budget, f"{one.tokens_per_verify:.3f}", interval, str(one.rounds))
    return table


def imported(found: Mapping[str, Any]) -> RenderableType:
    """What a result file of another implementation says."""
    from rich import box
    from rich.table import Table

    table = Table(title=f"{found['source']}", box=box.SIMPLE, title_justify="left")
    for name in ("method", "budget", "prompts", "rounds", "tokens/step", "speed-up"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for one in found["methods"]:
        cells = (one["budget"], one["prompts"], one["rounds"])
        length, speed = one["tokens_per_verify"], one["speedup"]
        table.add_row(
            one["method"],
            *("" if cell is None else str(cell) for cell in cells),
            "" if length is None else f"{length:.3f}",
            "" if speed is None else f"{speed:.2f}x",
        )
    return table


# -- a comparison --


def comparison(found: Comparison) -> RenderableType:
    """All levels as a table."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=f"{found.prompts} requests of the same prompts; a near tie is judged at {found.dtype}",
        box=box.SIMPLE,
        title_justify="left",
    )
    for name in ("level", "what", "state", "compared", "near ties", "differ"):
        table.add_column(name, justify="right" if name in ("compared", "near ties", "differ") else "left")
    for level in found.levels:
        table.add_row(
            level.level,
            f"{level.title}{_figures(level)}",
            Text(level.state, style=_STATE[level.state]),
            f"{level.checked} {level.unit}",
            str(level.near_ties),
            str(level.failures),
        )
    return table


def _figures(level: Level) -> str:
    notes = [f"{count} not compared: {reason}" for reason, count in level.skipped.items()]
    figures = level.figures
    if figures.get("overlap") is not None:
        notes.append(f"{figures['equal_trees']} equal, {100 * figures['overlap']:.1f} % of all nodes common")
    if "equal_tokens" in figures:
        notes.append(f"{figures['equal_tokens']} of {figures['compared_tokens']} tokens before a first difference")
    for name, (mean, low, high) in figures.get("tokens_per_verify", {}).items():
        notes.append(f"{name}: {mean:.3f} ({low:.3f} to {high:.3f})")
    return "".join(f"\n  {note}" for note in notes)


def verdict(found: Comparison) -> Text:
    """The outcome in words."""
    from rich.text import Text

    failed = [level for level in found.levels if level.failures]
    if failed:
        first = found.first
        text = f"they differ at {', '.join(level.level for level in failed)}"
        text += f"; first: {describe(first)}" if first else ""
        return Text(text, style="bold red")
    ties = sum(level.near_ties for level in found.levels)
    nothing = [level.level for level in found.levels if level.state == "not compared"]
    text = "nothing differs beyond near ties" if found.ok else "nothing could be compared"
    text += f" ({ties} near ties)" if ties else ""
    text += f"; not compared: {', '.join(nothing)}" if nothing else ""
    return Text(text, style="green" if found.ok else "yellow")


def describe(one: Difference) -> str:
    """One difference in one sentence."""
    rounds = [f"{name} {number}" for name, number in (("a", one.round_a), ("b", one.round_b)) if number is not None]
    where = f"{one.request}, round {' / '.join(rounds)}" if rounds else one.request
    text = f"{one.level}, {where}: {one.text}"
    if one.distance is not None and one.limit is not None:
        text += f" ({one.distance:.4f} apart, a near tie is up to {one.limit:.4f})"
    return text + {"near_tie": ", a near tie", "unjudged": ", which cannot be judged", "differs": ""}[one.verdict]


def side_by_side(found: Comparison, a: Trace, b: Trace) -> RenderableType | None:
    """The round to look at first as two small trees; None where no round differs."""
    from rich import box
    from rich.table import Table

    first = found.first
    if first is None or (first.round_a is None and first.round_b is None):
        return None
    rounds = [_round(a, first.request, first.round_a), _round_like(b, a, first)]
    if first.file == "b":
        rounds = [None, _round(b, first.request, first.round_b)]
    nodes = [Nodes(one) if one is not None else None for one in rounds]
    table = Table(title=describe(first), box=box.SIMPLE, title_justify="left", expand=False)
    table.add_column(f"a: {a.header.engine}", ratio=1)
    table.add_column(f"b: {b.header.engine}", ratio=1)
    table.add_row(*(_drawn(side, other) for side, other in (nodes, nodes[::-1])))
    return table


def _round(side: Trace, name: str, number: int | None) -> Round | None:
    rounds = [one for request in side.requests if request.name == name for one in request.rounds]
    return next((one for one in rounds if one.round == number), None)


def _round_like(b: Trace, a: Trace, first: Difference) -> Round | None:
    """The round of ``b`` that was compared: of the same prompt, with that number, at the same place."""
    ours = _round(a, first.request, first.round_a)
    digests = {request.digest for request in a.requests if request.name == first.request}
    for request in b.requests:
        for one in request.rounds if request.digest in digests else ():
            if one.round == first.round_b and (ours is None or one.start == ours.start):
                return one
    return None


def _drawn(side: Nodes | None, other: Nodes | None) -> RenderableType:
    """A tree with at most :data:`SHOWN_NODES` nodes: the accepted path, what only this side has, then the best ones."""
    from rich.text import Text
    from rich.tree import Tree

    if side is None:
        return Text("")
    one = side.round
    accepted = set(one.accepted)
    alone = [node for path, node in side.index.items() if other is not None and path not in other.index]
    wanted: set[int] = {0}
    for node in [*one.accepted, *alone, *range(len(side.paths))]:
        missing = {node, *_above(one, node)} - wanted
        if len(wanted) + len(missing) <= SHOWN_NODES:
            wanted |= missing
    branches: dict[int, Tree] = {}
    for node in sorted(wanted):
        label = Text(str(one.token[node]))
        if node in alone:
            label.append(" only here", style="bold yellow")
        if node in accepted:
            label.stylize("bold green")
            label.append(" ✓" if node else "", style="green")
        if one.target[node] >= 0:
            label.append(f" → {one.target[node]}", style="cyan" if node in accepted else "dim")
        branches[node] = branches[one.parent[node]].add(label) if node else Tree(label)
    hidden = len(side.paths) - len(wanted)
    if hidden:
        branches[0].add(Text(f"… {hidden} more", style="dim"))
    return branches[0]


def _above(one: Round, node: int) -> Sequence[int]:
    found = []
    while node:
        node = one.parent[node]
        found.append(node)
    return found
