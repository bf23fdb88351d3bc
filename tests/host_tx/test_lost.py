"""The controller disappears in the middle: the host puts itself back, says why in the journal, and lets go of the lock.

The real program runs as a child process and is spoken to in frames, as over SSH.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.host import journal, locks
from ddtree_ops.host.protocol import Decoder, encode

from .material import Driver, Environment

NONCE = "0123456789abcdef"
CODE = f"""
import os, sys
from ddtree_ops.host import main
main.load(["tx"])
sys.exit(main.main(os.fdopen(os.dup(0), "rb"), {NONCE!r}, {{}}))
"""


class Helper:
    """The program on the host as a child, and the few calls of these tests."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        self._decoder = Decoder(NONCE)
        self._ready: list[dict[str, Any]] = []
        self._number = 0

    def send(self, verb: str, **params: Any) -> int:
        """Send a request; its number."""
        assert self.process.stdin
        self._number += 1
        self.process.stdin.write(encode({"id": self._number, "verb": verb, "params": params}, NONCE))
        self.process.stdin.flush()
        return self._number

    def call(self, verb: str, **params: Any) -> dict[str, Any]:
        """Send a request and wait for its result."""
        number = self.send(verb, **params)
        for message in self._messages():
            if message["id"] == number and "ok" in message:
                assert message["ok"], message["error"]
                result: dict[str, Any] = message["result"]
                return result
        raise AssertionError("no reply")

    def wait_for_command(self, number: int, step: str) -> None:
        """Return when the request's command of that step runs."""
        for message in self._messages():
            event = message.get("event", {})
            if message["id"] == number and (event.get("kind"), event.get("step")) == ("running", step):
                return
        raise AssertionError("no such command")

    def _messages(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout
        while True:
            while self._ready:
                yield self._ready.pop(0)
            data = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not data:
                return
            self._ready += self._decoder.feed(data)


@pytest.fixture
def helper() -> Iterator[Helper]:
    """A running helper; ended at the end whatever happens."""
    made = Helper()
    yield made
    made.process.kill()
    made.process.wait()
    for stream in (made.process.stdin, made.process.stdout, made.process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _open(helper: Helper, driver: Driver, environment: Environment, **more: Any) -> dict[str, Any]:
    request = {"run_id": "r1", "state_root": str(driver.state_root), "who": "me", "message": "m", **more}
    before = helper.call("tx_begin", scope=driver.scope, **request)["before"]
    tree = helper.call("tx_do", op="derive_tree", params={"release_id": "r", "package_dir": str(environment.package)})
    install = {"python": str(environment.python), "tree": tree["tree"], "installer": "self"}
    helper.call("tx_do", op="install_editable", params=install)
    assert not environment.package.exists()
    return dict(before)


def _assert_undone(driver: Driver, before: dict[str, Any], reason: str) -> None:
    assert driver.root() == before["root"]
    assert locks.read(str(driver.state_root)) is None
    records = journal.read(journal.path_of(str(driver.state_root), "r1"))
    assert records[-1]["kind"] == "undone"
    assert "controller lost" in records[-1]["reason"]
    assert reason in records[-1]["reason"]


def test_the_stream_ends(helper: Helper, driver: Driver, environment: Environment) -> None:
    before = _open(helper, driver, environment)
    assert helper.process.stdin
    helper.process.stdin.close()
    assert helper.process.wait(30) == 0
    _assert_undone(driver, before, "closed the connection")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_helper_is_told_to_go(
    helper: Helper, driver: Driver, environment: Environment, number: signal.Signals
) -> None:
    before = _open(helper, driver, environment)
    helper.process.send_signal(number)
    assert helper.process.wait(30) == 0
    _assert_undone(driver, before, f"signal {number.value}")


def test_the_controller_hangs_with_an_open_line(helper: Helper, driver: Driver, environment: Environment) -> None:
    """A laptop that sleeps keeps its TCP connection; the old server must not stay down until it wakes up."""
    before = _open(helper, driver, environment, idle_s=2)
    assert helper.process.wait(30) == 0
    _assert_undone(driver, before, "no sign of the controller")


def test_signs_of_life_keep_it_open(helper: Helper, driver: Driver, environment: Environment) -> None:
    _open(helper, driver, environment, idle_s=2)
    for _ in range(8):
        time.sleep(0.5)
        helper.send("keepalive")
    assert helper.call("tx_abort", reason="enough")["proven"]


def test_a_command_that_runs_is_ended_with_the_connection(
    helper: Helper, driver: Driver, environment: Environment, tmp_path: Path
) -> None:
    """The connection breaks while pip works: pip is stopped first, then the environment is restored."""
    request = {"run_id": "r1", "state_root": str(driver.state_root), "who": "me", "message": "m"}
    before = helper.call("tx_begin", scope=driver.scope, **request)["before"]
    tree = helper.call("tx_do", op="derive_tree", params={"release_id": "r", "package_dir": str(environment.package)})
    slow = tmp_path / "uv"
    slow.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid\nwhile :; do touch {environment.site}/sglang/x; sleep 0.1; done\n"
    )
    slow.chmod(0o755)
    install = {"python": str(environment.python), "tree": tree["tree"], "installer": "uv", "uv": str(slow)}
    number = helper.send("tx_do", op="install_editable", params=install)
    helper.wait_for_command(number, "install")
    while not (tmp_path / "pid").exists():
        time.sleep(0.05)
    assert helper.process.stdin
    assert helper.process.stdout
    helper.process.stdin.close()
    helper.process.stdout.close()
    assert helper.process.wait(60) == 0
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
    _assert_undone(driver, before, "")


def test_a_lost_controller_does_not_undo_what_was_committed(
    helper: Helper, driver: Driver, environment: Environment
) -> None:
    _open(helper, driver, environment)
    helper.call("tx_commit", deployment={"release_id": "r"})
    assert helper.process.stdin
    helper.process.stdin.close()
    assert helper.process.wait(30) == 0
    assert not environment.package.exists()
    assert driver.back()["proven"]
