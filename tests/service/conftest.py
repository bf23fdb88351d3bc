"""A host with a stand-in server, and a conversation with the host program as the tool itself has it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.inventory import Host, SshOptions
from ddtree_ops.remote.connection import connect
from ddtree_ops.service.settings import ServiceSpec
from ddtree_ops.service.units import service_unit
from tests.hosts.lab import TestHost

FAKE = Path(__file__).parent / "fake" / "launch_server.py"
STATE = "/var/lib/ddtree-ops"


def inventory_host(host: TestHost, **more: Any) -> Host:
    """The inventory's view of a test host."""
    options = SshOptions(identity_files=(host.key,), known_hosts=(host.known_hosts,), agent=False)
    return Host(name=host.name, address=host.address, port=host.port, user=host.user, ssh=options, **more)


class Session:
    """One conversation: verbs, and operations inside a transaction."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.events: list[dict[str, Any]] = []

    def call(self, verb: str, **params: Any) -> dict[str, Any]:
        return self.link.call(verb, params, timeout=None, on_event=self.events.append)

    def do(self, op: str, **params: Any) -> dict[str, Any]:
        return self.call("tx_do", op=op, params=params)

    def begin(self, run: str = "run-1", **more: Any) -> dict[str, Any]:
        scope = {"unit_paths": ["/etc/systemd/system"], "units": ["sglang-ddtree.service", "old.service"]}
        return self.call(
            "tx_begin", run_id=run, **{"state_root": STATE, "who": "test", "message": "", "scope": scope, **more}
        )

    @property
    def texts(self) -> str:
        """All that was told on the way."""
        return repr(self.events)


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    """``session(testhost)``: an open conversation, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda host, **more: Session(stack.enter_context(connect(inventory_host(host, **more))))


def fake_spec(mode: str = "serve", **more: Any) -> ServiceSpec:
    """A service that runs the stand-in with the host's own Python."""
    environment = {"PYTHONPATH": "/opt/fake", "FAKE_MODE": mode, **more.pop("environment", {})}
    values: dict[str, Any] = {
        "interpreter": "/usr/bin/python3",
        "target": "/root/models/target",
        "drafter": "/root/models/draft",
        "budget": 16,
        "port": 31000,
        "environment": environment,
        "release_id": "0.5.20-test",
        "build_id": "b" * 64,
        "timeout_stop": 5,
        "tool_version": "0.1.0",
    }
    return ServiceSpec(**{**values, **more})


def put_fake(host: TestHost) -> None:
    """Install the stand-in on a host."""
    host.write("/opt/fake/sglang/__init__.py", "")
    host.write("/opt/fake/sglang/launch_server.py", FAKE.read_text())


@pytest.fixture
def fake_host(testhost: TestHost) -> TestHost:
    """A fresh host with the stand-in."""
    put_fake(testhost)
    return testhost


def install(spec: ServiceSpec, **more: Any) -> dict[str, Any]:
    """The parameters of ``unit_install`` for a spec."""
    unit = service_unit(spec)
    return {"service": spec.ref(), "text": unit.text, "cache_dir": spec.cache_dir, "user": spec.user, **more}
