"""The root hash sees what a rollback must bring back, and nothing that Python does by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddtree_ops.host import hashing, roothash

from .material import Environment, measure, write


def _unit(scope_root: Path) -> roothash.Manifest:
    scope = {"units": ["sglang.service"], "unit_folders": [str(scope_root)]}
    return roothash.measure(scope, hashing.HashCache())


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.write_text("VALUE = 'other'\n"),
        lambda p: p.chmod(0o600),
        lambda p: os.utime(p, ns=(1, 1)),
        lambda p: (p.unlink(), p.symlink_to("/etc/hostname")),
        lambda p: p.with_name("new.py").touch(),
        lambda p: p.with_name("folder").mkdir(),
        lambda p: p.unlink(),
    ],
)
def test_every_kind_of_change_changes_the_root_and_is_named(environment: Environment, change: object) -> None:
    before = measure(environment.prefix)
    change(environment.package / "__init__.py")  # type: ignore[operator]
    after = measure(environment.prefix)
    assert before.root != after.root
    assert all(str(environment.package) in path for path in roothash.differences(before, after))


def test_bytecode_is_counted_and_left_out(environment: Environment) -> None:
    before = measure(environment.prefix)
    write(environment.package / "srt/__pycache__", {"x.cpython-311.pyc": b"1"})
    after = measure(environment.prefix)
    assert (after.root, after.bytecode) == (before.root, before.bytecode + 1)
    write(environment.package, {"sourceless.pyc": b"1"})  # imported as source is: content, not a cache
    assert measure(environment.prefix).root != before.root


def test_same_size_and_mtime_but_other_bytes_is_seen(environment: Environment) -> None:
    """A cache by size and mtime alone would call a restore of the wrong bytes a success."""
    path = environment.package / "__init__.py"
    os.utime(path, ns=(10**18, 10**18))
    cache = hashing.HashCache()
    scope = {"environment": str(environment.prefix)}
    before = roothash.measure(scope, cache)
    path.write_text("VALUE = 'WHEEL'\n")
    os.utime(path, ns=(10**18, 10**18))
    assert roothash.measure(scope, cache).root != before.root


def test_the_cache_saves_the_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_RACY_NS", -1)
    write(tmp_path / "d", {"a": b"1" * 100, "b": b"2"})
    cache = hashing.HashCache(str(tmp_path / "cache.json"))
    scope = {"environment": str(tmp_path / "d")}
    first, cold = roothash.timed(scope, cache)
    cache.save()
    second, warm = roothash.timed(scope, hashing.HashCache(str(tmp_path / "cache.json")))
    assert (cold["read_files"], cold["read_bytes"], warm["read_files"]) == (2, 101, 0)
    assert first.root == second.root


def test_units_are_files_drop_ins_and_enablement(tmp_path: Path) -> None:
    empty = _unit(tmp_path)
    write(tmp_path, {"sglang.service": "[Service]\n", "sglang.service.d/50.conf": "x", "other.service": "y"})
    written = _unit(tmp_path)
    (tmp_path / "multi-user.target.wants").mkdir()
    (tmp_path / "multi-user.target.wants/sglang.service").symlink_to("../sglang.service")
    (tmp_path / "alias.service").symlink_to(tmp_path / "sglang.service")
    enabled = _unit(tmp_path)
    assert len({empty.root, written.root, enabled.root}) == 3
    names = {os.path.relpath(path, tmp_path) for path in roothash.differences(written, enabled)}
    assert names == {"multi-user.target.wants/sglang.service", "alias.service"}
    write(tmp_path, {"other.service": "changed"})
    assert _unit(tmp_path).root == enabled.root


def test_a_list_survives_being_saved_with_any_path(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/d"
    os.mkdir(folder)
    with open(folder + b"/caf\xe9, x", "wb") as handle:
        handle.write(b"1")
    manifest = roothash.measure({"environment": os.fsdecode(folder)}, hashing.HashCache())
    manifest.save(str(tmp_path / "m.json.gz"))
    assert roothash.Manifest.load(str(tmp_path / "m.json.gz")).root == manifest.root


def test_huge_files_are_sampled_at_both_ends_and_between(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with path.open("wb") as handle:
        handle.truncate(hashing.HUGE + 1)
    size = path.stat().st_size
    seen = {hashing.fingerprint(str(path), size)}
    for offset in (0, (size - (1 << 20)) // 2 + 5, size - 1):
        with path.open("r+b") as handle:
            handle.seek(offset)
            handle.write(b"x")
        seen.add(hashing.fingerprint(str(path), size))
    assert len(seen) == 4
    assert all(digest.startswith("sampled:") for digest in seen)


def test_a_checkout_includes_its_git_folder(tmp_path: Path) -> None:
    write(tmp_path / "c", {".git/index": b"i", "a.py": b"a"})
    scope = {"checkouts": [str(tmp_path / "c")]}
    before = roothash.measure(scope, hashing.HashCache())
    write(tmp_path / "c", {".git/index": b"j"})
    after = roothash.measure(scope, hashing.HashCache())
    assert list(roothash.differences(before, after)) == [str(tmp_path / "c/.git/index")]
