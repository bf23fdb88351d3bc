"""The derived tree holds what is imported, every byte of it, and its repository shows exactly our change."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddtree_ops.host import gitrun

from .material import COMMA, FILES, INFO, VERSION, Driver, Environment, derive_and_install, digest, strict_manifest

RELEASE = f"{VERSION}-abc"


def _derive(driver: Driver, environment: Environment, **more: object) -> dict[str, object]:
    driver.begin()
    return driver.do("derive_tree", release_id=RELEASE, package_dir=str(environment.package), **more)


def test_bytes_modes_and_times_are_kept_and_bytecode_is_not(driver: Driver, environment: Environment) -> None:
    (environment.package / "cli/main.py").chmod(0o755)
    result = _derive(driver, environment)
    copy = Path(str(result["package_dir"]))
    for name in FILES:
        old, new = environment.package / name, copy / name
        assert new.read_bytes() == old.read_bytes()
        assert (new.stat().st_mode, new.stat().st_mtime_ns) == (old.stat().st_mode, old.stat().st_mtime_ns)
    assert not list(copy.rglob("__pycache__"))
    assert result["bytecode"]
    tree = Path(str(result["tree"]))
    assert (tree / "METADATA").read_bytes() == (environment.site / INFO / "METADATA").read_bytes()
    assert (tree / "entry_points.txt").read_bytes() == (environment.site / INFO / "entry_points.txt").read_bytes()


def test_record_tells_edits_additions_and_losses_apart(driver: Driver, environment: Environment) -> None:
    (environment.package / "srt/speculative/spec_info.py").write_text("edited by the operator\n")
    (environment.package / "srt/mine.py").write_text("added\n")
    (environment.package / "srt/tuned.json").write_text("{}")
    (environment.package / "srt/speculative/dflash_worker_v2.py").unlink()
    result = _derive(driver, environment)
    assert result["modified"] == ["srt/speculative/spec_info.py"]
    assert result["unrecorded"] == ["srt/mine.py", "srt/tuned.json"]
    assert result["missing"] == ["srt/speculative/dflash_worker_v2.py"]
    assert result["left_out"] == ["../../../bin/sglang", "tools/helper.py"]
    copy = Path(str(result["package_dir"]))
    assert (copy / "srt/mine.py").read_text() == "added\n"
    assert (copy / "srt/speculative/spec_info.py").read_text() == "edited by the operator\n"


def test_a_comma_in_a_path_does_not_make_it_unrecorded(driver: Driver, environment: Environment) -> None:
    """Splitting RECORD at commas loses SGLang's tuned kernel configurations."""
    result = _derive(driver, environment)
    assert COMMA in FILES
    assert (result["modified"], result["unrecorded"], result["missing"]) == ([], [], [])


def test_names_that_are_not_utf8_are_copied_and_restored(driver: Driver, environment: Environment) -> None:
    odd = os.fsencode(environment.package) + b"/caf\xe9.txt"
    with open(odd, "wb") as handle:
        handle.write(b"\xff\xfe")
    root = driver.root()
    driver.begin()
    tree = driver.do("derive_tree", release_id=RELEASE, package_dir=str(environment.package))
    copied = os.fsencode(tree["package_dir"]) + b"/caf\xe9.txt"
    with open(copied, "rb") as handle:
        assert handle.read() == b"\xff\xfe"
    driver.do("git_commit", release=tree["release"], message="pristine")
    driver.do("install_editable", python=str(environment.python), tree=tree["tree"], installer="self")
    assert not os.path.exists(odd)
    driver.abort()
    assert os.path.exists(odd)
    assert driver.root() == root


