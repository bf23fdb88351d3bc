"""Strategy ``checkout``: our own repository on borrowed objects; the operator's is the same to the last mtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddtree_ops.host import gitrun

from .material import FILES, INFO, VERSION, Driver, Environment, digest, strict_manifest, write

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="no git")


def git(folder: Path, *words: str) -> str:
    """git as the operator."""
    argv = ["git", "-c", "user.name=op", "-c", "user.email=op@example.invalid", "-c", "protocol.file.allow=always"]
    done = subprocess.run([*argv, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository like SGLang's, dirty in every way: edited, staged, deleted, untracked, ignored, stashed."""
    folder = write(
        tmp_path / "sglang",
        {
            **{f"python/sglang/{path}": data for path, data in FILES.items()},
            "python/pyproject.toml": "[project]\nname = 'sglang'\n",
            "python/sglang/doomed.py": "x\n",
            ".gitignore": "__pycache__/\n*.so\n_version.py\n",
            "README.md": "SGLang\n",
            "docs/long.md": "docs\n",
        },
    )
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "release")
    write(folder, {"README.md": "stash me\n"})
    git(folder, "stash")
    package = folder / "python/sglang"
    write(package, {"srt/speculative/spec_info.py": "ALGORITHMS = ['DFLASH', 'MINE']\n", "new.py": "untracked\n"})
    write(package, {"srt/_core.so": b"\x7fELF", "_version.py": "__version__ = 'built'\n", "staged.py": "staged\n"})
    git(folder, "add", "python/sglang/staged.py")
    (package / "doomed.py").unlink()
    write(package / "__pycache__", {"x.pyc": b"1"})
    return folder


