"""The transport against real hosts: sudo, start-up files, accounts and networks as they are met."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.errors import HostKeyUnknown, HostUnreachable, Refused, TransportError
from ddtree_ops.inventory import Host, load
from ddtree_ops.remote import ssh
from ddtree_ops.remote.connection import connect
from tests.hosts.lab import TestHost

pytestmark = pytest.mark.host


def _host(testhost: TestHost, tmp_path: Path, **settings: object) -> Host:
    return load(testhost.inventory(tmp_path / "inventory.yaml", **settings)).host()


@pytest.fixture
def ops(testhost: TestHost) -> TestHost:
    """The host, on which the ordinary account ``ops`` may log in (and use sudo without a password)."""
    testhost.run("install -d -m 700 -o ops -g ops /home/ops/.ssh")
    testhost.run("install -m 600 -o ops -g ops /root/.ssh/authorized_keys /home/ops/.ssh/authorized_keys")
    return testhost


def test_looking_leaves_no_trace(testhost: TestHost, tmp_path: Path) -> None:
    """The program must not be written anywhere: no temporary file, no bytecode, no history."""
    with testhost.unchanged():
        with connect(_host(testhost, tmp_path)) as link:
            assert link.call("ping")["pid"] > 1
            assert link.call("facts", {"anchors": []}, timeout=120)["host"]["pid1"] == "systemd"
            assert link.hello["euid"] == 0
        deadline = time.monotonic() + 10
        while "ddtree" in testhost.run("ps -eo args") and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "zlib.decompress" not in testhost.run("ps -eo args | grep -v grep")


def test_become_is_root_where_sudo_asks_nothing(ops: TestHost, tmp_path: Path) -> None:
    with connect(_host(ops, tmp_path, user="ops")) as link:
        link.call("ping")
        assert link.hello["euid"] == 1000
    with connect(_host(ops, tmp_path, user="ops", become=True)) as link:
        link.call("ping")
        assert link.hello["euid"] == 0


def test_become_is_refused_where_sudo_wants_a_password(ops: TestHost, tmp_path: Path) -> None:
    """It must neither hang on a prompt nor change anything; the reader learns what needs root."""
    ops.run("echo 'ops ALL=(ALL) ALL' > /etc/sudoers.d/ops; echo ops:secret | chpasswd")
    ops.run("sudo -u ops sudo -n true || true")  # sudo's own first-time files
    with ops.unchanged(), connect(_host(ops, tmp_path, user="ops", become=True)) as link:
        start = time.monotonic()
        with pytest.raises(Refused, match="sudo on h1 does not work without a password") as caught:
            link.call("ping", timeout=30)
        assert time.monotonic() - start < 15
    assert caught.value.exit_code == 4
    assert "password is required" in caught.value.why
    assert "ops ALL=(root) NOPASSWD" in caught.value.next_step


def test_account_without_a_shell_says_its_own_words(ops: TestHost, tmp_path: Path) -> None:
    ops.run("usermod -s /usr/sbin/nologin ops")
    with connect(_host(ops, tmp_path, user="ops")) as link, pytest.raises(TransportError) as caught:
        link.call("ping", timeout=30)
    assert "not available" in caught.value.why


def test_start_up_file_of_a_real_account(ops: TestHost, tmp_path: Path) -> None:
    ops.write("/home/ops/.bashrc", "printf '\\033[31mwelcome {to}\\033[0m\\n'; [ -n \"$PS1\" ] || return\n")
    ops.run("chown ops /home/ops/.bashrc")
    heard: list[dict[str, Any]] = []
    with connect(_host(ops, tmp_path, user="ops"), on_event=heard.append) as link:
        link.call("ping")
    assert [event["kind"] for event in heard] == ["warning"]
    assert heard[0]["stdout_noise"] == len("\x1b[31mwelcome {to}\x1b[0m\n")


def test_host_without_python(testhost: TestHost, tmp_path: Path) -> None:
    testhost.run("mkdir /opt/away; mv /usr/bin/python3* /opt/away/")
    with connect(_host(testhost, tmp_path)) as link, pytest.raises(Refused, match="no Python") as caught:
        link.call("ping", timeout=30)
    assert caught.value.reason == "no_python"
    with connect(_host(testhost, tmp_path, python="/opt/away/python3")) as link:
        assert link.call("ping", timeout=30)
        assert link.hello["executable"] == "/opt/away/python3"


def test_unknown_key_runs_nothing(testhost: TestHost, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    keys: dict[str, object] = {"identity_files": [testhost.key], "known_hosts": [str(empty)], "agent": False}
    with testhost.unchanged(), pytest.raises(HostKeyUnknown):
        connect(_host(testhost, tmp_path, ssh=keys))


def test_network_that_goes_away_in_the_middle(testhost: TestHost, tmp_path: Path) -> None:
    """No FIN and no RST arrive: without a deadline of our own the call would wait for a quarter of an hour."""
    with connect(_host(testhost, tmp_path)) as link:
        link.call("ping")
        link.silence = 3.0
        testhost.net("down")
        start = time.monotonic()
        with pytest.raises(TransportError, match="said nothing"):
            link.call("ping")
        assert time.monotonic() - start < 10
    assert time.monotonic() - start < 20
    testhost.net("up")
    while time.monotonic() - start < 60:
        try:
            with connect(_host(testhost, tmp_path)) as link:
                assert link.call("ping", timeout=30)
            break
        except HostUnreachable:  # the neighbour's entry is stale for a moment
            time.sleep(0.2)
    else:
        pytest.fail("the host is not reached again")


def test_frozen_host_meets_the_handshake_deadline(
    testhost: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "HANDSHAKE", 2.0)
    monkeypatch.setattr(ssh, "_RETRIES", ())
    testhost.power("freeze")
    try:
        start = time.monotonic()
        with pytest.raises(HostUnreachable):
            connect(_host(testhost, tmp_path))
        assert time.monotonic() - start < 15
    finally:
        testhost.power("thaw")


def test_refusing_network(testhost: TestHost, tmp_path: Path) -> None:
    testhost.net("refuse")
    with pytest.raises(HostUnreachable, match="cannot be reached: Connection refused"):
        connect(_host(testhost, tmp_path))
