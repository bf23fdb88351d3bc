"""``patch create | check | show | export`` on files."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from ddtree_ops.errors import ConfigError, PatchDamaged, Refused
from ddtree_ops.patching import Recipe, Series, commands, load_payload, plan_patch
from ddtree_ops.patching.series import series_files
from tests.patching import minisglang
from tests.patching.conftest import PATCHES, RELEASES
from tests.patching.test_series import git, repository


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """The small tree as an unpacked wheel with its RECORD."""
    root = tmp_path / "unpacked"
    rows = []
    for path, data in minisglang.FILES.items():
        (root / "sglang" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "sglang" / path).write_bytes(data)
        rows.append(f"sglang/{path},{record_hash(data)},{len(data)}")
    info = root / "sglang-0.5.99.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("\n".join([*rows, "sglang-0.5.99.dist-info/RECORD,,"]) + "\n")
    return root


def record_hash(data: bytes) -> str:
    """As a wheel's RECORD writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def patches(tmp_path: Path) -> Path:
    """A patches folder with the recipe only."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "recipe.yaml").write_bytes((PATCHES / "recipe.yaml").read_bytes())
    return folder


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()}


def test_create_then_again_changes_nothing(patches: Path, unpacked: Path, mini: Series) -> None:
    made = commands.create(patches, unpacked)
    assert made.folder == patches / "sglang-0.5.99"
    assert {p.name: p.read_bytes() for p in made.folder.iterdir()} == series_files(mini)
    before = snapshot(patches)
    assert commands.create(patches, unpacked).unchanged
    assert snapshot(patches) == before


def test_create_replaces_an_earlier_series_but_no_other_files(patches: Path, unpacked: Path, tmp_path: Path) -> None:
    made = commands.create(patches, unpacked)
    (made.folder / "0007-old-name.patch").write_bytes(b"of an earlier recipe")
    assert not (commands.create(patches, unpacked).folder / "0007-old-name.patch").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "0001-mine.patch").write_bytes(b"precious")
    with pytest.raises(Refused, match=r"0001-mine\.patch"):
        commands.create(patches, unpacked, other)
    assert [p.name for p in other.iterdir()] == ["0001-mine.patch"]


def test_create_from_a_changed_tree_is_refused(patches: Path, unpacked: Path) -> None:
    (unpacked / "sglang/__init__.py").write_bytes(minisglang.FILES["__init__.py"] + b"# local\n")
    with pytest.raises(Refused, match="RECORD"):
        commands.create(patches, unpacked)
    assert [p.name for p in patches.iterdir()] == ["recipe.yaml"]


def test_create_from_something_else(patches: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="this is no SGLang"):
        commands.create(patches, tmp_path / "empty")


def test_check_with_and_without_the_tree(mini_folder: Path, unpacked: Path) -> None:
    (alone,) = commands.check(mini_folder.parent)
    assert (alone.state, alone.reproduced, alone.problems) == ("ok", False, ())
    (against,) = commands.check(mini_folder.parent, source=unpacked)
    assert (against.state, against.reproduced) == ("ok", True)


def test_check_notices_a_recipe_that_moved_on(mini_folder: Path, unpacked: Path) -> None:
    recipe = mini_folder.parent / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("hook.create_worker(server_args)", "hook.make_worker(server_args)"))
    for source in (None, unpacked):
        (checked,) = commands.check(mini_folder.parent, source=source)
        assert checked.state == "stale"
        assert checked.problems


def test_check_of_a_damaged_series(mini_folder: Path) -> None:
    path = mini_folder / "0002-runner-capture-tree-verify.patch"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(PatchDamaged) as caught:
        commands.check(mini_folder.parent)
    assert caught.value.exit_code == 4


def test_show_and_unknown_release(mini_folder: Path) -> None:
    (shown,) = commands.show(mini_folder.parent, "0.5.99")
    assert shown.text.count("diff --git") == 3
    with pytest.raises(ConfigError, match=r"no series for 0\.5\.1") as caught:
        commands.show(mini_folder.parent, "0.5.1")
    assert "0.5.99" in caught.value.why


def test_export_with_payload_is_the_whole_change(recipe: Recipe, mini_folder: Path, tmp_path: Path) -> None:
    """Patches and payload through ``git am``: the tree that a deploy makes, byte for byte."""
    out = commands.export(mini_folder.parent, "0.5.99", tmp_path / "out", with_payload=True)
    assert [p.name for p in out.patches][-1] == "0004-ddtree-payload.patch"
    repo = repository(tmp_path / "repo", minisglang.FILES)
    git(repo, "am", "-q", *map(str, out.patches))
    payload = load_payload(recipe)
    plan = plan_patch(recipe, commands.find(mini_folder.parent, "0.5.99")[0], minisglang.FILES)
    expected = {**minisglang.FILES, **{c.path: c.after_bytes for c in plan.changes}, **payload.placed()}
    root = repo / "python/sglang"
    found = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert found == expected


def test_export_leaves_other_files_alone(mini_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(Refused, match=r"notes\.txt"):
        commands.export(mini_folder.parent, "0.5.99", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_committed_series_are_whole_and_current() -> None:
    """What ships: every series reads, fits the recipe, and is small."""
    assert {"0.5.13.post1", "0.5.20"} <= set(RELEASES)
    for checked in commands.check(PATCHES):
        assert checked.state == "ok", checked.problems
        assert 20 <= sum(patch.insertions for patch in checked.series.meta.patches) <= 35
