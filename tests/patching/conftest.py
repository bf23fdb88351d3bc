"""Shared values: the real recipe, a small tree, its series, and the real wheels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.patching import Recipe, Series, load_recipe, make_git_series, open_tree
from ddtree_ops.patching.series import series_files
from ddtree_ops.patching.trees import Tree
from tests.hosts import layers
from tests.patching import minisglang

PATCHES = Path(__file__).parents[2] / "patches"
RELEASES = sorted(path.parent.name.removeprefix("sglang-") for path in PATCHES.glob("sglang-*/series.yaml"))


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    """The recipe that ships."""
    return load_recipe(PATCHES / "recipe.yaml")


@pytest.fixture(scope="session")
def mini(recipe: Recipe) -> Series:
    """The series of the small tree."""
    return make_git_series(recipe, minisglang.tree())


@pytest.fixture
def mini_folder(mini: Series, tmp_path: Path) -> Path:
    """A patches folder with the real recipe and the small tree's series."""
    folder = tmp_path / "patches" / mini.name
    folder.mkdir(parents=True)
    for name, data in series_files(mini).items():
        (folder / name).write_bytes(data)
    (folder.parent / "recipe.yaml").write_bytes((PATCHES / "recipe.yaml").read_bytes())
    return folder


@pytest.fixture(scope="session")
def wheel() -> Callable[[str], Tree]:
    """The pristine tree of an SGLang release, from its real wheel (cached; see tests/hosts/layers.py)."""
    return lambda release: open_tree(layers.wheel_file(release))