@pytest.fixture
def editable(tmp_path: Path, checkout: Path) -> tuple[Driver, Environment]:
    """An environment in which that checkout is installed editable, as setuptools does it."""
    environment = Environment(tmp_path / "env")
    info = f"{INFO}/METADATA"
    write(environment.site, {info: f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n"})
    pth = f"__editable__.sglang-{VERSION}.pth"
    write(environment.site, {pth: f"{checkout}/python\n", f"{INFO}/RECORD": f"{pth},,\n{info},,\n{INFO}/RECORD,,\n"})
    scope = {"environment": str(environment.prefix), "checkouts": [str(checkout)]}
    return Driver(tmp_path / "state", scope), environment


def _borrow(driver: Driver, environment: Environment, checkout: Path, **more: object) -> dict[str, object]:
    return driver.do(
        "borrow_checkout",
        release_id="r",
        toplevel=str(checkout),
        package_dir=str(checkout / "python/sglang"),
        python=str(environment.python),
        **more,
    )


def test_the_operators_repository_is_the_same_to_the_last_mtime(
    editable: tuple[Driver, Environment], checkout: Path
) -> None:
    driver, environment = editable
    before, root = strict_manifest(checkout), driver.root()
    index = git(checkout, "--no-optional-locks", "diff", "--cached")
    driver.begin()
    tree = _borrow(driver, environment, checkout, head=git(checkout, "rev-parse", "HEAD"))
    new = "ALGORITHMS = ['DFLASH', 'MINE', 'DDTREE']\n"
    files = [{"path": "srt/speculative/spec_info.py", "text": new, "sha256": digest(new)}]
    driver.do("write_files", root=tree["package_dir"], files=files)
    driver.do("git_commit", release=tree["release"], message="DDTREE")
    driver.do("install_editable", python=str(environment.python), tree=tree["tree"], installer="self")
    assert environment.ask("import sglang; print(sglang.__file__)") == f"{tree['package_dir']}/__init__.py"
    driver.commit(release_id="r")
    assert strict_manifest(checkout) == before
    driver.back()
    assert strict_manifest(checkout) == before
    assert driver.root() == root
    assert git(checkout, "--no-optional-locks", "diff", "--cached") == index
    assert environment.ask("import sglang; print(sglang.__file__)") == f"{checkout}/python/sglang/__init__.py"


def test_the_history_is_theirs_then_their_edits_then_ours(editable: tuple[Driver, Environment], checkout: Path) -> None:
    driver, environment = editable
    driver.begin()
    tree = _borrow(driver, environment, checkout)
    release, package = Path(str(tree["release"])), Path(str(tree["package_dir"]))
    assert tree["edits"] == [
        "D python/sglang/doomed.py",
        "A python/sglang/new.py",
        "M python/sglang/srt/speculative/spec_info.py",
        "A python/sglang/staged.py",
    ]
    assert tree["compiled"] == ["srt/_core.so"]
    assert (package / "srt/_core.so").read_bytes() == b"\x7fELF"
    assert (package / "_version.py").read_text() == "__version__ = 'built'\n"
    assert not (package / "doomed.py").exists()
    assert not list(package.rglob("__pycache__"))
    assert not (release / "docs").exists()
    assert git(release, "status", "--porcelain") == ""
    text = "x = 1\n"
    driver.do("write_files", root=str(package), files=[{"path": "ours.py", "text": text, "sha256": digest(text)}])
    driver.do("git_commit", release=str(release), message="DDTREE")
    subjects = git(release, "log", "--format=%s").splitlines()
    assert subjects == ["DDTREE", f"Uncommitted edits of {checkout}", "release"]
    assert git(release, "diff", "--name-only", "HEAD~1", "HEAD") == "python/sglang/ours.py"
    assert not list((release / ".git/objects").glob("pack/*.pack"))
    driver.abort()


@pytest.mark.parametrize("kind", ["worktree", "shared", "shallow", "submodule"])
def test_every_kind_of_checkout_is_borrowed(
    editable: tuple[Driver, Environment], checkout: Path, tmp_path: Path, kind: str
) -> None:
    driver, environment = editable
    other = tmp_path / "other"
    if kind == "worktree":
        git(checkout, "worktree", "add", "-q", "--detach", str(other))
    elif kind == "shared":
        git(tmp_path, "clone", "-q", "--shared", str(checkout), "middle")
        git(tmp_path, "clone", "-q", "--shared", "middle", str(other))
    elif kind == "shallow":
        git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
        git(tmp_path, "clone", "-q", "--depth", "1", f"file://{checkout}", str(other))
    else:
        outer = write(tmp_path / "outer", {"a": "a"})
        git(outer, "init", "-q")
        git(outer, "submodule", "add", "-q", str(checkout), "inner")
        other = outer / "inner"
    before = strict_manifest(other, checkout / ".git")
    driver.begin()
    tree = _borrow(driver, environment, other)
    assert git(Path(str(tree["release"])), "log", "--format=%s").splitlines()[-1] in ("release", "second")
    assert git(Path(str(tree["release"])), "status", "--porcelain") == ""
    driver.abort()
    assert strict_manifest(other, checkout / ".git") == before


@pytest.mark.skipif(os.geteuid() != 0, reason="ownership needs root")
def test_a_checkout_of_another_user_is_readable(editable: tuple[Driver, Environment], checkout: Path) -> None:
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 1234, 1234, follow_symlinks=False)
    driver, environment = editable
    driver.begin()
    assert _borrow(driver, environment, checkout)["head"]
    driver.abort()


def test_programs_named_by_the_repository_are_not_run(editable: tuple[Driver, Environment], checkout: Path) -> None:
    driver, environment = editable
    trap = f"touch {checkout.parent}/trapped; cat"
    for key in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge", "core.sshCommand"):
        git(checkout, "config", key, trap)
    write(checkout, {".git/info/attributes": "* filter=evil\n", ".git/hooks/post-checkout": f"#!/bin/sh\n{trap}\n"})
    (checkout / ".git/hooks/post-checkout").chmod(0o755)
    driver.begin()
    _borrow(driver, environment, checkout)
    assert not (checkout.parent / "trapped").exists()
    driver.abort()


def test_a_checkout_that_moved_is_refused(editable: tuple[Driver, Environment], checkout: Path) -> None:
    driver, environment = editable
    driver.begin()
    request = {"release_id": "r", "toplevel": str(checkout), "package_dir": str(checkout / "python/sglang")}
    error = driver.fails("do", "borrow_checkout", **request, python=str(environment.python), head="0" * 40)
    assert (error.code, error.exit) == ("host_moved", 5)
    driver.abort()


def test_without_git_the_strategy_is_refused(
    editable: tuple[Driver, Environment], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = editable
    monkeypatch.setattr(gitrun, "find", lambda: "")
    driver.begin()
    request = {"release_id": "r", "toplevel": str(checkout), "package_dir": str(checkout / "python/sglang")}
    assert driver.fails("do", "borrow_checkout", **request, dist_info="unused").code == "no_git"
    driver.abort()
