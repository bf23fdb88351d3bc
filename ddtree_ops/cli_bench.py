"""``ddtree-ops bench diff`` and ``ddtree-ops bench report``: parse, call, render; imported by :mod:`.cli`."""

from __future__ import annotations

from pathlib import Path

import click

from .cli import Context, cli, common

_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@cli.command("bench diff")
@common
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@click.option(
    "--fail-below", type=click.FloatRange(0), metavar="RATIO", help="Exit 8 when tokens/s of B over A is less."
)
def bench_diff(context: Context, a: Path, b: Path, fail_below: float | None) -> int:
    """Compare two result folders: conditions that differ, then cell by cell with intervals. Asks no host."""
    from .workflow import reports

    return reports.compare(context, a, b, fail_below)


@cli.command("bench report")
@common
@click.argument("folder", type=_FOLDER)
def bench_report(context: Context, folder: Path) -> int:
    """Write report.md and report.html of a result folder anew. Asks no host."""
    from .workflow import reports

    return reports.render(context, folder)
