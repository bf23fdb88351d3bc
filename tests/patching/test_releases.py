"""The committed series against the real wheels of their releases."""

from __future__ import annotations

import ast
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.errors import PatchConflict
from ddtree_ops.patching import (
    Recipe,
    commands,
    content_hash,
    decide,
    load_all,
    load_series,
    open_tree,
    plan_patch,
    recognised_paths,
    select_series,
    touched_paths,
)
from ddtree_ops.patching.compat import matrix, nearest_release
from ddtree_ops.patching.text import sha256
from ddtree_ops.patching.trees import Tree
from tests.hosts import layers
from tests.patching.conftest import PATCHES, RELEASES
from tests.patching.test_series import git, repository

Wheel = Callable[[str], Tree]
SPEC = "srt/speculative/spec_info.py"


def touched(recipe: Recipe, tree: Tree) -> dict[str, bytes]:
    """The bytes that would be fetched from a host."""
    return {path: data for path in touched_paths(recipe) if (data := tree.read(path)) is not None}


@pytest.mark.parametrize("release", RELEASES)
def test_recipe_reproduces_the_committed_series(wheel: Wheel, release: str) -> None:
    (checked,) = commands.check(PATCHES, release, layers.wheel_file(release))
    assert checked.reproduced
    assert checked.problems == ()


@pytest.mark.parametrize("release", RELEASES)
def test_release_is_recognised_and_applied(recipe: Recipe, wheel: Wheel, release: str) -> None:
    tree = wheel(release)
    hashes = {
        path: (sha256(data) if (data := tree.read(path)) is not None else None) for path in recognised_paths(recipe)
    }
    series = select_series(PATCHES, hashes)
    assert series is not None
    assert series.meta.release == release
    assert series.meta.base.content_hash == content_hash(tree.hashes())
    files = touched(recipe, tree)
    plan = plan_patch(recipe, series, files)
    assert {change.how for change in plan.changes} == {"recorded"}
    after = {**files, **{change.path: change.after_bytes for change in plan.changes}}
    assert decide(recipe, series, after).outcome == "NOOP"
    for change in plan.changes:
        ast.parse(change.after_bytes)


@pytest.mark.parametrize("release", RELEASES)
def test_git_am_on_the_real_files(recipe: Recipe, wheel: Wheel, release: str, tmp_path: Path) -> None:
    """``git am`` of the exported series on the release's own files gives our bytes."""
    files = touched(recipe, wheel(release))
    repo = repository(tmp_path / "repo", files)
    exported = commands.export(PATCHES, release, tmp_path / "out")
    git(repo, "am", "-q", *map(str, exported.patches))
    plan = plan_patch(recipe, load_series(PATCHES / f"sglang-{release}"), files)
    expected = {**files, **{change.path: change.after_bytes for change in plan.changes}}
    assert {path: (repo / "python/sglang" / path).read_bytes() for path in files} == expected


def test_matrix(recipe: Recipe, wheel: Wheel) -> None:
    committed = {series.meta.release: series for series in load_all(PATCHES)}
    rows = matrix(recipe, [wheel(release) for release in RELEASES], committed)
    assert [(row.release, row.verdict) for row in rows] == [(release, "same") for release in RELEASES]
    assert {row.release: row.family for row in rows}["0.5.13.post1"] == "v1"
    assert {row.release: row.family for row in rows}["0.5.20"] == "v2"
    assert all(cell.line > 0 for row in rows for cell in row.cells)


@pytest.mark.parametrize("with_base", [False, True])
def test_operator_edit_of_the_real_file(recipe: Recipe, wheel: Wheel, with_base: bool) -> None:
    """0.5.20's spec_info.py with an edit far away merges; with one beside a dispatch it is refused at its line."""
    files = touched(recipe, wheel("0.5.20"))
    series = load_series(PATCHES / "sglang-0.5.20")
    base = files if with_base else None
    text = files[SPEC].decode()
    far = text.replace("    UNO_VERIFY = auto()\n", "    UNO_VERIFY = auto()\n    LOCAL = auto()\n")
    assert far != text
    decision = decide(recipe, series, {**files, SPEC: far.encode()}, base=base)
    assert decision.outcome == "MERGE"
    near = text.replace(
        "        if self.is_dflash():\n            # V2",
        "        log()\n        if self.is_dflash():\n            # V2",
    )
    assert near != text
    with pytest.raises(PatchConflict) as caught:
        plan_patch(recipe, series, {**files, SPEC: near.encode()}, base=base)
    assert caught.value.details["function"] == "SpeculativeAlgorithm.create_worker"
    assert "log()" in caught.value.details["ours"]


def test_series_of_another_release_is_refused_not_forced(recipe: Recipe, wheel: Wheel) -> None:
    """Field case B3: a patch cut for one release on another. Nothing is applied in part."""
    files = touched(recipe, wheel("0.5.13.post1"))
    decision = decide(recipe, load_series(PATCHES / "sglang-0.5.20"), files)
    assert decision.outcome == "REFUSE"
    near = nearest_release(load_all(PATCHES), files)
    assert near is not None
    assert (near.release, near.found) == ("0.5.13.post1", near.total)


def test_release_without_dflash_does_not_fit(recipe: Recipe, tmp_path: Path) -> None:
    """0.5.10.post1 has no DFLASH: a row that says so, and not a crash."""
    with tarfile.open(layers.source_file()) as archive:
        # Debian 12's Python 3.11.2 does not know filters yet; newer ones warn without
        known = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **known)
    (root,) = tmp_path.iterdir()
    (row,) = matrix(recipe, [open_tree(root)], {})
    assert row.verdict == "does not fit"
    assert "v1:" in row.problem
    assert "v2:" in row.problem
