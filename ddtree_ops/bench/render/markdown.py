"""``report.md``: the same content as the page, for a terminal, a commit or an issue. Words of hosts stay literal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..schema import Acceptance, Cell, Gates, IdentityReport, Percentiles
from . import document, trees
from .document import Report
from .html import plots
from .plots import Plot
from .text import md, number, plural, ratio

_LONGEST = 60  # rows of a table behind a figure; the page and the JSON have all


def render(report: Report) -> str:
    """The report as Markdown; its first line is what loses, where something does."""
    parts = [
        *_head(report),
        *_glance(report),
        *_cells(document.ordered(report.summary.cells)),
        *(line for plot in plots(report) if plot.name != "plot-throughput" for line in _figure(plot)),
        *_tree(report.tree),
        *_identity(report.identity),
        *_gates(report.gates),
        *_steps(report.acceptance),
        "## What the figures mean",
        "",
        *(f"- **{md(name)}**: {md(text)}" for name, text in document.definitions(report)),
        "",
        "## Conditions",
        "",
        *table(("condition", "value"), document.conditions(report)),
        *_arguments(report),
        *_missing(report),
    ]
    return "\n".join(parts).rstrip() + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = False) -> list[str]:
    """A Markdown table whose cells are literal text."""
    line = "| --- |" + (" ---: |" if numbers else " --- |") * (len(head) - 1)
    body = ["| " + " | ".join(md(value) for value in row) + " |" for row in rows]
    return ["| " + " | ".join(md(name) for name in head) + " |", line, *body, ""]


def _head(report: Report) -> list[str]:
    summary = report.summary
    lines = [f"**{md(line)}**" for line in document.headline(summary)]
    notes = [*report.notes, *(summary.why if summary.verdict != "ok" else ())]
    return [
        *(part for line in lines for part in (line, "")),
        f"# DDTREE bench: {md(report.title)}",
        "",
        f"Verdict: **{summary.verdict}**. {md(report.manifest.created)}, host {md(report.manifest.host)}.",
        "",
        *(f"- {md(note)}" for note in notes),
        *([""] if notes else []),
    ]


def _glance(report: Report) -> list[str]:
    rows = []
    for one in document.glance(report.summary.cells):
        best = one.best
        rows.append(
            (
                one.regime,
                str(one.concurrency),
                number(document.speed(one.ar) if one.ar else None, 0),
                number(document.speed(one.dflash) if one.dflash else None, 0),
                number(document.speed(best) if best else None, 0),
                str(best.budget) if best else number(None),
                document.times(best.speedup_vs_dflash) if best else ratio(None),
                document.times(best.speedup_vs_ar) if best else ratio(None),
            )
        )
    head = ("regime", "concurrency", "AR", "DFLASH", "best DDTREE", "budget", "against DFLASH", "against AR")
    return [
        "## At a glance",
        "",
        "Tokens per second of the whole server; the fastest valid tree of each setting.",
        "",
        *table(head, rows, numbers=True),
    ]


def _cells(cells: Sequence[Cell]) -> list[str]:
    head = (
        "cell",
        "tokens/s",
        "tokens/step",
        "drafts/step",
        "against DFLASH",
        "against AR",
        "first token, ms",
        "per token, ms",
        "rounds",
        "failed, empty, timed out",
    )
    rows = [_cell_line(one) for one in cells]
    flawed = [f"- **INVALID** {md(one.name)}: {md('; '.join(one.why))}" for one in cells if not one.valid]
    shared = document.shared_notes(cells)
    notes = [f"- {md(one.name)}: {md(note)}" for one in cells for note in one.notes if note not in shared]
    failures = [f"- {md(one.name)}: {md(text)}" for one in cells for text in one.failures]
    return [
        "## All cells",
        "",
        "In brackets: 95 % interval. Struck: INVALID, not to be quoted. Milliseconds: p50 / p95 / p99.",
        "",
        *table(head, (), numbers=True)[:2],
        *rows,
        "",
        *(f"- All cells: {md(note)}" for note in shared),
        *flawed,
        *notes,
        *([""] if shared or flawed or notes else []),
        *(["Requests that failed:", "", *failures, ""] if failures else []),
    ]


def _cell_line(one: Cell) -> str:
    values = (
        one.name,
        document.span(one.tok_per_s, 1),
        document.span(one.tokens_per_verify, 2),
        number(one.accepted_drafts.median if one.accepted_drafts else None, 2),
        document.times(one.speedup_vs_dflash),
        document.times(one.speedup_vs_ar),
        _percentiles(one.ttft_ms),
        _percentiles(one.tpot_ms),
        f"{one.runs} in {plural(one.starts, 'start')}",
        f"{one.failed}, {one.empty}, {one.timed_out}",
    )
    texts = [md(value) if one.valid else f"~~{md(value)}~~" for value in values]
    return "| " + " | ".join(texts) + " |"


def _percentiles(found: Percentiles | None) -> str:
    if found is None:
        return number(None)
    return f"{number(found.p50, 1)} / {number(found.p95, 1)} / {number(found.p99, 1)}"


def _figure(plot: Plot) -> list[str]:
    rows = plot.table.rows[:_LONGEST]
    more = len(plot.table.rows) - len(rows)
    return [
        f"## {md(plot.title)}",
        "",
        md(plot.caption),
        "",
        *table(plot.table.head, rows, numbers=True),
        *([f"{plural(more, 'more row')} in report.html.", ""] if more else []),
    ]


def _tree(sample: trees.Sample | None) -> list[str]:
    if sample is None:
        return []
    one = sample.round
    path = " → ".join(one.label(node) for node in one.accepted)
    return [
        "## A draft tree",
        "",
        f"Request {md(one.req, 40)}, step {one.round}: {plural(len(one.token) - 1, 'node')}, "
        f"{plural(len(one.accepted) - 1, 'draft')} accepted (mean over {plural(sample.rounds, 'recorded step')}: "
        f"{sample.mean_accepted:.2f}). The path, root first: {md(path)}; then {md(trees.bonus(one))} by the target.",
        "",
    ]


def _identity(identity: IdentityReport | None) -> list[str]:
    if identity is None:
        return []
    rows = [
        (
            name,
            f"{pair.against}, concurrency {pair.against_concurrency}",
            *(str(pair.counts.get(outcome, 0)) for outcome in ("equal", "near_tie", "differs", "unjudged")),
            number(pair.tokens, 0),
            pair.verdict,
        )
        for name, pair in document.pairs(identity)
    ]
    head = ("answers of", "against", "equal", "near ties", "differ", "unjudged", "tokens compared", "verdict")
    return [
        f"## Token identity: {identity.verdict}",
        "",
        f"{md(identity.rule)}. Served type {md(identity.dtype)}. The floor is plain decoding against itself at another "
        "batch shape.",
        "",
        *(f"- {md(why)}" for why in identity.why),
        *([""] if identity.why else []),
        *table(head, rows, numbers=True),
    ]


def _gates(gates: Gates | None) -> list[str]:
    if gates is None:
        return []
    rows = [(one.name, one.where, one.wanted, one.found, "passed" if one.passed else "FAILED") for one in gates.gates]
    return [
        f"## Gates: {'passed' if gates.passed else 'FAILED'}",
        "",
        *table(("gate", "where", "wanted", "found", "result"), rows),
    ]


def _steps(found: Acceptance) -> list[str]:
    rows = document.step_rows(found)
    if not rows:
        return []
    return ["## Steps: widths, why, fallbacks", "", *table(document.STEPS, rows, numbers=True)]


def _arguments(report: Report) -> list[str]:
    arms, different = document.arguments(report)
    if not different:
        return []
    rows = [(name, *values) for name, values in different]
    return ["Server arguments in which the arms differ:", "", *table(("argument", *arms), rows)]


def _missing(report: Report) -> list[str]:
    found = document.missing(report)
    return ["## Not in this result", "", *(f"- {md(what)}: {md(how)}" for what, how in found), ""] if found else []
