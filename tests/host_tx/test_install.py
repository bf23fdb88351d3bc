"""The editable install: nothing but SGLang changes, nothing is left that hides the tree, and all of it comes back."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.host import installed, installers
from ddtree_ops.host.protocol import HostError

from .material import INFO, VERSION, Driver, Environment, derive_and_install, digest, measure, strict_manifest, write

WHERE = "import sglang, importlib.metadata as m; print(sglang.__file__, m.version('sglang'))"


@pytest.fixture(params=["self", "pip", "uv"])
def any_installer(request: pytest.FixtureRequest, tmp_path: Path, venv_with_pip: Path) -> tuple[Environment, str, str]:
    """The environment, the installer's name, and uv's path."""
    uv = _uv()
    if request.param == "uv" and not uv:
        if os.environ.get("REQUIRE_TESTHOST") == "1":
            pytest.fail("REQUIRE_TESTHOST=1, but uv is not installed (it is in the dev extra)")
        pytest.skip("uv is not installed")
    pip = venv_with_pip if request.param == "pip" else None
    prefix = tmp_path / ("the env" if request.param == "self" else "e")
    return Environment(prefix, pip).install(), request.param, uv


def _uv() -> str:
    """uv of this machine, or the one that the ``dev`` extra puts beside this Python."""
    beside = Path(sys.executable).with_name("uv")
    return installers.find_uv() or (str(beside) if beside.exists() else "")


def test_the_tree_is_imported_and_rollback_is_byte_for_byte(
    any_installer: tuple[Environment, str, str], tmp_path: Path
) -> None:
    environment, installer, uv = any_installer
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    strict, root = strict_manifest(environment.prefix), driver.root()
    before = driver.begin()["before"]
    assert before["root"] == root
    tree = derive_and_install(driver, environment, installer, uv=uv)
    assert tree["install"]["method"] == installer
    assert environment.ask(WHERE) == f"{tree['package_dir']}/__init__.py {VERSION}"
    assert subprocess.run([environment.prefix / "bin/sglang"], capture_output=True, text=True).stdout == "hello\n"
    assert not environment.package.exists()
    url = json.loads(next(environment.site.glob("sglang-*.dist-info/direct_url.json")).read_text())
    assert url["dir_info"] == {"editable": True}
    driver.do(
        "import_probe",
        python=str(environment.python),
        package_dir=tree["package_dir"],
        version=VERSION,
        files={"srt/speculative/ddtree/definition.py": digest("CANONICAL = 17\n")},
        constants=[{"path": "srt/speculative/ddtree/definition.py", "name": "CANONICAL", "equals": 17}],
        full="sglang.srt.speculative.spec_info",
    )
    driver.commit(release_id="x", tree=tree["tree"])
    assert driver.root() != root
    result = driver.back()
    assert (result["proven"], result["root"], driver.root()) == (True, root, root)
    after = strict_manifest(environment.prefix)
    odd = {path for path in set(strict) | set(after) if strict.get(path) != after.get(path)}
    # pip may have written its own bytecode when it ran; of folders only the two whose content came back keep their time
    assert not [path for path in odd if "__pycache__" not in path and not os.path.isdir(path)]
    assert environment.ask(WHERE).startswith(str(environment.package))


def test_a_second_install_does_nothing(driver: Driver, environment: Environment) -> None:
    driver.begin()
    tree = derive_and_install(driver, environment)
    before = strict_manifest(environment.prefix)
    again = driver.do("install_editable", python=str(environment.python), tree=tree["tree"])
    assert not again["changed"]
    assert strict_manifest(environment.prefix) == before


def test_files_of_ours_in_site_packages_cannot_hide_the_tree(tmp_path: Path, venv_with_pip: Path) -> None:
    """D1: pip removes what RECORD lists; one added file keeps the folder alive, and Python takes it as a namespace
    ahead of an import hook. pip exits 0, and SGLang is empty."""
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    write(environment.package, {"srt/ddtree_worker.py": "added in place\n"})
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    tree = derive_and_install(driver, environment, "pip")
    assert not environment.package.exists()
    assert [os.path.basename(path) for path in tree["install"]["leftovers"]] == ["sglang"]
    assert environment.ask(WHERE).startswith(tree["package_dir"])
    assert (Path(tree["package_dir"]) / "srt/ddtree_worker.py").read_text() == "added in place\n"
    driver.abort()
    assert driver.root() == root
    assert (environment.package / "srt/ddtree_worker.py").exists()


@pytest.mark.parametrize("installer", ["self", "auto"])
def test_leftovers_of_other_installs_go_and_come_back(tmp_path: Path, installer: str, venv_with_pip: Path) -> None:
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    write(environment.site, {"~glang/old.py": "x", "~glang-0.5.9.dist-info/METADATA": "Name: sglang\n"})
    write(environment.site, {"sglang-0.5.1.dist-info/METADATA": "Name: sglang\nVersion: 0.5.1\n"})
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    tree = driver.do(
        "derive_tree",
        release_id="r",
        package_dir=str(environment.package),
        dist_info=str(environment.site / INFO),
    )
    done = driver.do("install_editable", python=str(environment.python), tree=tree["tree"], installer=installer)
    assert done["method"] == "self"
    assert [path.name for path in environment.site.iterdir() if "glang" in path.name and path.is_dir()] == [INFO]
    driver.abort()
    assert driver.root() == root


def test_a_package_folder_that_is_a_link_stays_a_link(tmp_path: Path, venv_with_pip: Path) -> None:
    """pip would follow it and empty the folder that other environments share."""
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    shared = tmp_path / "shared"
    environment.package.rename(shared)
    environment.package.symlink_to(shared)
    before = strict_manifest(shared)
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix), "checkouts": [str(shared)]})
    root = driver.root()
    driver.begin()
    derive_and_install(driver, environment, "auto")
    assert not environment.package.is_symlink()
    assert strict_manifest(shared) == before
    driver.abort()
    assert driver.root() == root
    assert os.readlink(environment.package) == str(shared)


def test_hard_links_of_a_package_cache_are_untouched(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    """D5: uv links its cache into every environment."""
    cache = tmp_path / "cache"
    for path in [path for path in environment.package.rglob("*.py") if path.is_file()]:
        target = cache / path.relative_to(environment.package)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    before = {path: digest(path.read_bytes()) for path in cache.rglob("*.py")}
    driver.begin()
    derive_and_install(driver, environment)
    assert {path: digest(path.read_bytes()) for path in cache.rglob("*.py")} == before
    driver.abort()
    assert {path: digest(path.read_bytes()) for path in cache.rglob("*.py")} == before
    assert (environment.package / "__init__.py").samefile(cache / "__init__.py")


def test_neighbours_with_similar_names_are_not_sglang() -> None:
    ours = (
        "sglang",
        "sglang-0.5.dist-info",
        "__editable__.sglang-0.5.pth",
        "__editable___sglang_0_5_finder.py",
        "~glang",
    )
    theirs = ("sglang_router", "sglang_kernel-1.dist-info", "__editable__.sglang_router-1.pth", "sglangs", "~orch", "~")
    assert [name for name in (*ours, *theirs) if installed.belongs(name)] == list(ours)


def test_a_neighbours_editable_install_survives(driver: Driver, environment: Environment) -> None:
    write(environment.site, {"__editable__.sglang_router-1.pth": "/opt/router\n"})
    driver.begin()
    derive_and_install(driver, environment)
    assert (environment.site / "__editable__.sglang_router-1.pth").exists()


def test_the_develop_installs_of_others_survive(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    """``easy-install.pth`` is one file for all packages that were installed with ``setup.py develop``."""
    wheel = Environment(tmp_path / "wheel").install()
    develop = Environment(tmp_path / "develop")
    lines = "/opt/other\n/opt/sglang/python\n/opt/third\n"
    write(develop.site, {"sglang.egg-link": "/opt/sglang/python\n../", "easy-install.pth": lines})
    driver.scope = {"environment": str(develop.prefix)}
    root = driver.root()
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(wheel.package))
    done = driver.do("install_editable", python=str(develop.python), tree=tree["tree"])
    assert done["method"] == "self"
    assert (develop.site / "easy-install.pth").read_text() == "/opt/other\n/opt/third\n"
    assert not (develop.site / "sglang.egg-link").exists()
    assert driver.abort()["root"] == root


def test_an_installer_that_changes_something_else_is_undone(
    driver: Driver, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: a reinstall that pulls pins over hand-picked kernels must not pass as a success."""
    write(environment.site, {"sgl_kernel/__init__.py": "BUILD = 'cu130'\n"})
    original = installers._METHODS["self"]

    def greedy(*args: object) -> object:
        done = original(*args)  # type: ignore[arg-type]
        write(environment.site, {"torch/version.py": "new\n", "torch-9.dist-info/METADATA": "Name: torch\n"})
        return done

    monkeypatch.setitem(installers._METHODS, "self", greedy)
    driver.begin()
    with pytest.raises(HostError) as caught:
        derive_and_install(driver, environment)
    assert caught.value.code == "foreign_change"
    assert any("torch" in path for path in caught.value.details["paths"])
    assert driver.fails("commit").code == "cannot_commit"
    # what is not SGLang's is not ours to delete: the way back says so instead of calling it a success
    error = driver.fails("abort")
    assert (error.code, error.exit) == ("rollback_failed", 7)
    assert all("torch" in path for path in error.details["differences"])


