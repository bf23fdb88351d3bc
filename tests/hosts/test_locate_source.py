"""`locate-source` where systemd runs servers: which unit serves from which environment, and takeover by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.badhosts import OTHER
from tests.hosts.lab import Lab, TestHost
from tests.hosts.tool import ddtree_ops

pytestmark = pytest.mark.host
MakeHost = Callable[..., TestHost]

_SITE = f"{OTHER}/lib/python3.11/site-packages/sglang"
#: Stands in for SGLang's server: a listening parent with a child that carries SGLang's title for its scheduler.
_LAUNCH = """import socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 30000))
subprocess.Popen(["sglang::scheduler", "-c", "import time; time.sleep(600)"], executable=sys.executable)
time.sleep(600)
"""


@pytest.fixture
def serving(lab: Lab, make_host: MakeHost) -> TestHost:
    """Two environments; a unit serves from the second. PrivateTmp makes a mount namespace, which is no container."""
    host = make_host(layers.wheel_layer(lab, "0.5.20"), layers.wheel_layer(lab, "0.5.13.post1", OTHER))
    host.write(f"{_SITE}/__init__.py", "")
    host.write(f"{_SITE}/launch_server.py", _LAUNCH)
    host.write(
        "/etc/systemd/system/llm.service",
        "[Service]\nPrivateTmp=yes\nWorkingDirectory=/srv\nEnvironment=SGLANG_API_KEY=s3cret\n"
        f"ExecStart={OTHER}/bin/python -m sglang.launch_server --port 30000 --model-path /m --api-key s3cret\n",
    )
    host.run("systemctl daemon-reload; systemctl start llm")
    host.run("for i in $(seq 100); do ss -Hltn sport = 30000 | grep -q . && exit 0; sleep 0.05; done; exit 1")
    return host


def test_the_unit_that_serves_decides(serving: TestHost, tmp_path: Path) -> None:
    """Socket -> process -> unit and environment; with no `environment` named, the one that serves is the service's."""
    serving.inventory(tmp_path / "inventory.yaml")
    with serving.unchanged():
        said = ddtree_ops("locate-source", "--json", cwd=tmp_path)
        named = ddtree_ops("locate-source", "--json", "--takeover", "llm.service", cwd=tmp_path)
    assert said.code == named.code == 0, said.err
    for found in (said.json["hosts"][0], named.json["hosts"][0]):
        (server,) = found["servers"]
        assert (server["unit"], server["port"], server["cwd"]) == ("llm.service", 30000, "/srv")
        assert server["interpreter"] == f"{OTHER}/bin/python"
        assert not server["foreign_namespace"]
        assert len(server["processes"]) == 2
        assert found["verdict"]["live"] == f"wheel@{OTHER}"
    assert "s3cret" not in said.out + named.out


def test_inventory_against_the_named_unit(serving: TestHost, tmp_path: Path) -> None:
    """The inventory says one environment, the unit to be replaced runs on another: refused, both named."""
    serving.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    with serving.unchanged():
        said = ddtree_ops("locate-source", "--takeover", "llm.service", cwd=tmp_path)
        absent = ddtree_ops("locate-source", "--takeover", "nonesuch", cwd=tmp_path)
    assert said.code == absent.code == 4
    for word in (layers.ENVIRONMENT, OTHER, "llm.service"):
        assert word in said.text
    assert "nonesuch" in absent.text
    assert "llm.service" in absent.text
