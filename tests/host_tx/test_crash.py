"""kill -9 at every point at which a run changes the disk: the next run says so, ``recover`` undoes it and proves it.

The program is killed by an audit hook of its own at the n-th event that changes a file system (open for writing, link,
rename, remove, mkdir, chmod, ...), so the sweep covers every mutation without a hook in the program.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .material import Driver, Environment, close_open_transaction, derive_and_install

_CHANGES = {
    "os.rename",
    "os.remove",
    "os.link",
    "os.symlink",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.utime",
    "subprocess.Popen",
}
_FULL = os.environ.get("DDTREE_TEST_SWEEP") == "full"
_POINTS = 10_000 if _FULL else 45


def _counts(event: str, args: tuple[object, ...]) -> bool:
    if event == "open":
        flags = args[2]
        return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    return event in _CHANGES


def _in_child(work: Callable[[], None], kill_at: int | None) -> tuple[bool, int]:
    """Run ``work`` in a forked child that is killed at its n-th change; (killed, number of changes seen)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        seen = 0

        def hook(event: str, args: tuple[object, ...]) -> None:
            nonlocal seen
            if _counts(event, args):
                seen += 1
                if seen == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
            os.write(writer, str(seen).encode())
            os._exit(0)
        except BaseException as error:
            os.write(writer, f"! {type(error).__name__}: {error}".encode())
            os._exit(3)
    os.close(writer)
    text = os.read(reader, 1000).decode()
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True, 0
    assert os.WEXITSTATUS(status) == 0, text
    return False, int(text)


def _points(total: int, wanted: int) -> list[int]:
    """Spread over the whole run, the first and the last ones included."""
    if total <= wanted:
        return list(range(1, total + 1))
    step = total / wanted
    return sorted({1, 2, 3, *(int(1 + index * step) for index in range(wanted)), total - 2, total - 1, total})


@pytest.fixture
def small(tmp_path: Path) -> tuple[Driver, Environment]:
    """A very small environment: the sweep runs it many times."""
    environment = Environment(tmp_path / "env")
    environment.install({"__init__.py": "", "srt/speculative/spec_info.py": "ALGORITHMS = ['DFLASH', 'EAGLE']\n"})
    return Driver(tmp_path / "state", {"environment": str(environment.prefix)}), environment


def _deploy(driver: Driver, environment: Environment, run_id: str) -> None:
    driver.begin(run_id)
    tree = derive_and_install(driver, environment)
    driver.commit(release_id="r", tree=tree["tree"])


def _leftovers(driver: Driver, environment: Environment) -> list[str]:
    found = [str(p) for p in environment.prefix.rglob("*.ddtree-ops")]
    releases = driver.state_root / "releases"
    return found + [str(p) for p in (releases.iterdir() if releases.exists() else ())]


def test_killed_anywhere_in_a_deploy_it_can_be_undone(
    small: tuple[Driver, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, environment = small
    monkeypatch.setattr("ddtree_ops.host.gitrun.find", lambda: "")
    root = driver.root()
    killed, total = _in_child(lambda: _deploy(driver, environment, "measure"), None)
    assert not killed
    assert total > 100
    assert driver.back()["root"] == root
    driver.back("purge", force=True)
    interrupted = 0
    points = _points(total, _POINTS)
    for number in points:
        run_id = f"kill-{number}"
        killed, _ = _in_child(lambda name=run_id: _deploy(driver, environment, name), number)  # type: ignore[misc]
        assert killed, f"point {number} of {total} was not reached"
        state = driver.call("deployment", state_root=str(driver.state_root))
        if state["interrupted"]:
            interrupted += 1
            assert driver.fails("begin", f"next-{number}").code == "interrupted"
            assert driver.back("recover")["proven"], f"point {number} of {total}"
        elif state["deployment"]:  # killed after the end was journaled: that run is whole
            assert state["runs"][-1]["state"] == "committed"
            driver.back()
        assert driver.root() == root, f"point {number} of {total}"
        driver.begin(f"again-{number}")  # the host can be worked on at once: no stale lock, no journal in the way
        driver.abort()
        driver.back("purge", force=True)
        assert _leftovers(driver, environment) == [], f"point {number} of {total}"
    assert interrupted > len(points) // 2


def test_killed_anywhere_in_the_way_back_it_can_be_finished(
    small: tuple[Driver, Environment], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, environment = small
    monkeypatch.setattr("ddtree_ops.host.gitrun.find", lambda: "")
    root = driver.root()
    _deploy(driver, environment, "first")
    killed, total = _in_child(lambda: _roll_back(driver), None)
    assert not killed
    driver.back("purge", force=True)
    for number in _points(total, _POINTS // 2):
        _deploy(driver, environment, f"run-{number}")
        killed, _ = _in_child(lambda: _roll_back(driver), number)
        assert killed
        state = driver.call("deployment", state_root=str(driver.state_root))
        if state["interrupted"]:
            # ... and killed again while recovering, a few steps further
            _in_child(lambda: _recover(driver), 7)
            close_open_transaction()
            driver.back("recover")
        elif state["deployment"]:  # before the first step of the way back
            driver.back()
        assert driver.root() == root, f"point {number} of {total}"
        driver.back("purge", force=True)


def _roll_back(driver: Driver) -> None:
    driver.back()


def _recover(driver: Driver) -> None:
    driver.back("recover")


@pytest.mark.slow
def test_killed_while_pip_works_neither_pip_nor_half_an_install_is_left(tmp_path: Path, venv_with_pip: Path) -> None:
    """A helper that dies must not leave a pip that goes on writing while ``recover`` restores."""
    environment = Environment(tmp_path / "e", venv_with_pip).install()
    driver = Driver(tmp_path / "state", {"environment": str(environment.prefix)})
    root = driver.root()
    caught = 0
    for number, delay in enumerate((0.0, 0.15, 0.3, 0.45, 0.6, 0.8, 1.0)):
        pid = os.fork()
        if pid == 0:
            try:
                driver.begin(f"kill-{number}")
                derive_and_install(driver, environment, "pip")
                os._exit(0)
            except BaseException:
                os._exit(3)
        while "-m\0pip" not in _command_lines(pid):
            time.sleep(0.01)
        time.sleep(delay)
        caught += bool(_command_lines(pid))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        driver.back("recover")
        assert driver.root() == root, f"after {delay} s"
        driver.back("purge", force=True)
    assert caught > 2


def _command_lines(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{child}/cmdline").read_text() for child in children)