def test_a_system_python_is_refused(driver: Driver, environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    real = "/usr/bin/python3"
    managed = list(Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED"))
    if not managed or not os.path.exists(real):
        pytest.skip("this machine's Python is not managed by its distribution")
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(environment.package))
    error = driver.fails("do", "install_editable", python=real, tree=tree["tree"])
    assert (error.code, error.exit) == ("externally_managed", 4)
    driver.abort()


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_installer_that_is_not_there_is_named(
    driver: Driver, environment: Environment, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installers, "find_uv", lambda: "")
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(environment.package))
    request = {"python": str(environment.python), "tree": tree["tree"], "installer": installer}
    assert driver.fails("do", "install_editable", **request).code == "no_installer"


def test_pips_own_words_are_passed_on_and_its_failure_is_undone(tmp_path: Path, venv_with_pip: Path) -> None:
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    driver.begin()
    tree = driver.do("derive_tree", release_id="r", package_dir=str(environment.package))
    (Path(tree["tree"]) / "ddtree_backend.py").write_text("raise RuntimeError('no such luck')\n")
    error = driver.fails("do", "install_editable", python=str(environment.python), tree=tree["tree"], installer="pip")
    assert error.code == "install_failed"
    assert "no such luck" in error.details["output"]
    assert driver.abort()["root"] == root


