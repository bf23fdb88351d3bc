"""Running servers: from the listening socket to the process, its environment, unit and interpreter."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddtree_ops.host import procs, servers, units
from ddtree_ops.host.look import Look
from tests.host import material
from tests.host.material import Environment

pytestmark = pytest.mark.usefixtures("only_our_processes")

LAUNCH = """
import os, socket, subprocess, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
listener = socket.create_server(("127.0.0.1", port))
child = subprocess.Popen(["sglang::scheduler", "-c", "import time; time.sleep(60)"], executable=sys.executable)
print("ready", child.pid, flush=True)
time.sleep(60)
"""


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


Start = Callable[..., "tuple[subprocess.Popen[str], int, int]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(python, *flags, cwd=, env=)`` -> process, port, pid of its retitled child."""
    running: list[subprocess.Popen[str]] = []

    def begin(python: Path, *flags: str, cwd: Path, **variables: str) -> tuple[subprocess.Popen[str], int, int]:
        port = free_port()
        process = subprocess.Popen(
            [str(python), "-m", "sglang.launch_server", "--port", str(port), *flags],
            cwd=cwd,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["ready"]
        return process, port, int(words[1])

    yield begin
    for process in running:
        os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment whose SGLang can be started: it opens a port and has a retitled child."""
    files = {**material.package(), "__init__.py": "", "launch_server.py": LAUNCH}
    return Environment(tmp_path / "ml-env").with_wheel(files)


def test_server_leads_to_its_environment(environment: Environment, tmp_path: Path, start: Start) -> None:
    """Case A8: socket -> process -> interpreter as it was called (exe alone would name the base Python)."""
    process, port, child = start(
        environment.python,
        "--speculative-algorithm",
        "DFLASH",
        "--model-path",
        "/m",
        "--api-key",
        "s3cret",
        cwd=tmp_path,
    )
    facts = material.collect(tmp_path, port=port)
    (server,) = facts.servers
    assert (server.pid, server.port, server.address) == (process.pid, port, "127.0.0.1")
    assert server.interpreter == str(environment.python)
    assert server.exe == str(Path(sys.executable).resolve())
    assert (server.algorithm, server.model_path, server.cwd) == ("DFLASH", "/m", str(tmp_path))
    assert "s3cret" not in " ".join(server.args)
    assert child in server.processes
    assert abs(server.start_time - time.time()) < 60
    (owner,) = facts.ports
    assert (owner.port, owner.pid) == (port, process.pid)
    assert material.live(facts, "server").package_dir == str(environment.site / "sglang")
    assert f"process:{process.pid}" in facts.interpreters[0].sources


def test_server_that_imports_another_tree(environment: Environment, tmp_path: Path, start: Start) -> None:
    """Case A8: what runs is the tree on the server's PYTHONPATH, whatever its environment has installed."""
    other = material.write(
        tmp_path / "other/sglang", {**material.package("0.5.9"), "__init__.py": "", "launch_server.py": LAUNCH}
    )
    _, port, _ = start(environment.python, cwd=tmp_path, PYTHONPATH=str(other.parent))
    facts = material.collect(tmp_path, environment=environment.prefix, port=port)
    assert material.live(facts, "server").package_dir == str(other)
    assert material.live(facts, "service").package_dir == str(environment.site / "sglang")


def test_orphaned_scheduler_is_still_seen(environment: Environment, tmp_path: Path, start: Start) -> None:
    """Case E2: the main process was killed; its retitled child lives on and is reported with its interpreter."""
    process, _, child = start(environment.python, cwd=tmp_path, VIRTUAL_ENV=str(environment.prefix))
    deadline = time.monotonic() + 10
    while not procs.all_processes()[child].args and time.monotonic() < deadline:
        time.sleep(0.01)  # between fork and exec a process has no arguments yet
    orphan = procs.all_processes()[child]._replace(parent=1)
    variables = procs.environment_of(child)
    assert servers.is_server(orphan.args)
    exe = procs.link(child, "exe")
    assert servers.interpreter_of(child, orphan.args, exe, variables) == str(environment.python)
    assert process.poll() is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/e/bin/python -m sglang.launch_server --port 1", True),
        ("/e/bin/python3.11 -u -m sglang.launch_server", True),
        ("/e/bin/python3 /e/bin/sglang serve --model-path m", True),
        ("sglang::scheduler_TP0", True),
        ("sglang::detokenizer", True),
        ("python3 -m sglang serve", True),
        ("vim sglang/launch_server.py", False),
        ("python3 -m sglang.bench_serving --port 1", False),
        ("grep sglang::scheduler", False),
        ("python3 -m sglang_router.launch_router", False),
    ],
)
def test_command_lines_of_a_server(line: str, expected: bool) -> None:
    """Three shapes of the main process, retitled children, and what only mentions them."""
    assert servers.is_server(tuple(line.split())) is expected


