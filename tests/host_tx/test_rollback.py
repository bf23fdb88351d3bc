"""Rollback of finished runs: newest first, proven, and never over what others did since."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddtree_ops.host import journal, ops, roothash, tx

from .material import VERSION, Driver, Environment, derive_and_install, digest, strict_manifest, write


def _deploy(driver: Driver, environment: Environment) -> dict[str, object]:
    driver.begin()
    tree = derive_and_install(driver, environment)
    driver.commit(release_id=f"{VERSION}-abc", tree=tree["tree"], files={"a": "b"})
    return tree


def test_the_deployment_is_recorded_and_removed(driver: Driver, environment: Environment) -> None:
    root = driver.root()
    _deploy(driver, environment)
    known = driver.call("deployment", state_root=str(driver.state_root))
    assert known["deployment"]["run_id"] == "run-1"
    assert known["deployment"]["root_before"] == root
    assert known["deployment"]["scope"] == driver.scope
    assert (known["lock"], known["interrupted"]) == (None, None)
    assert driver.back()["deployment"] is None
    assert not (driver.state_root / "deployment.json").exists()
    assert [run["state"] for run in driver.call("deployment", state_root=str(driver.state_root))["runs"]] == ["undone"]


def test_nothing_to_roll_back_writes_nothing(driver: Driver) -> None:
    assert driver.back() == {"nothing": True}
    assert driver.back("recover") == {"nothing": True}
    assert not driver.state_root.exists()


def test_a_second_rollback_has_nothing_to_do(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    driver.back()
    before = strict_manifest(driver.state_root)
    assert driver.back() == {"nothing": True}
    assert strict_manifest(driver.state_root) == before


def test_the_tree_stays_with_its_owners_edits_until_purge(driver: Driver, environment: Environment) -> None:
    tree = _deploy(driver, environment)
    package = Path(str(tree["package_dir"]))
    edited = package / "srt/speculative/spec_info.py"
    edited.write_text("ALGORITHMS = ['MINE']\n")
    result = driver.back()
    assert any("kept until purge" in note for note in result["notes"])
    assert edited.read_text() == "ALGORITHMS = ['MINE']\n"
    assert (package / "srt/speculative/ddtree/definition.py").exists()


def test_changes_of_others_elsewhere_stay_and_are_named(
    driver: Driver, environment: Environment, tmp_path: Path
) -> None:
    """Weeks later the operator's checkout has moved on and another package is installed: that is no failed rollback."""
    checkout = write(tmp_path / "checkout", {"a.py": "1\n", ".git/index": "i"})
    driver.scope["checkouts"] = [str(checkout)]
    _deploy(driver, environment)
    write(checkout, {"a.py": "2\n", ".git/index": "j"})
    write(environment.site, {"other/__init__.py": "", "other-1.dist-info/METADATA": "Name: other\n"})
    result = driver.back()
    assert result["proven"]
    assert str(checkout / "a.py") in result["foreign"]
    assert str(environment.site / "other/__init__.py") in result["foreign"]
    assert (checkout / "a.py").read_text() == "2\n"
    assert (environment.package / "__init__.py").exists()


