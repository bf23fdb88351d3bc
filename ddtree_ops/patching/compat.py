"""The release matrix: the recipe against pristine trees, edit by edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import DdtreeError
from . import anchors
from .recipe import Family, Recipe, touched_paths
from .series import Series, choose_family, make_git_series, series_files
from .text import to_lf
from .trees import Tree

Verdict = Literal["same", "differs", "no series", "does not fit"]


@dataclass(frozen=True)
class Cell:
    """One edit on one release: the line where it goes, or why it does not."""

    edit: str
    line: int
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """One release: its family, every edit, and whether the committed series is what the recipe makes of it."""

    release: str
    family: str
    cells: tuple[Cell, ...]
    verdict: Verdict
    problem: str = ""

    @property
    def fits(self) -> bool:
        """Whether the recipe applies to this release."""
        return self.verdict != "does not fit"


def matrix(recipe: Recipe, trees: Iterable[Tree], committed: Mapping[str, Series]) -> tuple[Row, ...]:
    """One row per tree, also for a release that does not fit; ``committed`` maps releases to their series."""
    return tuple(_row(recipe, tree, committed.get(tree.version)) for tree in trees)


def differences(made: Series, committed: Series) -> tuple[str, ...]:
    """Names of the series' files that are not byte for byte what the recipe makes now."""
    ours, theirs = series_files(made), series_files(committed)
    return tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))


def _row(recipe: Recipe, tree: Tree, committed: Series | None) -> Row:
    files = {path: data for path in touched_paths(recipe) if (data := tree.read(path)) is not None}
    try:
        family = choose_family(recipe, files)
    except DdtreeError as error:
        return Row(tree.version, "", (), "does not fit", error.why)
    cells = tuple(_cell(recipe, family, index, files) for index in range(len(family.edits)))
    try:
        made = make_git_series(recipe, tree)
    except DdtreeError as error:
        return Row(tree.version, family.id, cells, "does not fit", f"{error.what}: {error.why}")
    if committed is None:
        return Row(tree.version, family.id, cells, "no series")
    different = differences(made, committed)
    return Row(tree.version, family.id, cells, "differs" if different else "same", ", ".join(different))


def _cell(recipe: Recipe, family: Family, index: int, files: Mapping[str, bytes]) -> Cell:
    edit = recipe.edits_of(family)[index]
    if edit.file not in files:
        return Cell(edit.id, 0, f"{edit.file} is absent")
    try:
        return Cell(edit.id, anchors.place(anchors.Source(edit.file, files[edit.file]), edit).site.line + 1)
    except DdtreeError as error:
        return Cell(edit.id, 0, error.why)


@dataclass(frozen=True)
class Nearest:
    """The committed release that looks most like some files: how many of its edits' places are there as recorded."""

    release: str
    found: int
    total: int

    def __str__(self) -> str:
        return f"nearest release {self.release} ({self.found} of {self.total} places as recorded)"


def nearest_release(committed: Iterable[Series], files: Mapping[str, bytes]) -> Nearest | None:
    """Which release unknown files resemble, for the text of a refusal; ``None`` without any series."""
    best: Nearest | None = None
    for series in committed:
        hunks = [(path, hunk) for path, patch in series.file_patches.items() for hunk in patch.hunks]
        found = sum(b"".join(hunk.old) in to_lf(files.get(path, b"")) for path, hunk in hunks)
        candidate = Nearest(series.meta.release, found, len(hunks))
        if best is None or found * best.total > best.found * candidate.total:
            best = candidate
    return best
