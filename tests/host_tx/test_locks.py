"""One run at a time; a dead owner does not block for ever; nobody else's process is taken for the owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.host import durable, locks
from ddtree_ops.host.protocol import HostError


def test_a_living_owner_is_named(tmp_path: Path) -> None:
    locks.acquire(str(tmp_path), "r1", "ann@laptop", "deploy")
    with pytest.raises(HostError) as caught:
        locks.acquire(str(tmp_path), "r2", "bob@desk", "deploy")
    assert (caught.value.code, caught.value.exit) == ("locked", 5)
    assert "ann@laptop" in caught.value.message
    assert caught.value.details["owner"]["run_id"] == "r1"
    locks.release(str(tmp_path))
    assert locks.read(str(tmp_path)) is None


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    code = "import sys,os,signal\nfrom ddtree_ops.host import locks\nlocks.acquire(sys.argv[1],'r1','x','')\n"
    subprocess.run([sys.executable, "-c", code + "os.kill(os.getpid(), 9)", str(tmp_path)], check=False)
    owner = locks.read(str(tmp_path))
    assert owner is not None
    assert not owner["alive"]
    locks.acquire(str(tmp_path), "r2", "y", "")
    owner = locks.read(str(tmp_path))
    assert owner is not None
    assert owner["run_id"] == "r2"


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot_id": "another"}])
def test_a_process_that_only_has_the_owners_pid_is_not_the_owner(tmp_path: Path, change: dict[str, object]) -> None:
    owner = locks.acquire(str(tmp_path), "r1", "x", "")
    durable.replace_json(str(tmp_path / "lock/owner.json"), {**owner, **change})
    read = locks.read(str(tmp_path))
    assert read is not None
    assert not read["alive"]


def test_a_lock_folder_without_owner_is_no_lock(tmp_path: Path) -> None:
    """A crash can leave an empty folder of an older layout; it must not need a human."""
    (tmp_path / "lock").mkdir()
    locks.acquire(str(tmp_path), "r1", "x", "")
    locks.release(str(tmp_path))


def test_release_leaves_the_lock_of_another_process(tmp_path: Path) -> None:
    owner = locks.acquire(str(tmp_path), "r1", "x", "")
    durable.replace_json(str(tmp_path / "lock/owner.json"), {**owner, "pid": os.getppid()})
    locks.release(str(tmp_path))
    assert (tmp_path / "lock").is_dir()


def test_many_runs_at_once_one_wins(tmp_path: Path) -> None:
    code = (
        "import sys,time\nfrom ddtree_ops.host import locks\nfrom ddtree_ops.host.protocol import HostError\n"
        "try:\n    locks.acquire(sys.argv[1],sys.argv[2],'x','')\n    print('won',flush=True)\n    sys.stdin.read()\n"
        "except HostError as e:\n    print(e.code)\n"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), f"r{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    words = [child.stdout.readline().strip() for child in children if child.stdout]
    for child in children:
        child.communicate()
    assert sorted(words) == ["locked"] * 5 + ["won"]
