"""Full disks, read-only disks, foreign disks: refused before any change where that can be seen, else undone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddtree_ops.host import preflight

from .material import Driver, Environment, derive_and_install, digest, strict_manifest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
Mount = Callable[[str, int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Small file systems in memory: ``mount(name, kibibytes)``."""
    made: list[Path] = []

    def add(name: str, kibibytes: int) -> Path:
        path = tmp_path / name
        path.mkdir()
        options = f"size={kibibytes}k,mode=755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "ddtree-test", str(path)], check=True)
        made.append(path)
        return path

    yield add
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Space that was there at the check and is gone now: somebody else writes, too."""
    monkeypatch.setattr(preflight, "space", lambda *args: None)


def _filled(folder: Path, leave: int) -> Path:
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    path = folder / "ballast-of-somebody"
    path.write_bytes(b"\0" * max(0, free - leave))
    return path


def test_too_little_space_is_refused_before_any_change(environment: Environment, mount: Mount, tmp_path: Path) -> None:
    disk = mount("small", 2048)
    driver = Driver(disk / "state", {"environment": str(environment.prefix)})
    before = strict_manifest(tmp_path)
    error = driver.fails("begin", need_bytes=50 << 20)
    assert (error.code, error.exit, error.details["needed"]) == ("no_space", 4, 50 << 20)
    assert strict_manifest(tmp_path) == before


def test_the_tree_does_not_fit_and_is_undone(environment: Environment, mount: Mount) -> None:
    disk = mount("small", 2048)
    driver = Driver(disk / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    request = {"release_id": "r", "package_dir": str(environment.package)}
    assert driver.fails("do", "derive_tree", **request).code == "no_space"
    assert driver.abort()["root"] == root


@pytest.mark.parametrize("leave", [0, 4096, 40_000, 120_000])
def test_the_disk_fills_up_while_the_tree_is_copied(
    environment: Environment, mount: Mount, unchecked: None, leave: int
) -> None:
    """The way back needs a few bytes, too: they were set aside."""
    (environment.package / "big.bin").write_bytes(os.urandom(200_000))
    disk = mount("small", 4096)
    driver = Driver(disk / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    theirs = _filled(disk, leave)
    with pytest.raises(OSError, match="No space"):
        derive_and_install(driver, environment)
    result = driver.abort()
    assert result["root"] == root
    theirs.unlink()
    known = driver.call("deployment", state_root=str(driver.state_root))
    assert (known["interrupted"], known["runs"][-1]["state"]) == (None, "undone")
    assert not list((driver.state_root / "releases").glob("*"))


@pytest.mark.parametrize("leave", [0, 8192, 24_576])
def test_the_environments_disk_fills_up_during_the_install(mount: Mount, unchecked: None, leave: int) -> None:
    disk = mount("envdisk", 4096)
    environment = Environment(disk / "env").install()
    driver = Driver(disk / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(environment.package))
    theirs = _filled(disk, leave)
    with pytest.raises(OSError, match="No space"):
        driver.do("install_editable", python=str(environment.python), tree=tree["tree"], installer="self")
    assert driver.abort()["root"] == root
    theirs.unlink()
    assert driver.call("deployment", state_root=str(driver.state_root))["interrupted"] is None


def test_a_read_only_disk_is_refused_before_any_change(environment: Environment, mount: Mount, tmp_path: Path) -> None:
    disk = mount("ro", 1024)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    driver = Driver(disk / "state", {"environment": str(environment.prefix)})
    before = strict_manifest(tmp_path)
    error = driver.fails("begin")
    assert (error.code, error.exit, error.where) == ("read_only", 4, str(disk / "state"))
    elsewhere = Driver(tmp_path / "state", driver.scope)
    error = elsewhere.fails("begin", writes=[str(disk / "env/lib")])
    assert (error.code, error.where) == ("read_only", str(disk / "env/lib"))
    assert strict_manifest(tmp_path) == before


def test_a_disk_that_turns_read_only_in_the_middle_is_told_and_recovered(mount: Mount, tmp_path: Path) -> None:
    """ext4 remounts itself read-only on errors; when it is writable again, recover finishes."""
    disk = mount("flaky", 8192)
    environment = Environment(disk / "env").install()
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    derive_and_install(driver, environment)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    error = driver.fails("abort")
    assert (error.code, error.exit) == ("rollback_failed", 7)
    assert "Read-only" in error.details["errors"][0]["error"]
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert driver.back("recover")["root"] == root


def test_an_account_that_may_not_write_is_refused_before_any_change(tmp_path: Path, environment: Environment) -> None:
    (tmp_path / "closed").mkdir(mode=0o755)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        driver = Driver(tmp_path / "closed/state", {})
        try:
            error = driver.fails("begin")
            os.write(writer, f"{error.code} {error.exit} {error.where}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    assert os.read(reader, 1000).decode() == f"permission 4 {tmp_path}/closed/state"
    os.close(reader)
    assert not (tmp_path / "closed/state").exists()


def test_writing_is_atomic_when_space_runs_out(mount: Mount, environment: Environment, tmp_path: Path) -> None:
    disk = mount("small", 1024)
    target = disk / "a.py"
    target.write_text("old\n")
    driver = Driver(tmp_path / "state", {"environment": str(disk)})
    driver.begin()
    text = "x" * 300_000
    files = [{"path": "a.py", "text": text, "sha256": digest(text), "before": digest("old\n")}]
    _filled(disk, 100_000)
    with pytest.raises(OSError, match="No space"):
        driver.do("write_files", root=str(disk), files=files)
    assert target.read_text() == "old\n"
    (disk / "ballast-of-somebody").unlink()
    assert driver.abort()["proven"]
    assert sorted(path.name for path in disk.iterdir()) == ["a.py"]


def test_on_an_overlay_files_of_lower_layers_are_copied_not_linked(
    environment: Environment, mount: Mount, tmp_path: Path
) -> None:
    """A link would copy each file up and flush it: half a minute for one SGLang in a container."""
    scratch = mount("scratch", 150_000)
    for name in ("upper", "work", "merged"):
        (scratch / name).mkdir()
    options = f"lowerdir={environment.prefix.parent},upperdir={scratch}/upper,workdir={scratch}/work"
    merged = scratch / "merged"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "ddtree-test", str(merged)], check=True)
    try:
        (merged / "state").mkdir()
        inside = Environment.__new__(Environment)
        inside.prefix, inside.python = merged / "env", merged / "env/bin/python"
        inside.site = merged / environment.site.relative_to(environment.prefix.parent)
        inside.package = inside.site / "sglang"
        driver = Driver(merged / "state", {"environment": str(inside.prefix)})
        root = driver.root()
        driver.begin()
        derive_and_install(driver, inside)
        store = next((driver.state_root / "snapshots").glob("*/environment-*"))
        assert {path.stat().st_nlink for path in store.rglob("*/*") if path.is_file()} == {1}
        assert driver.abort()["root"] == root
    finally:
        subprocess.run(["umount", "-l", str(merged)], check=True)
