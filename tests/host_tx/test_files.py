"""Writes by compare-and-swap, each with its exact way back."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from ddtree_ops.host import durable

from .material import Driver, Environment, digest, strict_manifest, write


def _item(path: str, text: str, **more: object) -> dict[str, object]:
    return {"path": path, "text": text, "sha256": digest(text), **more}


def _begin(driver: Driver, folder: Path) -> Path:
    driver.scope = {"checkouts": [str(folder)]}
    driver.begin()
    return folder


def test_undo_brings_back_bytes_mode_owner_mtime_and_inode(driver: Driver, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {"a.py": "old\n", "keep.py": "k\n"})
    (folder / "a.py").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(folder / "a.py", 12, 34)
    before, inode = strict_manifest(folder), (folder / "a.py").stat().st_ino
    _begin(driver, folder)
    driver.do(
        "write_files",
        root=str(folder),
        files=[_item("a.py", "new\n", before=digest("old\n")), _item("deep/er/b.py", "b\n", before="")],
    )
    status = (folder / "a.py").stat()
    assert (folder / "a.py").read_text() == "new\n"
    assert oct(status.st_mode) == oct(0o100640)
    assert status.st_uid == (12 if os.geteuid() == 0 else os.geteuid())
    driver.abort()
    after = strict_manifest(folder)
    assert {k: v for k, v in after.items() if k != str(folder)} == {k: v for k, v in before.items() if k != str(folder)}
    assert (folder / "a.py").stat().st_ino == inode


def test_nothing_is_written_when_one_of_many_files_moved(driver: Driver, tmp_path: Path) -> None:
    folder = _begin(driver, write(tmp_path / "d", {"a.py": "a\n", "b.py": "edited\n"}))
    before = strict_manifest(folder)
    files = [_item("a.py", "A\n", before=digest("a\n")), _item("b.py", "B\n", before=digest("b\n"))]
    error = driver.fails("do", "write_files", root=str(folder), files=files)
    assert (error.code, error.exit) == ("changed_meanwhile", 5)
    assert error.where == str(folder / "b.py")
    assert strict_manifest(folder) == before


def test_a_second_run_writes_nothing(driver: Driver, tmp_path: Path) -> None:
    folder = _begin(driver, write(tmp_path / "d", {"a.py": "old\n"}))
    files = [_item("a.py", "new\n", before=digest("old\n"))]
    driver.do("write_files", root=str(folder), files=files)
    before = strict_manifest(folder)
    result = driver.do("write_files", root=str(folder), files=files)
    assert (result["written"], strict_manifest(folder)) == ([], before)


def test_other_names_of_a_file_keep_their_bytes(driver: Driver, tmp_path: Path) -> None:
    """uv links one cached file into many environments: writing through it would change them all."""
    folder = write(tmp_path / "d", {"a.py": "old\n"})
    os.link(folder / "a.py", tmp_path / "cache.py")
    _begin(driver, folder)
    driver.do("write_files", root=str(folder), files=[_item("a.py", "new\n", before=digest("old\n"))])
    assert (tmp_path / "cache.py").read_text() == "old\n"
    driver.abort()
    assert (folder / "a.py").samefile(tmp_path / "cache.py")


def test_a_link_that_leads_out_is_refused(driver: Driver, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"a.py": "theirs\n"})
    folder = write(tmp_path / "d", {"x.py": "x\n"})
    (folder / "sub").symlink_to(outside)
    (folder / "link.py").symlink_to(outside / "a.py")
    _begin(driver, folder)
    for path, code in (("sub/a.py", "outside"), ("../outside/a.py", "outside"), ("link.py", "bad_kind")):
        assert driver.fails("do", "write_files", root=str(folder), files=[_item(path, "ours\n")]).code == code
    assert (outside / "a.py").read_text() == "theirs\n"


def test_damaged_bytes_are_not_written(driver: Driver, tmp_path: Path) -> None:
    folder = _begin(driver, write(tmp_path / "d", {"a.py": "old\n"}))
    item = {"path": "a.py", "data": base64.b64encode(b"short").decode(), "sha256": digest("whole"), "before": None}
    assert driver.fails("do", "write_files", root=str(folder), files=[item]).code == "damaged"
    assert (folder / "a.py").read_text() == "old\n"


def test_removed_files_come_back_and_their_bytecode_goes(driver: Driver, environment: Environment) -> None:
    path = environment.package / "srt/speculative/spec_info.py"
    cache = next((path.parent / "__pycache__").glob("spec_info.*.pyc"))
    others = set((path.parent / "__pycache__").iterdir()) - {cache}
    driver.begin()
    item = {"path": "srt/speculative/spec_info.py", "before": digest(path.read_bytes())}
    result = driver.do("remove_files", root=str(environment.package), files=[item, {"path": "absent.py"}])
    assert (result["removed"], result["absent"]) == ([str(path)], [str(environment.package / "absent.py")])
    assert not cache.exists()
    assert set((path.parent / "__pycache__").iterdir()) == others
    assert driver.abort()["proven"]
    assert path.exists()


def test_stale_bytecode_cannot_survive_a_write_of_the_same_size_and_second(
    driver: Driver, environment: Environment
) -> None:
    """Python takes a .pyc for valid by size and whole-second mtime; the old code would run on."""
    path = environment.package / "srt/speculative/spec_info.py"
    ask = "import sglang.srt.speculative.spec_info as s; print(s.ALGORITHMS[0])"
    assert environment.ask(ask) == "DFLASH"
    mtime = path.stat().st_mtime_ns
    new = path.read_text().replace("DFLASH", "DDTREE")
    driver.begin()
    driver.do("write_files", root=str(environment.package), files=[_item(str(path), new)])
    os.utime(path, ns=(mtime, mtime))
    assert environment.ask(ask) == "DDTREE"
    driver.abort()
    assert environment.ask(ask) == "DFLASH"


def test_purge_bytecode_finds_caches_that_lie_elsewhere(driver: Driver, environment: Environment) -> None:
    prefix = environment.prefix.parent / "caches"
    code = "import sglang.srt.speculative.spec_info"
    env = {"PYTHONPYCACHEPREFIX": str(prefix)}
    os.system(f"cd / && PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX={prefix} {environment.python} -c '{code}'")
    caches = {path.name.split(".")[0]: path for path in prefix.rglob("*.pyc")}
    assert {"spec_info", "__init__"} <= set(caches)
    driver.begin()
    files = [str(environment.package / "srt/speculative/spec_info.py")]
    result = driver.do("purge_bytecode", python=str(environment.python), env=env, files=files)
    assert str(caches["spec_info"]) in result["removed"]
    assert not caches["spec_info"].exists()
    assert caches["__init__"].exists()


def test_a_write_that_was_cut_leaves_no_temporary_file(driver: Driver, tmp_path: Path, monkeypatch: object) -> None:
    folder = _begin(driver, write(tmp_path / "d", {"a.py": "old\n"}))
    original = durable.replace_bytes

    def cut(path: str, data: bytes, *rest: object, **more: object) -> None:
        if path.endswith("a.py"):
            Path(durable.temporary_name(path)).write_bytes(data[:1])
            raise OSError(5, "Input/output error", path)
        original(path, data, *rest, **more)  # type: ignore[arg-type]

    durable.replace_bytes = cut
    try:
        with pytest.raises(OSError, match="Input/output"):
            driver.do("write_files", root=str(folder), files=[_item("a.py", "new\n", before=digest("old\n"))])
    finally:
        durable.replace_bytes = original
    assert driver.abort()["proven"]
    assert [path.name for path in folder.iterdir()] == ["a.py"]


def test_a_failed_operation_forbids_the_commit(driver: Driver, tmp_path: Path) -> None:
    folder = _begin(driver, write(tmp_path / "d", {"a.py": "old\n"}))
    driver.fails("do", "write_files", root=str(folder), files=[_item("a.py", "new\n", before=digest("x"))])
    assert driver.fails("commit").code == "cannot_commit"
    assert driver.abort()["proven"]
