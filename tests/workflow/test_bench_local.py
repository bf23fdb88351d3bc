"""A bench with ``transport: local`` and ``init: process``: a GPU machine that one sits on, without SSH and systemd."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.service.settings import ServiceSpec
from ddtree_ops.service.units import service_unit
from tests.hosts.tool import Said, ddtree_ops

pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]
FAKE = Path(__file__).parents[1] / "hosts" / "fake_arms" / "launch_server.py"
SHORT = ("--count", "2", "--max-tokens", "24", "--concurrency", "1,2", "--starts", "1", "--repeat", "1")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Machine:
    """This machine as a host: everything lies in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.log = folder / "starts.jsonl"
        package = folder / "fake" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "launch_server.py").write_text(FAKE.read_text())
        models = {name: folder / name for name in ("target", "draft")}
        for path in models.values():
            path.mkdir()
            (path / "config.json").write_text("{}")
        spec = ServiceSpec(
            interpreter=sys.executable,
            target=str(models["target"]),
            drafter=str(models["draft"]),
            init="process",
            budget=16,
            port=free_port(),
            environment={"PYTHONPATH": str(folder / "fake"), "FAKE_LOG": str(self.log), "FAKE_STEP_S": "0.005"},
            state_root=str(self.state),
            run_root=str(folder / "run"),
            release_id="0.5.20-test",
            build_id="b" * 64,
            python_version=(sys.version_info[0], sys.version_info[1]),
            timeout_stop=5,
        )
        unit = service_unit(spec)
        Path(unit.path).parent.mkdir(parents=True)
        Path(unit.path).write_text(unit.text)
        deployment: dict[str, Any] = {
            "run_id": "run-1", "release_id": spec.release_id, "build_id": spec.build_id, "strategy": "derive",
            "environment": spec.interpreter, "prefix": sys.prefix, "tree": "", "package_dir": "", "unit": spec.unit,
            "port": spec.port, "settings": msgspec.to_builtins(spec),
        }  # fmt: skip
        (self.state / "deployment.json").write_text(json.dumps(deployment))
        host = {
            "transport": "local", "init": "process", "state_root": str(self.state), "environment": sys.prefix,
            "service": {"port": spec.port, "readiness_timeout": 60},
        }  # fmt: skip
        (folder / "inventory.yaml").write_text(json.dumps({"default_host": "here", "hosts": {"here": host}}))

    def run(self, *words: object) -> Said:
        return ddtree_ops(*words, cwd=self.folder)

    @property
    def starts(self) -> list[str]:
        """The algorithms of the starts, oldest first."""
        flag = "--speculative-algorithm"
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [argv[argv.index(flag) + 1] if flag in argv else "AR" for argv in found]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    started = found.run("start", "--yes")
    assert started.code == 0, started.err
    yield found
    found.run("stop", "--yes")


def test_arms_on_the_machine_that_one_sits_on(machine: Machine) -> None:
    said = machine.run(
        "bench", "--yes", "--budget", "8,16,auto", "--warm-within", "0.9", *SHORT, "--out", "out", "--json"
    )
    assert said.code == 0, said.out[-2000:] + said.err[-2000:]
    assert machine.starts == ["DDTREE", "AR", "DFLASH", "DDTREE", "DDTREE"]
    assert sorted(path.name for path in (machine.state / "services").glob("*bench*")) == []
    assert not list((machine.folder / "run").glob("*bench*"))
    cells = said.json["hosts"][0]["summary"]["cells"]
    assert {cell["budget"] for cell in cells if cell["arm"] == "ddtree"} == {8, 16, "auto"}
    assert machine.run("status").code == 0
    again = machine.run("bench", "--yes", "--out", "out", *SHORT)
    assert again.code == 2
    assert "--resume out" in again.text
    assert len(machine.starts) == 5, "a folder that is taken must be told before anything stops"
