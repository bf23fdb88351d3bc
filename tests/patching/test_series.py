"""Series: reproducible, whole or refused, and exactly what git makes of them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.errors import PatchDamaged, Refused
from ddtree_ops.patching import Recipe, Series, load_series, make_git_series, plan_patch
from ddtree_ops.patching.gitdiff import FileDiff, file_diff, hunks
from ddtree_ops.patching.gitpatch import parse
from ddtree_ops.patching.series import series_files
from ddtree_ops.patching.trees import content_hash, open_tree
from tests.patching import minisglang

FIRST = "0001-speculative-register-ddtree.patch"


def git(folder: Path, *args: str, data: bytes | None = None) -> bytes:
    """Run git in a repository of the test's own; the environment is already hermetic."""
    identity = ["-c", "user.name=operator", "-c", "user.email=operator@example.invalid", "-c", "core.autocrlf=false"]
    done = subprocess.run(["git", *identity, *args], cwd=folder, input=data, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def repository(folder: Path, files: dict[str, bytes], prefix: str = "python/sglang") -> Path:
    """A repository with these files of the package committed."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", ".")
    for path, data in files.items():
        target = folder / prefix / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "pristine")
    return folder


def test_same_recipe_and_tree_give_the_same_bytes(recipe: Recipe, mini: Series) -> None:
    again = make_git_series(recipe, minisglang.tree())
    assert series_files(again) == series_files(mini)


def test_written_and_read_series_is_the_same(mini: Series, mini_folder: Path) -> None:
    read = load_series(mini_folder)
    assert series_files(read) == series_files(mini)
    assert read.hash == mini.hash


def test_the_patch_is_small_and_only_inserts(mini: Series) -> None:
    assert sum(patch.insertions for patch in mini.meta.patches) <= 35
    for patch in mini.file_patches.values():
        for hunk in patch.hunks:
            rest = iter(hunk.new)
            assert all(line in rest for line in hunk.old)  # the old lines are a subsequence of the new ones


def test_git_am_makes_the_same_bytes(recipe: Recipe, mini: Series, mini_folder: Path, tmp_path: Path) -> None:
    """The exported series through ``git am`` equals the result in memory, byte for byte, and nothing else changes."""
    repo = repository(tmp_path / "repo", minisglang.FILES)
    git(repo, "am", "-q", *[str(mini_folder / name) for name in mini.patches])
    plan = plan_patch(recipe, mini, minisglang.FILES)
    expected = {**minisglang.FILES, **{change.path: change.after_bytes for change in plan.changes}}
    found = {p.relative_to(repo / "python/sglang").as_posix(): p.read_bytes() for p in repo.rglob("*.py")}
    assert found == expected
    assert git(repo, "log", "--format=%s", "-3").decode().splitlines()[::-1] == [
        "speculative: register DDTREE and dispatch to its hook",
        "runner: capture DDTREE's verify with its tree mask",
        "package: start the beacon when DDTREE_RUN_DIR is set",
    ]
    assert b"DDTREE verifies a draft tree" in git(repo, "log", "-1", "--format=%B", "HEAD~2")


def test_the_diff_of_a_plan_is_what_git_would_print(recipe: Recipe, mini: Series, tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo", minisglang.FILES)
    plan = plan_patch(recipe, mini, minisglang.FILES)
    git(repo, "apply", data=plan.diff.encode())
    for change in plan.changes:
        assert (repo / "python/sglang" / change.path).read_bytes() == change.after_bytes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a\nb\n", b"a\nb\nc"),
        (b"a\nb", b"a\nb\nc\n"),
        (b"a", b"a"),
        (None, b"new\n"),
        (None, b""),
        (b"x\r\ny\rz\n", b"x\r\ny\rz2\n"),
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"),
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\n2\nx\n3\n4\n5\n6\n7\ny\n8\n9\n"),
        (b"1\n2\n3\n4\n5\n6\n7\n8\n9\n", b"1\nx\n2\n3\n4\n5\n6\n7\n8\ny\n9\n"),
        ("café\n".encode(), "café\nthé\n".encode()),
        (b"\xff\xfe\n", b"\xff\xfe\n\xfd\n"),
    ],
)
def test_git_applies_every_diff_that_we_write(tmp_path: Path, before: bytes | None, after: bytes) -> None:
    repo = repository(tmp_path / "repo", {"seed.py": b"", **({"f.py": before} if before is not None else {})}, "")
    text = file_diff(FileDiff("f.py", before, after))
    if text:
        git(repo, "apply", "--index", data=text)
    assert (repo / "f.py").read_bytes() == after
    assert hunks(after, after) == b""


def cut_last_line(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def cut_in_a_hunk(data: bytes) -> bytes:
    """The last context line is gone, the signature is there: git --recount would accept it (field case B4)."""
    lines = data.splitlines(keepends=True)
    del lines[lines.index(b"-- \n") - 1]
    return b"".join(lines)


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "last line cut": (cut_last_line, "of .* bytes are missing"),
    "last context line cut": (cut_in_a_hunk, "bytes are missing"),
    "cut in the middle": (lambda data: data[: len(data) // 2], "missing"),
    "no final newline": (lambda data: data[:-1], "bytes are missing|no final newline"),
    "CRLF": (lambda data: data.replace(b"\n", b"\r\n"), "CRLF"),
    "one byte changed": (lambda data: data.replace(b"return True", b"return Tru3"), "content changed"),
    "appended": (lambda data: data + b"\n", "content changed"),
    "trailing blanks stripped": (lambda data: re.sub(rb"[ ]+\n", b"\n", data), "missing"),
    "empty": (lambda data: b"", "no final newline"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_patch_is_refused_before_anything(mini_folder: Path, kind: str) -> None:
    damage, why = DAMAGE[kind]
    path = mini_folder / FIRST
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PatchDamaged) as caught:
        load_series(mini_folder)
    assert caught.value.exit_code == 4
    assert str(path) in caught.value.where
    assert re.search(why, caught.value.why)
    assert caught.value.next_step


@pytest.mark.parametrize("kind", DAMAGE)
def whole(series: Series, name: str, data: bytes) -> bytes:
    """The patched file by a series with one patch replaced, the hash of the patch itself not looked at."""
    parse(name, data)
    patches = {**series.patches, name: data}
    return Series(series.meta, patches, series.prefix).result(minisglang.SPEC, minisglang.FILES[minisglang.SPEC])


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_shows_without_the_recorded_hash_too(mini: Series, kind: str) -> None:
    """Structure and signature alone find every cut; a changed byte then fails the recorded result."""
    assert whole(mini, FIRST, mini.patches[FIRST])
    with pytest.raises(PatchDamaged):
        whole(mini, FIRST, DAMAGE[kind][0](mini.patches[FIRST]))


def test_missing_and_extra_patches(mini_folder: Path) -> None:
    stranger = mini_folder / "0009-more.patch"
    stranger.write_bytes(b"")
    with pytest.raises(PatchDamaged, match=r"0009-more\.patch is not part of the series"):
        load_series(mini_folder)
    stranger.unlink()
    (mini_folder / FIRST).unlink()
    with pytest.raises(PatchDamaged, match="is missing"):
        load_series(mini_folder)


def test_changed_series_yaml(mini_folder: Path) -> None:
    meta = mini_folder / "series.yaml"
    text = meta.read_text()
    meta.write_text(text.replace("release: 0.5.99", "release: 0.5.98"))
    with pytest.raises(PatchDamaged, match=r"series\.yaml was changed"):
        load_series(mini_folder)
    meta.write_text(text.replace("release:", "relaese:"))
    with pytest.raises(PatchDamaged, match="relaese"):
        load_series(mini_folder)
    meta.unlink()
    with pytest.raises(PatchDamaged, match="cannot read the file"):
        load_series(mini_folder)


def test_result_only_from_its_own_base(mini: Series) -> None:
    with pytest.raises(PatchDamaged, match=r"is not the base of sglang-0\.5\.99"):
        mini.result(minisglang.SPEC, minisglang.FILES[minisglang.SPEC] + b"\n")


def test_a_hunk_never_slides(mini: Series) -> None:
    """``git apply`` and ``patch`` look for a hunk's place; we do not: one line more above is a refusal."""
    patch = mini.file_patches[minisglang.SPEC]
    with pytest.raises(PatchDamaged, match="does not fit"):
        patch.apply(b"\n" + minisglang.FILES[minisglang.SPEC])


def test_no_series_from_a_tree_that_is_not_pristine(recipe: Recipe) -> None:
    changed = minisglang.tree()
    files = {**minisglang.FILES, "__init__.py": b"x"}
    tree = dataclasses.replace(changed, read=files.get)  # the RECORD is still that of the pristine files
    with pytest.raises(Refused, match="is not what the wheel's RECORD says"):
        make_git_series(recipe, tree)


def test_content_hash_by_its_definition() -> None:
    files = {
        "b.py": "2" * 64,
        "a/é.py": "1" * 64,
        "_version.py": "3" * 64,
        "a/__pycache__/x.py": "4" * 64,
        "c.so": "5" * 64,
    }
    text = "a/é.py\0" + "1" * 64 + "\n" + "b.py\0" + "2" * 64 + "\n"
    assert content_hash(files) == hashlib.sha256(text.encode()).hexdigest()


def test_checkout_and_package_folder_have_the_same_content(tmp_path: Path) -> None:
    for root in (tmp_path / "checkout/python/sglang", tmp_path / "site/sglang"):
        for path, data in minisglang.FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
    (tmp_path / "checkout/python/sglang/_version.py").write_text("v = 1")
    hashes = {content_hash(open_tree(tmp_path / name).hashes()) for name in ("checkout", "site", "site/sglang")}
    assert hashes == {content_hash(minisglang.tree().hashes())}
