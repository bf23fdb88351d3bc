"""``bench diff`` and ``bench report``: what is made from result folders alone, without a host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..bench import diff
from ..bench.render import write_reports
from ..bench.results import open_folder
from ..errors import GateFailed

if TYPE_CHECKING:
    from ..cli import Context


def compare(context: Context, a: Path, b: Path, fail_below: float | None) -> int:
    """Print how folder ``b`` differs from folder ``a``; exit 0, or 8 with ``fail_below`` and a cell below it."""
    from ..ui import bench as screen

    found = diff.compare(open_folder(a), open_folder(b))
    below = found.below(fail_below) if fail_below is not None else []
    if context.output.json:
        context.output.document("bench diff", {**diff.as_dict(found), "fail_below": fail_below, "below": below})
        return GateFailed.exit_code if below else 0
    screen.show_diff(context.output.out, found)
    if below:
        raise GateFailed(
            f"{len(below)} of {len(found.cells)} cells do not hold {fail_below:g}: {below[0]}",
            where=str(b),
            why="; ".join(below[1:]),
            next_step="the cells and conditions are above; --json has all of them",
        )
    return 0


def render(context: Context, folder: Path) -> int:
    """Write ``report.md`` and ``report.html`` of a folder anew."""
    written = [str(path) for path in write_reports(open_folder(folder))]
    if context.output.json:
        context.output.document("bench report", {"written": written})
    else:
        for path in written:
            context.output.line(path)
    return 0