def test_links_do_not_lead_astray(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    outside = tmp_path / "shared.py"
    outside.write_text("SHARED = 1\n")
    (environment.package / "inside.py").symlink_to("__init__.py")
    (environment.package / "shared.py").symlink_to(outside)
    (environment.package / "data").symlink_to(tmp_path)
    copy = Path(str(_derive(driver, environment)["package_dir"]))
    assert os.readlink(copy / "inside.py") == "__init__.py"
    assert not (copy / "shared.py").is_symlink()
    assert (copy / "shared.py").read_text() == "SHARED = 1\n"
    assert os.readlink(copy / "data") == str(tmp_path)


def test_a_copy_that_moved_since_the_plan_is_refused(driver: Driver, environment: Environment) -> None:
    error = None
    driver.begin()
    for more in ({"content_hash": "0" * 64}, {"expected": {"srt/speculative/spec_info.py": digest("other")}}):
        error = driver.fails("do", "derive_tree", release_id=RELEASE, package_dir=str(environment.package), **more)
        assert (error.code, error.exit) == ("host_moved", 5)
    driver.abort()
    assert not list((driver.state_root / "releases").iterdir())


def test_an_aborted_run_leaves_no_tree(driver: Driver, environment: Environment) -> None:
    _derive(driver, environment)
    driver.abort()
    assert not list((driver.state_root / "releases").iterdir())
    assert not list((driver.state_root / "snapshots").iterdir())


def test_an_older_tree_of_the_same_release_is_set_aside_with_its_edits(
    driver: Driver, environment: Environment
) -> None:
    tree = _derive(driver, environment)
    driver.commit(release_id=RELEASE)
    driver.back()
    mine = Path(str(tree["package_dir"])) / "mine.py"
    mine.write_text("hours of work\n")
    _derive(driver, environment)
    assert not mine.exists()
    aside = driver.state_root / "releases" / f"{RELEASE}.was-run-2"
    assert (aside / "python/src/sglang/mine.py").read_text() == "hours of work\n"
    driver.abort()
    assert mine.read_text() == "hours of work\n"


def test_a_deployed_tree_is_reused_and_not_touched(driver: Driver, environment: Environment) -> None:
    driver.begin()
    tree = derive_and_install(driver, environment)
    driver.commit(release_id=RELEASE, tree=tree["tree"])
    before = strict_manifest(driver.state_root / "releases")
    again = (
        _derive(driver, environment, dist_info=str(environment.site / INFO)) if environment.package.exists() else None
    )
    assert again is None  # the package is gone from site-packages: the plan names the tree itself
    driver.begin("direct")
    result = driver.do("derive_tree", release_id=RELEASE, package_dir=tree["package_dir"], dist_info="unused")
    assert result["reused"]
    assert result["package_dir"] == tree["package_dir"]
    assert strict_manifest(driver.state_root / "releases") == before
    driver.abort()
    assert strict_manifest(driver.state_root / "releases") == before


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_git_shows_exactly_our_change(
    driver: Driver, environment: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hooks, templates, signing and attributes of the operator's configuration must not reach our commits."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    config = tmp_path / "home" / ".gitconfig"
    config.parent.mkdir()
    config.write_text(
        f"[core]\n\thooksPath = {hooks}\n\tautocrlf = true\n[commit]\n\tgpgSign = true\n"
        f"[init]\n\ttemplateDir = {hooks}\n"
    )
    monkeypatch.setenv("HOME", str(config.parent))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    (environment.package / "crlf.py").write_bytes(b"x = 1\r\n")
    (environment.package / ".gitignore").write_text("*.json\n")
    driver.begin()
    tree = driver.do("derive_tree", release_id=RELEASE, package_dir=str(environment.package))
    first = driver.do("git_commit", release=tree["release"], message="pristine")
    new = "ALGORITHMS = ['DDTREE']\n"
    files = [{"path": "srt/speculative/spec_info.py", "text": new, "sha256": digest(new)}]
    driver.do("write_files", root=tree["package_dir"], files=files)
    driver.do("git_commit", release=tree["release"], message="DDTREE")
    assert driver.do("git_commit", release=tree["release"], message="again")["commit"] == ""
    git = ["git", "-C", tree["release"]]
    log = subprocess.run([*git, "log", "--format=%s %ae"], capture_output=True, text=True, check=True).stdout
    assert log.splitlines() == ["DDTREE ddtree-ops@localhost", "pristine ddtree-ops@localhost"]
    names = subprocess.run([*git, "diff", "--name-only", first["commit"]], capture_output=True, text=True, check=True)
    assert names.stdout.split() == ["python/src/sglang/srt/speculative/spec_info.py"]
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == b""
    listed = subprocess.run([*git, "ls-files"], capture_output=True, text=True, check=True).stdout
    assert f"python/src/sglang/{COMMA}" in listed
    shown = subprocess.run([*git, "show", "HEAD:python/src/sglang/crlf.py"], capture_output=True, check=True).stdout
    assert shown == b"x = 1\r\n"
    assert not (tmp_path / "hook-ran").exists()


def test_without_git_the_tree_is_made_all_the_same(
    driver: Driver, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gitrun, "find", lambda: "")
    tree = _derive(driver, environment)
    result = driver.do("git_commit", release=tree["release"], message="pristine")
    assert result["skipped"] == "no git on the host"


def test_a_commit_in_a_kept_tree_is_taken_back(driver: Driver, environment: Environment) -> None:
    tree = _derive(driver, environment)
    first = driver.do("git_commit", release=tree["release"], message="pristine")["commit"]
    driver.commit(release_id=RELEASE, tree=tree["tree"])
    driver.begin()
    text = "x = 1\n"
    driver.do("write_files", root=tree["package_dir"], files=[{"path": "n.py", "text": text, "sha256": digest(text)}])
    assert driver.do("git_commit", release=tree["release"], message="more")["commit"] != first
    driver.abort()
    git = ["git", "-C", str(tree["release"])]
    assert (
        subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip() == first
    )
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == b""
