"""The process runner on this machine: real processes, no host needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.host import procrun, supervisor
from ddtree_ops.host.protocol import HostError

CHILDREN = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
print("up", flush=True)
time.sleep(60)
"""


class Made:
    """A process unit in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unit = procrun.ProcessUnit("x.service", str(folder / "services/x.json"))

    def write(self, code: str, **more: Any) -> None:
        config = {
            "schema": procrun.SCHEMA,
            "argv": [sys.executable, "-c", code],
            "environment": {"PATH": os.environ["PATH"]},
            "run_dir": str(self.folder / "run"),
            "log": str(self.folder / "services/x.log"),
            "timeout_stop": 3,
            "restart": {"delay": 0.1, "interval": 60, "burst": 3},
            **more,
        }
        (self.folder / "services").mkdir(exist_ok=True)
        (self.folder / "services/x.json").write_text(json.dumps(config))

    def until(self, ready: Any, seconds: float = 20.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            state = self.unit.state()
            if ready(state) or time.monotonic() > deadline:
                return state
            time.sleep(0.05)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    one = Made(tmp_path)
    yield one
    if one.unit.exists:
        one.unit.stop(timeout=20)


def alive(pid: int) -> bool:
    fields = supervisor.stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def test_a_stop_ends_every_descendant(made: Made):
    """Also a grandchild that left for a session of its own and was adopted."""
    made.write(CHILDREN)
    made.unit.start()
    state = made.until(lambda state: len(state["pids"]) == 3)
    assert (state["active"], len(state["pids"])) == ("active", 3)
    made.unit.stop()
    assert [pid for pid in state["pids"] if alive(pid)] == []
    assert made.unit.state()["active"] == "inactive"


def test_a_reused_pid_is_not_ours(made: Made):
    """E3: the recorded pid lives, but started at another time: it is not counted and not signalled."""
    made.write("import time; time.sleep(60)")
    decoy = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        (made.folder / "run").mkdir()
        report = {"active": "active", "pid": decoy.pid, "start_time": 1, "boot_id": supervisor.boot_id()}
        report |= {"child": decoy.pid, "child_start_time": 1, "sessions": {str(decoy.pid): 1}}
        (made.folder / "run" / supervisor.STATE).write_text(json.dumps(report))
        state = made.unit.state()
        assert (state["active"], state["pids"]) == ("failed", [])
        made.unit.stop()
        assert alive(decoy.pid)
    finally:
        decoy.kill()
        decoy.wait()


def test_another_boots_report_is_nothing(made: Made):
    """After a reboot the old report says nothing about the processes of now."""
    made.write("pass")
    (made.folder / "run").mkdir()
    report = {"active": "active", "pid": os.getpid(), "start_time": supervisor.start_time(os.getpid()), "boot_id": "x"}
    (made.folder / "run" / supervisor.STATE).write_text(json.dumps(report))
    assert made.unit.state()["active"] == "inactive"


def test_restarts_are_limited(made: Made):
    """E4: three starts, then it is left dead with its status."""
    made.write("import sys; sys.exit(3)")
    made.unit.start()
    state = made.until(lambda state: state["active"] == "failed")
    assert (state["active"], state["restarts"], state["exit_status"]) == ("failed", 2, 3)


def test_no_restart_while_a_deploy_watches(made: Made):
    """The first start may not loop; `restart_on` ends that."""
    made.write("import sys; sys.exit(3)")
    made.unit.start(restart=False)
    state = made.until(lambda state: state["active"] == "failed")
    assert state["restarts"] == 0
    assert made.unit.restart_on()
    assert not made.unit.restart_on()


def test_a_clean_end_is_not_a_failure(made: Made):
    """Exit status 0 is not restarted."""
    made.write("pass")
    made.unit.start()
    assert made.until(lambda state: state["active"] == "inactive")["active"] == "inactive"


def test_secrets_do_not_stay_on_disk(made: Made):
    """The whole environment is handed over in a 0600 file that the supervisor removes; the log is kept once."""
    (made.folder / "secret.env").write_text('TOKEN="canary"\n')
    made.write("import os; print('has it', bool(os.environ['TOKEN']))", secrets_file=str(made.folder / "secret.env"))
    made.unit.start()
    made.until(lambda state: state["active"] == "inactive")
    texts = [path.read_text() for path in made.folder.rglob("*") if path.is_file() and path.name != "secret.env"]
    assert any("has it True" in text for text in texts)
    assert not any("canary" in text for text in texts)
    made.unit.start()
    made.until(lambda state: state["active"] == "inactive")
    assert (made.folder / "services/x.log.1").exists()


def test_a_command_that_does_not_exist(made: Made):
    """The supervisor itself fails: `service_died` with what it said, and a later start works."""
    made.write("", argv=["/no/such/python"])
    with pytest.raises(HostError) as caught:
        made.unit.start()
    assert caught.value.code == "service_died"
    assert any("/no/such/python" in line for line in caught.value.details["log"])


def test_a_foreign_file_is_not_a_unit(made: Made):
    """The path exists, but we did not write it."""
    (made.folder / "services").mkdir()
    (made.folder / "services/x.json").write_text("{}")
    with pytest.raises(HostError) as caught:
        made.unit.config()
    assert caught.value.code == "no_unit"
    (made.folder / "services/x.json").unlink()