def test_unit_by_cgroup() -> None:
    """Version 2 and nested paths; a login session and a user manager are no service."""
    assert procs.unit_of("/system.slice/sglang.service") == "sglang.service"
    assert procs.unit_of("/host/h1/system.slice/sglang.service/sub") == "sglang.service"
    assert procs.unit_of("/user.slice/user-0.slice/user@0.service/app.slice/my.service") == "my.service"
    assert procs.unit_of("/user.slice/user-0.slice/user@0.service/init.scope") == ""
    assert procs.unit_of("/user.slice/user-0.slice/session-3.scope") == ""


def test_containers_by_cgroup() -> None:
    """The marks that container runtimes leave in a cgroup path; a plain service has none."""
    me = os.getpid()
    assert procs.in_foreign_namespace(me, "/system.slice/docker-0123456789abcdef.scope")
    assert procs.in_foreign_namespace(me, "/kubepods/besteffort/pod1/0123")
    assert not procs.in_foreign_namespace(me, "/system.slice/sglang.service")


def test_unit_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuation lines, drop-ins that replace ExecStart, environment files; a secret in them is not reported."""
    environment_file = tmp_path / "sglang.env"
    environment_file.write_text("# comment\nPYTHONPATH=/opt/base\nHF_TOKEN=s3cret\n")
    folder = tmp_path / "systemd"
    material.write(
        folder,
        {
            "llm.service": '[Service]\nWorkingDirectory=/srv\nEnvironment=SGLANG_A=1 "SGLANG_B=x y"\n'
            f"EnvironmentFile=-{environment_file}\nExecStart=/e/bin/python -m sglang.launch_server \\\n  --port 1\n",
            "llm.service.d/10.conf": "[Service]\nExecStart=\n"
            "ExecStart=/f/bin/python -m sglang.launch_server --api-key k\n",
            "other.service": "[Service]\nExecStart=/bin/true\n# sglang\n",
        },
    )
    monkeypatch.setattr(units, "FOLDERS", (str(folder),))
    (unit,) = units.find(Look({}))
    assert unit["name"] == "llm.service"
    assert unit["exec_start"] == ["/f/bin/python", "-m", "sglang.launch_server", "--api-key", "***"]
    assert unit["environment"] == {"PYTHONPATH": "/opt/base", "SGLANG_A": "1", "SGLANG_B": "x y"}
    assert unit["working_directory"] == "/srv"


def test_server_in_another_pid_namespace(environment: Environment, tmp_path: Path) -> None:
    """Case A8: a server in a container is reported as such; the host's copy is not its copy, whatever its paths say."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine makes no pid namespaces for us")
    port = free_port()
    command = [str(environment.python), "-m", "sglang.launch_server", "--port", str(port)]
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
        (server,) = material.collect(tmp_path, port=port).servers
        assert server.foreign_namespace
        assert (server.port, server.interpreter, server.unit) == (port, "", "")
    finally:
        process.kill()
        process.communicate()