def test_pip_ignores_the_operators_configuration(
    tmp_path: Path, venv_with_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``user = true`` or ``target =`` in a pip.conf would install somewhere else."""
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    write(environment.prefix, {"pip.conf": f"[install]\ntarget = {tmp_path}/elsewhere\n"})
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "true")
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    driver.begin()
    tree = derive_and_install(driver, environment, "pip")
    assert environment.ask(WHERE).startswith(tree["package_dir"])
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="ownership needs root")
def test_owners_and_modes_come_back(driver: Driver, environment: Environment) -> None:
    for path in environment.package.rglob("*"):
        os.chown(path, 1234, 4321, follow_symlinks=False)
    (environment.package / "cli").chmod(0o2750)
    root = driver.root()
    driver.begin()
    derive_and_install(driver, environment)
    driver.abort()
    status = (environment.package / "cli").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o2750)
    assert driver.root() == root


def test_paths_outside_ascii_and_with_blanks_work(tmp_path: Path) -> None:
    """The encoding of a ``.pth`` file depends on the Python that reads it and on the locale."""
    environment = Environment(tmp_path / "env").install()
    driver = Driver(tmp_path / "mon état", {"environment": str(environment.prefix)})
    driver.begin()
    tree = derive_and_install(driver, environment)
    for locale in ("C", "C.UTF-8"):
        shown = environment.ask("import sglang; print(ascii(sglang.__file__))", LC_ALL=locale)
        assert shown == ascii(f"{tree['package_dir']}/__init__.py")
    driver.abort()


def test_scripts_start_for_long_interpreter_paths(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 30) / "env with blank"
    environment = Environment(deep).install()
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    driver.begin()
    derive_and_install(driver, environment)
    shown = subprocess.run([environment.prefix / "bin/sglang"], capture_output=True, text=True, check=True)
    assert shown.stdout == "hello\n"
    driver.abort()


def test_a_snapshot_on_another_file_system_restores_by_copy(environment: Environment, tmp_path: Path) -> None:
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK) or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    state = shm / f"ddtree-test-{os.getpid()}"
    driver = Driver(state, {"environment": str(environment.prefix)})
    try:
        before = measure(environment.prefix)
        driver.begin()
        derive_and_install(driver, environment)
        assert driver.abort()["root"] == before.root
    finally:
        shutil.rmtree(state, ignore_errors=True)


def test_import_probe_says_what_comes_first(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    driver.begin()
    tree = derive_and_install(driver, environment)
    shadow = write(tmp_path / "old/sglang", {"__init__.py": "OLD = 1\n"}).parent
    request = {"python": str(environment.python), "package_dir": tree["package_dir"]}
    error = driver.fails("do", "import_probe", **request, env={"PYTHONPATH": str(shadow)})
    assert error.code == "wrong_import"
    assert str(shadow / "sglang/__init__.py") in error.message
    error = driver.fails("do", "import_probe", **request, cwd=str(shadow))
    assert error.details["seen"]["origin"] == str(shadow / "sglang/__init__.py")
    error = driver.fails("do", "import_probe", **request, files={"srt/speculative/spec_info.py": "0" * 64})
    assert "spec_info.py has other bytes" in error.message
    error = driver.fails("do", "import_probe", **request, version="9.9")
    assert "9.9" in error.message
    assert driver.do("import_probe", **request, cwd="/")["winner"] == str(Path(tree["package_dir"]).parent)


def test_import_probe_finds_stale_bytecode(driver: Driver, environment: Environment) -> None:
    driver.begin()
    tree = derive_and_install(driver, environment)
    path = Path(tree["package_dir"]) / "srt/speculative/spec_info.py"
    mtime = path.stat().st_mtime_ns
    code = "import sglang.srt.speculative.spec_info"
    subprocess.run([environment.python, "-c", code], check=True, cwd="/", env={"PATH": "/usr/bin:/bin"})
    path.write_text(path.read_text().replace("DDTREE", "DDTEER"))
    os.utime(path, ns=(mtime, mtime))
    request = {"python": str(environment.python), "package_dir": tree["package_dir"]}
    new = {"srt/speculative/spec_info.py": digest(path.read_bytes())}
    error = driver.fails("do", "import_probe", **request, files=new)
    assert "stale" in error.message
    driver.do("purge_bytecode", python=str(environment.python), files=[str(path)])
    driver.do("import_probe", **request, files=new)


def test_import_probe_finds_a_namespace_leftover(driver: Driver, environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "bare/sglang/srt").mkdir(parents=True)
    broken = Environment(tmp_path / "other")
    driver.begin()
    error = driver.fails(
        "do",
        "import_probe",
        python=str(broken.python),
        package_dir=str(environment.package),
        env={"PYTHONPATH": str(tmp_path / "bare")},
    )
    assert "namespace" in error.message


def test_compiled_bytecode_is_checked_by_hash(driver: Driver, environment: Environment) -> None:
    driver.begin()
    tree = derive_and_install(driver, environment)
    result = driver.do("compile_bytecode", python=str(environment.python), package_dir=tree["package_dir"])
    assert result["compiled"]
    path = Path(tree["package_dir"]) / "srt/speculative/spec_info.py"
    mtime = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("DDTREE", "DDTEER"))
    os.utime(path, ns=(mtime, mtime))
    ask = "import sglang.srt.speculative.spec_info as s; print(s.ALGORITHMS[-1])"
    assert environment.ask(ask) == "DDTEER"
