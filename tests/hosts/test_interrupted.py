"""A deploy cut in the middle leaves the old state, or a journal that says how to get there, never half of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hosts import layers
from tests.hosts.lab import SCRIPT, TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = pytest.mark.host
STATE = "/var/lib/ddtree-ops"
DEPLOY = ("deploy", "--no-service", "--yes")
# An operation that copies, one that commits, one that changes the environment itself.
MOMENTS = ("derive_tree", "git_commit", "install_editable")

_WAIT = """
until grep -qs '"{op}"' {state}/journal/*.jsonl; do sleep 0.002; done
sshd=$(cat /run/sshd.pid); sessions=$(pgrep -P $sshd | tr '\\n' ' ')
below() {{ for p in $(pgrep -P "$1" || true); do echo $p; below $p; done; }}
all=$(for s in $sessions; do echo $s; below $s; done)
"""
CUT = _WAIT + "for p in $all; do case $(cat /proc/$p/comm) in sshd) kill -9 $p;; esac; done"
KILL = _WAIT + "kill -9 $all"


def disk(host: TestHost) -> dict[str, Any]:
    """The host's disk without the tool's own state and byte code."""
    return {p: s for p, s in host.differs().items() if not p.startswith(STATE) and "__pycache__" not in p}


def deploy_with(host: TestHost, program: str, op: str, folder: Path) -> Said:
    """Run a deploy while ``program`` waits on the host for the operation ``op`` and strikes."""
    words = ["bash", str(SCRIPT), "in", host.name, "--", "sh", "-c", program.format(op=op, state=STATE)]
    striker = subprocess.Popen(words, env={**os.environ, "TESTHOST_NAME": host.lab.name})
    try:
        said = ddtree_ops(*DEPLOY, cwd=folder)
        assert striker.wait(30) == 0
    finally:
        striker.kill()
        striker.wait()
    return said


def settled(host: TestHost) -> None:
    """Wait until no helper process is left on the host."""
    host.run("for i in $(seq 300); do pgrep -f '^python3 -I' >/dev/null || exit 0; sleep 0.1; done; exit 1")


@pytest.fixture
def host(wheel_host: Callable[..., TestHost], tmp_path: Path) -> TestHost:
    made = wheel_host("0.5.20")
    made.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    return made


@pytest.mark.parametrize("op", MOMENTS)
def test_cut_connection_is_undone_by_the_host_alone(host: TestHost, op: str, tmp_path: Path) -> None:
    """The session dies, the helper lives: it undoes everything by itself, and the next deploy just works."""
    before = disk(host)
    said = deploy_with(host, CUT, op, tmp_path)
    assert said.code == 3, said.out + said.err
    assert "Traceback" not in said.text
    settled(host)
    assert disk(host) == before
    again = ddtree_ops(*DEPLOY, cwd=tmp_path)
    assert again.code == 0, again.out + again.err


@pytest.mark.parametrize("op", MOMENTS)
def test_killed_helper_leaves_a_journal_that_recover_undoes(host: TestHost, op: str, tmp_path: Path) -> None:
    """Session and helper are killed: the next run says what it found and stops, `recover` goes back, deploy goes on."""
    before = disk(host)
    said = deploy_with(host, KILL, op, tmp_path)
    assert said.code == 3, said.out + said.err
    for words in (DEPLOY, ("plan", "--no-service")):
        with host.unchanged():
            found = ddtree_ops(*words, cwd=tmp_path)
        assert found.code == 5, found.out + found.err
        assert "recover" in found.text
        assert op in found.text
    back = ddtree_ops("recover", "--yes", cwd=tmp_path)
    assert back.code == 0, back.out + back.err
    assert disk(host) == before
    again = ddtree_ops(*DEPLOY, cwd=tmp_path)
    assert again.code == 0, again.out + again.err


def test_power_cut_in_the_middle(host: TestHost, tmp_path: Path) -> None:
    """The machine goes down while the environment is being changed; after the next boot `recover` goes back."""
    before = disk(host)
    program = _WAIT + "kill -STOP $all; sync"
    words = ["bash", str(SCRIPT), "in", host.name, "--", "sh", "-c", program.format(op="install_editable", state=STATE)]
    command = [sys.executable, "-m", "ddtree_ops", *DEPLOY]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with run:
        subprocess.run(words, env={**os.environ, "TESTHOST_NAME": host.lab.name}, check=True, timeout=120)
        host.power("kill")
        run.send_signal(signal.SIGKILL)
    host.power("on")
    back = ddtree_ops("recover", "--yes", cwd=tmp_path)
    assert back.code == 0, back.out + back.err
    assert disk(host) == before


def test_interrupted_by_the_user_is_undone(host: TestHost, tmp_path: Path) -> None:
    """Ctrl-C in the middle unwinds cleanly: exit 130, the host as before."""
    before = disk(host)
    wait = _WAIT.format(op="git_commit", state=STATE)
    words = ["bash", str(SCRIPT), "in", host.name, "--", "sh", "-c", wait]
    command = [sys.executable, "-m", "ddtree_ops", *DEPLOY]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with run:
        subprocess.run(words, env={**os.environ, "TESTHOST_NAME": host.lab.name}, check=True, timeout=120)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 130, out + err
    assert "Traceback" not in err
    assert disk(host) == before
