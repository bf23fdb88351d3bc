"""``ddtree-ops patch``: make, check, show and export series. Needs no host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..inventory import load
from ..patching import commands
from ..resources import data_dir

if TYPE_CHECKING:
    from ..cli import Context


def _folder(context: Context) -> Path:
    return data_dir("patches", load(context.inventory).beside)


def create(context: Context, source: Path, out: Path | None) -> int:
    """Write the series of a pristine tree."""
    made = commands.create(_folder(context), source, out)
    if context.output.json:
        body = {"series": made.series.name, "folder": str(made.folder), "written": list(made.written)}
        context.output.document("patch create", body)
        return 0
    what = "unchanged, byte for byte" if made.unchanged else "written: " + ", ".join(made.written)
    context.output.out.print(f"{made.series.name}: {what}  ({made.folder})")
    return 0


def check(context: Context, release: str | None, source: Path | None) -> int:
    """Check series; exit 4 when one is not what the recipe makes."""
    from rich.text import Text

    found = commands.check(_folder(context), release, source)
    if context.output.json:
        rows = [
            {
                "series": one.series.name,
                "state": one.state,
                "reproduced": one.reproduced,
                "problems": list(one.problems),
                "insertions": sum(patch.insertions for patch in one.series.meta.patches),
            }
            for one in found
        ]
        context.output.document("patch check", {"series": rows})
    else:
        for one in found:
            lines = sum(patch.insertions for patch in one.series.meta.patches)
            proof = (
                f"made again from {one.tree}, byte for byte"
                if one.reproduced
                else "whole; inserts what the recipe says"
            )
            text = proof if one.state == "ok" else "; ".join(one.problems)
            mark = ("ok   ", "green") if one.state == "ok" else ("stale", "red")
            rest = f" {one.series.name}: {len(one.series.meta.files)} files, {lines} lines; {text}"
            context.output.out.print(Text.assemble(mark, rest), soft_wrap=True)
    return 0 if all(one.state == "ok" for one in found) else 4


def show(context: Context, release: str | None) -> int:
    """Print the patches, coloured on a terminal."""
    from ..ui.diff import coloured

    found = commands.show(_folder(context), release)
    if context.output.json:
        context.output.document("patch show", {"series": {one.series.name: one.text for one in found}})
        return 0
    for one in found:
        context.output.out.print(coloured(one.text), soft_wrap=True)
    return 0


def export(context: Context, release: str, folder: Path) -> int:
    """Write the series and the payload as patches for ``git am``."""
    made = commands.export(_folder(context), release, folder, with_payload=True)
    if context.output.json:
        body = {"folder": str(made.folder), "patches": [path.name for path in made.patches]}
        context.output.document("patch export", body)
        return 0
    for path in made.patches:
        context.output.out.print(str(path), soft_wrap=True)
    context.output.note(f"apply them in a checkout of SGLang {release}: git am {made.folder}/*.patch")
    return 0
