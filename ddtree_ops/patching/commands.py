"""``ddtree-ops patch create | check | show | export``: the work behind the commands, as plain results.

Only these functions write, and only on the controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import ConfigError, DdtreeError, PatchDamaged, Refused
from . import anchors
from .compat import differences
from .gitdiff import FileDiff, mail
from .payload import Payload, load_payload
from .plan import load_all
from .recipe import Recipe, load_recipe
from .series import META, Series, load_series, make_git_series, series_files
from .text import bare
from .trees import Tree, open_tree

RECIPE = "recipe.yaml"
CheckState = Literal["ok", "stale"]


@dataclass(frozen=True)
class Created:
    """A series that was written, or was there already, byte for byte."""

    series: Series
    folder: Path
    written: tuple[str, ...]
    unchanged: bool


@dataclass(frozen=True)
class Checked:
    """One series: whole by its own hashes, and as the recipe makes it.

    ``reproduced`` says that it was made again from ``tree`` and compared byte for byte; without a tree only the
    inserted lines are compared with the recipe's.
    """

    series: Series
    state: CheckState
    reproduced: bool
    tree: str = ""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """One series for people."""

    series: Series
    text: str
    recipe: Recipe = field(repr=False)


@dataclass(frozen=True)
class Exported:
    """Files for ``git am``, in order."""

    folder: Path
    patches: tuple[Path, ...]
    payload: Payload | None


def create(patches_dir: Path, source: Path, out: Path | None = None) -> Created:
    """Make the series of a pristine tree (wheel, unpacked wheel, checkout) and write it to ``out``.

    Raises:
        AnchorNotFound, PatchConflict: the recipe does not fit this release.
        Refused: the tree is not pristine, or ``out`` holds something else.
    """
    recipe = load_recipe(patches_dir / RECIPE)
    tree = open_tree(source)
    if not tree.version:
        raise ConfigError(
            "the release of this tree is unknown",
            where=str(source),
            why="no dist-info beside the package says it",
            next_step="name the wheel itself, or a folder where it was unpacked with its dist-info",
        )
    series = make_git_series(recipe, tree)
    folder = out if out is not None else patches_dir / series.name
    files = series_files(series)
    _refuse_strangers(folder, set(files))
    changed = [name for name, data in files.items() if not _holds(folder / name, data)]
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (folder / name).write_bytes(files[name])
    for stale in {path.name for path in folder.glob("*.patch")} - set(files):
        (folder / stale).unlink()
    return Created(load_series(folder, recipe.repository_prefix), folder, tuple(changed), not changed)


def check(patches_dir: Path, release: str | None = None, source: Path | None = None) -> tuple[Checked, ...]:
    """Check one series, or all.

    Raises:
        PatchDamaged: a series is not whole.
        ConfigError: there is no such series.
    """
    recipe = load_recipe(patches_dir / RECIPE)
    tree = open_tree(source) if source is not None else None
    if release is None and tree is not None and tree.version:
        release = tree.version
    return tuple(_check(recipe, series, tree) for series in find(patches_dir, release))


def show(patches_dir: Path, release: str | None = None) -> tuple[Shown, ...]:
    """The patches of one series, or of all, as text."""
    recipe = load_recipe(patches_dir / RECIPE)
    return tuple(
        Shown(series, b"".join(series.patches.values()).decode("utf-8", "backslashreplace"), recipe)
        for series in find(patches_dir, release)
    )


def export(
    patches_dir: Path, release: str, folder: Path, *, with_payload: bool = False, kernels: Path | None = None
) -> Exported:
    """Write a series as ``git am`` takes it; ``with_payload`` adds the new files as a last patch.

    Raises:
        Refused: the folder already holds patches of another series.
    """
    recipe = load_recipe(patches_dir / RECIPE)
    (series,) = find(patches_dir, release)
    files = dict(series.patches)
    payload = load_payload(recipe, kernels) if with_payload else None
    if payload is not None:
        name, data = payload_patch(recipe, series, payload)
        files[name] = data
    _refuse_strangers(folder, set(files))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if not _holds(folder / name, data):
            (folder / name).write_bytes(data)
    return Exported(folder, tuple(folder / name for name in files), payload)


def payload_patch(recipe: Recipe, series: Series, payload: Payload) -> tuple[str, bytes]:
    """The payload as one more patch behind the series: name and bytes."""
    number = len(series.patches) + 1
    data = mail(
        subject="speculative: add DDTREE's own files",
        body=f"Payload {payload.hash[:12]}, {len(payload.files)} files.",
        author=recipe.author,
        date=recipe.date,
        number=number,
        total=number,
        changes=[FileDiff(f"{recipe.repository_prefix}/{path}", None, data) for path, data in payload.placed().items()],
    )
    return f"{number:04d}-ddtree-payload.patch", data


def find(patches_dir: Path, release: str | None) -> Sequence[Series]:
    """The series of a release (``0.5.20`` or ``sglang-0.5.20``), or all of them."""
    if release is None:
        return load_all(patches_dir)
    folder = patches_dir / (release if release.startswith("sglang-") else f"sglang-{release}")
    if not (folder / "series.yaml").is_file():
        known = sorted(path.parent.name.removeprefix("sglang-") for path in patches_dir.glob("sglang-*/series.yaml"))
        raise ConfigError(
            f"there is no series for {release}",
            where=str(patches_dir),
            why="series: " + (", ".join(known) or "none"),
            next_step="make it from the release's wheel: ddtree-ops patch create WHEEL",
        )
    return [load_series(folder)]


def _check(recipe: Recipe, series: Series, tree: Tree | None) -> Checked:
    if tree is None:
        problems = stale(recipe, series)
        return Checked(series, "stale" if problems else "ok", False, "", problems)
    try:
        made = make_git_series(recipe, tree, series.meta.release)
    except DdtreeError as error:
        return Checked(series, "stale", False, tree.origin, (f"{error.what}: {error.why}",))
    different = differences(made, series)
    problems = tuple(f"{name} is not what the recipe makes of this tree" for name in different)
    if not different:
        for item in series.meta.files:
            series.result(item.path, tree.read(item.path) or b"")
    return Checked(series, "stale" if problems else "ok", True, tree.origin, problems)


def stale(recipe: Recipe, series: Series) -> tuple[str, ...]:
    """Why the series is not the recipe's any more, as far as that shows without the release's tree."""
    try:
        family = recipe.family(series.meta.family)
    except ConfigError as error:
        return (error.what,)
    edits = recipe.edits_of(family)
    if {edit.id for edit in edits} != {place.id for place in series.meta.edits}:
        return ("the recipe has other edits for this family",)
    problems = []
    order = {place.id: place.line for place in series.meta.edits}
    for path in dict.fromkeys(edit.file for edit in edits):
        own = sorted((edit for edit in edits if edit.file == path), key=lambda edit: order[edit.id])
        site = anchors.Site(path, "", 0, b"", b"\n")
        wanted = sorted(bare(line).strip() for edit in own for line in anchors.render(edit, site))
        if wanted != sorted(_added(series, path)):
            problems.append(f"{path}: the inserted lines are not those of the recipe")
    return tuple(problems)


def _added(series: Series, path: str) -> list[bytes]:
    """Inserted lines of a file without indentation; the recipe only inserts, so new lines minus old lines."""
    found: list[bytes] = []
    for hunk in series.file_patches[path].hunks:
        old = list(hunk.old)
        for line in hunk.new:
            if old and line == old[0]:
                old.pop(0)
            else:
                found.append(bare(line).strip())
        if old:
            raise PatchDamaged(f"the patch removes lines of {path}", where=series.name, next_step="make it again")
    return found


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _refuse_strangers(folder: Path, expected: set[str]) -> None:
    """Refuse a folder with files that are not ours; patches beside a ``series.yaml`` are an earlier series."""
    if folder.exists() and not folder.is_dir():
        raise Refused("the target is not a folder", where=str(folder), next_step="name a folder")
    earlier = META in expected and (folder / META).is_file()
    strangers = sorted(
        path.name
        for path in folder.glob("*")
        if path.name not in expected and not (earlier and path.suffix == ".patch")
    )
    if strangers:
        raise Refused(
            f"the folder holds other files ({strangers[0]})",
            where=str(folder),
            why="a series folder is written as a whole",
            next_step="name an empty folder",
        )