def test_changes_of_others_on_our_paths_are_not_overwritten_unasked(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    write(environment.package, {"__init__.py": "VALUE = 'a newer wheel'\n"})
    before = strict_manifest(environment.prefix, driver.state_root)
    error = driver.fails("back")
    assert (error.code, error.exit) == ("drifted", 4)
    assert str(environment.package / "__init__.py") in error.details["paths"]
    after = strict_manifest(environment.prefix, driver.state_root)
    changed = {os.path.relpath(p, driver.state_root) for p in set(before) | set(after) if before.get(p) != after.get(p)}
    assert changed <= {".", "hashcache.json", "lock.guard"}
    assert driver.back(force=True)["proven"]
    assert (environment.package / "__init__.py").read_text() == "VALUE = 'wheel'\n"


def test_deployments_are_taken_back_newest_first(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    first = driver.root()
    driver.begin()
    text = "NEW = 1\n"
    driver.do("write_files", root=str(environment.site), files=[{"path": "n.py", "text": text, "sha256": digest(text)}])
    driver.commit(release_id="second")
    assert driver.fails("back", run_id="run-1").code == "not_current"
    assert driver.back()["deployment"]["run_id"] == "run-1"
    assert driver.root() == first
    assert driver.back()["deployment"] is None


def test_a_way_back_that_fails_names_paths_and_can_be_tried_again(
    driver: Driver, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = driver.root()
    _deploy(driver, environment)
    name = "restore_environment"
    original = ops.UNDOERS[name]

    def broken(work: ops.Work, data: ops.Params) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setitem(ops.UNDOERS, name, broken)
    error = driver.fails("back")
    assert (error.code, error.exit) == ("rollback_failed", 7)
    assert str(environment.package) in error.details["differences"]
    assert "Input/output error" in error.details["errors"][0]["error"]
    assert driver.fails("begin").code == "interrupted"
    monkeypatch.setitem(ops.UNDOERS, name, original)
    assert driver.back("recover")["root"] == root
    assert driver.back() == {"nothing": True}


def test_what_others_changed_during_a_run_ends_it_only_when_a_human_says_so(
    driver: Driver, environment: Environment
) -> None:
    """Without that, one file that somebody wrote at the wrong moment would lock the host for ever."""
    driver.begin()
    derive_and_install(driver, environment)
    write(environment.site, {"torch/version.py": "written by somebody meanwhile\n"})
    assert driver.fails("abort").code == "rollback_failed"
    assert driver.fails("back", "recover").code == "rollback_failed"
    assert driver.fails("begin").code == "interrupted"
    result = driver.back("recover", force=True)
    assert not result["proven"]
    assert set(result["accepted"]) == {str(environment.site / "torch"), str(environment.site / "torch/version.py")}
    driver.begin()
    driver.abort()
    assert (environment.site / "torch/version.py").exists()


def test_a_lost_snapshot_is_a_failed_rollback_not_a_success(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    stored = next(path for path in (driver.state_root / "snapshots").rglob("list.json") if "environment" in str(path))
    stored.write_text("[]")
    error = driver.fails("back")
    assert error.exit == 7
    assert error.details["different"] > 0


def test_refusals_leave_no_trace(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    before = strict_manifest(tmp_path)
    assert driver.fails("begin", need_bytes=1 << 60).code == "no_space"
    assert driver.fails("begin", need_files=1 << 60).code == "no_space"
    assert strict_manifest(tmp_path) == before


def test_an_open_run_of_another_process_is_refused_and_not_touched(driver: Driver, tmp_path: Path) -> None:
    driver.begin()
    other, tx._Open.tx = tx._Open.tx, None
    before = strict_manifest(tmp_path)
    for verb in ("begin", "back"):
        error = driver.fails(verb)
        assert (error.code, error.exit) == ("locked", 5)
    assert strict_manifest(tmp_path) == before
    tx._Open.tx = other
    driver.abort()


def test_purge_removes_everything_of_ours_and_nothing_else(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    assert driver.fails("back", "purge").code == "deployed"
    driver.back()
    write(driver.state_root, {"operators-note.txt": "keep\n"})
    result = driver.back("purge")
    assert (result["left"], result["freed"] > 0) == (["operators-note.txt"], True)
    assert os.listdir(driver.state_root) == ["operators-note.txt"]
    (driver.state_root / "operators-note.txt").unlink()
    driver.back("purge")
    assert not driver.state_root.exists()
    assert driver.back("purge")["nothing"]


def test_purge_spares_a_tree_in_which_somebody_worked(driver: Driver, environment: Environment) -> None:
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(environment.package))
    driver.do("git_commit", release=tree["release"], message="pristine")
    driver.commit(release_id="r")
    driver.back()
    write(Path(tree["package_dir"]), {"mine.py": "hours\n"})
    error = driver.fails("back", "purge")
    assert (error.code, error.details["trees"]) == ("edited", [tree["release"]])
    assert driver.back("purge", force=True)["left"] == []


def test_differences_to_a_run_are_named_by_path(driver: Driver, environment: Environment) -> None:
    _deploy(driver, environment)
    request = {"scope": driver.scope, "state_root": str(driver.state_root)}
    same = driver.call("root_hash", **request, against={"run_id": "run-1", "when": "after"})
    assert (same["different"], same["differences"]) == (0, {})
    since = driver.call("root_hash", **request, against={"run_id": "run-1", "when": "before"})
    assert since["differences"][str(environment.package)] == "is missing"


def test_the_journal_holds_no_file_content(driver: Driver, environment: Environment) -> None:
    """Secrets travel in parameters; a journal is read by more people than the secrets file."""
    driver.begin("r9")
    text = "TOKEN=hunter2\n"
    item = {"path": "secret.env", "text": text, "sha256": digest(text), "mode": 0o600}
    driver.do("write_files", root=str(environment.prefix), files=[item])
    driver.commit(release_id="x")
    raw = Path(journal.path_of(str(driver.state_root), "r9")).read_text()
    assert "hunter2" not in raw
    assert (environment.prefix / "secret.env").stat().st_mode & 0o777 == 0o600


def test_state_of_the_journal_folder_is_private(driver: Driver) -> None:
    driver.begin()
    modes = {name: os.stat(driver.state_root / name).st_mode & 0o777 for name in ("journal", "lock", "snapshots/run-1")}
    assert set(modes.values()) == {0o700}
    assert os.stat(driver.state_root / "journal/run-1.jsonl").st_mode & 0o777 == 0o600
    driver.abort()


def test_manifests_name_what_differs() -> None:
    old = roothash.Manifest({"p": {"/a": ["f", 0o644, 0, 0, 1, 1, "x"], "/b": ["d", 0o755, 0, 0]}})
    new = roothash.Manifest({"p": {"/a": ["f", 0o600, 0, 0, 1, 2, "y"], "/c": ["l", 0o777, 0, 0, "t"]}})
    assert roothash.differences(old, new) == {
        "/a": "mode, mtime, content differs",
        "/b": "is missing",
        "/c": "is new",
    }
