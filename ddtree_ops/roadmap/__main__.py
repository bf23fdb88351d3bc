"""``python -m ddtree_ops.roadmap``: make the roadmap's tables anew, or check that they are what the results say."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import ConfigError, DdtreeError
from . import files, markers, tables

_ROOT = Path(__file__).resolve().parents[2]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 10 when a table is not what the files say.")
@click.option("--results", type=click.Path(path_type=Path), default=_ROOT / "benchmarks" / "results")
@click.option("--roadmap", "document", type=click.Path(path_type=Path), default=_ROOT / "sglang-ddtree-roadmap.md")
def main(check: bool, results: Path, document: Path) -> None:
    """Make the result tables of sglang-ddtree-roadmap.md from benchmarks/results/*.json."""
    try:
        sys.exit(run(check, results, document))
    except DdtreeError as error:
        lines = [
            f"error: {error.what}",
            f"  where: {error.where}",
            f"  why:   {error.why}",
            f"  next:  {error.next_step}",
        ]
        click.echo(
            "\n".join(line for line in lines if not line.endswith(": ") and line.split(": ", 1)[1].strip()), err=True
        )
        sys.exit(error.exit_code)


def run(check: bool, results: Path, document: Path) -> int:
    """Exit code 0, or 10 with ``check`` and a stale table."""
    found = files.read(results)
    if not found:
        raise ConfigError("there is no result file", where=str(results), next_step="run this in a checkout")
    try:
        text = document.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"the roadmap cannot be read: {error.strerror}", where=str(document)) from error
    blocks = {name: make(found) for name, make in tables.BLOCKS.items()}
    old = markers.stale(text, blocks, str(document))
    if check:
        for name in old:
            click.echo(f"stale: {name}; next: python -m ddtree_ops.roadmap", err=True)
        return 10 if old else 0
    if old:
        document.write_text(markers.filled(text, blocks, str(document)), "utf-8")
    click.echo(f"{document.name}: {', '.join(old) + ' made anew' if old else 'nothing to do'}")
    return 0


if __name__ == "__main__":
    main()
