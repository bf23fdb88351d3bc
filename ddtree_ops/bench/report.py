"""A bench report for people: one table, identity in one line, and what the words mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_STYLES = {"ok": "bold green", "INVALID": "bold red", "FAILED": "bold red"}


def figure(value: Any, digits: int = 1, unit: str = "") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def headline(report: Mapping[str, Any]) -> str:
    """The result in one line."""
    figures = report["figures"]
    if report["verdict"] != "ok":
        return f"{report['verdict']}: {report['reasons'][0]}"
    return (
        f"{figure(figures['tokens_per_second'])} tokens/s, {figure(figures['tokens_per_verify_step'], 2)} tokens per "
        f"verify step, first token after {figure(figures['ttft'], 3, ' s')}"
    )


def identity_line(report: Mapping[str, Any]) -> str:
    """What the comparison with plain decoding gave; never "lossless" from texts of the same length."""
    found = report.get("identity")
    if not found:
        return f"not compared: {report.get('identity_note') or 'no baseline'}"
    counts = found["counts"]
    parts = [f"{counts['equal']} of {len(found['comparisons'])} answers equal, {found['tokens']} tokens compared"]
    if counts["near_tie"]:
        ties = [one for one in found["comparisons"] if one["outcome"] == "near_tie"]
        where = ", ".join(f"{one['id']} at token {one['index']} (gap {one['gap']:.3g})" for one in ties[:4])
        parts.append(f"{counts['near_tie']} part at a near tie: {where}")
    for outcome, words in (("differs", "differ"), ("unjudged", "cannot be judged")):
        if counts[outcome]:
            parts.append(f"{counts[outcome]} {words}")
    return "; ".join(parts)


def render(report: Mapping[str, Any]) -> Group:
    """Everything that the terminal shows."""
    from rich.console import Group
    from rich.text import Text

    verdict = report["verdict"]
    lines: list[RenderableType] = [requests_table(report), Text(headline(report), style=_STYLES[verdict])]
    lines += [Text(reason, style="red") for reason in report["reasons"][1 if verdict != "ok" else 0 :]]
    lines.append(Text(f"identity: {identity_line(report)}"))
    lines.append(Text(conditions_line(report), style="dim"))
    lines += [
        Text(f"{name}: {report['definitions'][name]}", style="dim") for name in ("tokens_per_verify_step", "ttft")
    ]
    return Group(*lines)


def requests_table(report: Mapping[str, Any]) -> Table:
    """One row per request, then one per regime."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("request", overflow="fold")
    for name in ("tokens", "tokens/s", "first token", "tokens/step", "drafts/step", "cached"):
        table.add_column(name, justify="right", overflow="fold")
    for row in report["requests"]:
        table.add_row(str(row["id"]), *_cells(row), style="" if row["ok"] else "red")
    table.add_section()
    for name, figures in report["by_regime"].items():
        table.add_row(
            f"{name} ({figures['requests']})",
            str(figures["completion_tokens"]),
            figure(figures["tokens_per_second"]),
            figure(figures["ttft"], 3, " s"),
            figure(figures["tokens_per_verify_step"], 2),
            figure(figures["accepted_drafts_per_step"], 2),
            f"{100 * figures['cached_fraction']:.0f} %",
            style="bold",
        )
    return table


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if not row["ok"]:
        return ("failed", "", "", "", "", "")  # the reasons below the table name the error
    steps = row.get("verify_ct") or 0
    drafts = row.get("accepted_drafts")
    return (
        str(row["completion_tokens"]),
        figure(row["completion_tokens"] / row["seconds"] if row["seconds"] else None),
        figure(row.get("ttft"), 3, " s"),
        figure(row["completion_tokens"] / steps if steps else None, 2),
        figure(drafts / steps if steps and drafts is not None else None, 2),
        str(row["cached_tokens"]),
    )


def conditions_line(report: Mapping[str, Any]) -> str:
    """The conditions in one line."""
    found = report["conditions"]
    server = found["server"]
    warm = len(found.get("warmup") or ())
    return (
        f"budget {found['budget']} (started for {found['captured_budget']}), greedy, {found['max_tokens']} tokens, "
        f"concurrency {found['concurrency']}, prefix cache emptied {found['flush']}, {warm} warm-up runs discarded, "
        f"{found['dtype']}{' (assumed)' if found['dtype_assumed'] else ''}, SGLang {server.get('version', '?')}"
    )
