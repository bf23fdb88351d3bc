"""The real SGLang 0.5.13.post1 wheel, installed by a real pip: derive, commit, patch, editable install, way back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import layers

from .material import Driver, Environment, digest, strict_manifest

VERSION = "0.5.13.post1"
CONSTANT = "CANONICAL_ORDER = 'depth-first'\n"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """A virtual environment of Python 3.11 (what the wheel is for) with the wheel in it."""
    python = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if not python:
        if os.environ.get("REQUIRE_TESTHOST") == "1":
            pytest.fail("REQUIRE_TESTHOST=1, but there is no Python 3.11 for the wheel")
        pytest.skip("no Python 3.11 for the wheel")
    prefix = tmp_path_factory.mktemp("real") / "ml-env"
    subprocess.run([python, "-m", "venv", str(prefix)], check=True)
    pip = [str(prefix / "bin/python"), "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(layers.wheel_file(VERSION))], check=True, env=layers.ORIGINAL_ENV)
    made = Environment.__new__(Environment)
    made.prefix, made.python = prefix, prefix / "bin/python"
    made.site = next(prefix.glob("lib/python3*/site-packages"))
    made.package = made.site / "sglang"
    yield made
    shutil.rmtree(prefix)


def test_deploy_and_rollback(real: Environment, tmp_path: Path) -> None:
    driver = Driver(tmp_path / "state", {"environment": str(real.prefix)})
    strict = strict_manifest(real.package, real.prefix / "bin")
    before = driver.begin(writes=[str(real.site), str(real.prefix / "bin")], need_bytes=200 << 20)["before"]
    tree = driver.do("derive_tree", release_id=f"{VERSION}-test", package_dir=str(real.package), release=VERSION)
    assert (tree["version"], tree["modified"], tree["unrecorded"], tree["missing"]) == (VERSION, [], [], [])
    _same_as_the_wheel(Path(tree["package_dir"]))
    driver.do("git_commit", release=tree["release"], message="pristine")
    driver.do("write_files", root=tree["package_dir"], files=_changes(Path(tree["package_dir"])))
    driver.do("git_commit", release=tree["release"], message="DDTREE")
    done = driver.do("install_editable", python=str(real.python), tree=tree["tree"])
    assert done["method"] == "pip"
    assert not real.package.exists()
    probed = driver.do(
        "import_probe",
        python=str(real.python),
        package_dir=tree["package_dir"],
        cwd="/root" if os.access("/root", os.X_OK) else "/",
        version=VERSION,
        files={"srt/speculative/ddtree/definition.py": digest(CONSTANT)},
        constants=[
            {"path": "srt/speculative/ddtree/definition.py", "name": "CANONICAL_ORDER", "equals": "depth-first"}
        ],
    )
    assert probed["origin"] == f"{tree['package_dir']}/__init__.py"
    listed = subprocess.run(
        [real.python, "-m", "pip", "list", "-v", "--disable-pip-version-check"], capture_output=True, text=True
    ).stdout
    assert any(VERSION in line and tree["tree"] in line for line in listed.splitlines())
    git = ["git", "-C", tree["release"], "diff", "--stat", "HEAD~1"]
    shown = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    assert "2 files changed" in shown
    driver.commit(release_id=f"{VERSION}-test", tree=tree["tree"])
    result = driver.back()
    assert result["root"] == before["root"] == driver.root()
    after = strict_manifest(real.package, real.prefix / "bin")
    assert {path for path in strict if strict[path] != after.get(path)} <= {str(real.prefix / "bin")}
    driver.back("purge")
    assert not driver.state_root.exists()


def test_a_later_pip_install_of_the_wheel_works(real: Environment, tmp_path: Path) -> None:
    """What we leave behind is an ordinary editable install: the operator can replace it without us."""
    driver = Driver(tmp_path / "state", {"environment": str(real.prefix)})
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(real.package))
    driver.do("install_editable", python=str(real.python), tree=tree["tree"], installer="self")
    driver.commit(release_id="r", tree=tree["tree"])
    pip = [str(real.python), "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, str(layers.wheel_file(VERSION))], check=True, env=layers.ORIGINAL_ENV)
    assert not list(real.site.glob("__editable__*sglang*"))
    assert real.ask("import importlib.util as u; print(u.find_spec('sglang').origin)").startswith(str(real.package))
    error = driver.fails("back")
    assert error.code == "drifted"
    assert driver.back(force=True)["proven"]


def _same_as_the_wheel(package: Path) -> None:
    with zipfile.ZipFile(layers.wheel_file(VERSION)) as archive:
        names = [name for name in archive.namelist() if name.startswith("sglang/") and not name.endswith("/")]
        assert len(names) > 3000
        for name in names:
            assert (package / name[len("sglang/") :]).read_bytes() == archive.read(name), name
    assert len([path for path in package.rglob("*") if path.is_file()]) == len(names)


def _changes(package: Path) -> list[dict[str, object]]:
    path = "srt/speculative/spec_info.py"
    old = (package / path).read_text()
    new = old + "\n# DDTREE\n"
    definition = "srt/speculative/ddtree/definition.py"
    return [
        {"path": path, "text": new, "sha256": digest(new), "before": digest(old)},
        {"path": definition, "text": CONSTANT, "sha256": digest(CONSTANT), "before": ""},
    ]
