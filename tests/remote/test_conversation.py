"""Calls over both transports: order, noise, size, bytes that are no UTF-8, and every way a conversation can break."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.errors import DdtreeError, Refused, TransportError
from ddtree_ops.inventory import Host, SshOptions
from ddtree_ops.remote import bundle, channel
from ddtree_ops.remote.bundle import Bundle
from ddtree_ops.remote.channel import Link
from ddtree_ops.remote.connection import connect
from tests.hosts.light_sshd import LightHost, find_sshd
from tests.remote.conftest import Wait, ssh_host

pytestmark = pytest.mark.usefixtures("program")


@pytest.fixture(params=["local", "ssh"])
def link(request: pytest.FixtureRequest) -> Iterator[Link]:
    """An open conversation over each transport."""
    if request.param == "local":
        host = Host(name="here", transport="local")
    else:
        host = ssh_host(request.getfixturevalue("light"))
    with connect(host) as made:
        yield made


def _alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_answers_in_order_and_says_hello(link: Link) -> None:
    assert [link.call("echo", {"n": n})["n"] for n in range(20)] == list(range(20))
    assert link.hello["protocol"] == 1
    assert link.hello["euid"] == os.geteuid()
    assert link.ping() < 5


def test_both_streams_are_drained(link: Link) -> None:
    """Reading one stream to its end before the other deadlocks once 2 MiB wait in the window (paramiko #1778)."""
    got: list[dict[str, Any]] = []
    blocks, size = 10, 1024 * 1024
    result = link.call("flood", {"blocks": blocks, "size": size}, timeout=120, on_event=got.append)
    assert result == {"blocks": blocks}
    assert sum(len(event["data"]) // 2 for event in got) == blocks * size
    assert link.stderr == "e" * 64 * 1024


def test_large_request(link: Link) -> None:
    data = os.urandom(6 * 1024 * 1024).hex()
    assert link.call("echo", {"data": data}, timeout=120)["data"] == data


def test_stray_output_and_children_do_not_touch_the_frames(link: Link) -> None:
    """A `print` or a child that reads stdin would otherwise corrupt replies or eat requests."""
    assert link.call("stray") == {"done": True}
    assert link.call("echo", {"n": 1}) == {"n": 1}
    assert link.noise == 0
    assert "a stray print" in link.stderr
    assert "a child that prints" in link.stderr


def test_names_that_are_not_utf8_survive(link: Link, tmp_path: Path) -> None:
    """Host paths are bytes: 0xE9 alone is no UTF-8, and must come back as the same byte."""
    name = b"caf\xe9-\xff"
    Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).touch()
    names = link.call("paths", {"folder": str(tmp_path)})["names"]
    assert name in [os.fsencode(found) for found in names]
    sent = os.fsdecode(name)
    assert link.call("echo", {"name": sent}) == {"name": sent}


def test_crash_of_a_verb_is_a_reply_with_the_lines_of_the_program(link: Link) -> None:
    """A traceback without source lines (code run by `exec`) would be of little use in a bug report."""
    with pytest.raises(DdtreeError, match="crash of the verb") as caught:
        link.call("crash")
    assert caught.value.exit_code == 1
    assert 'raise KeyError("crash of the verb")' in caught.value.details["traceback"]
    assert link.call("echo", {"still": "alive"}) == {"still": "alive"}


def test_unknown_verb_is_a_reply(link: Link) -> None:
    with pytest.raises(DdtreeError, match="no verb 'nonsense'"):
        link.call("nonsense")


def test_death_of_the_helper_is_told_with_its_last_words(link: Link) -> None:
    link.call("echo")
    with pytest.raises(TransportError) as caught:
        link.call("die", timeout=30)
    assert "about to die" in caught.value.why
    assert caught.value.details["status"] == 9
    with pytest.raises(TransportError):
        link.call("echo")


def test_truncated_reply_is_an_error_never_an_answer(link: Link) -> None:
    link.call("echo")
    fd = int(_stdout_of_helper(link.hello["pid"]))
    with pytest.raises(TransportError, match="in the middle of a reply"):
        link.call("truncate", {"nonce": link._nonce, "fd": fd}, timeout=30)


def _stdout_of_helper(pid: int) -> str:
    """The descriptor that the helper kept for frames: the one above 2 that is open for writing on a pipe or socket."""
    for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda path: int(path.name)):
        flags = int(re.search(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text())[1], 8)  # type: ignore[index]
        target = os.readlink(entry)
        if int(entry.name) > 2 and (target.startswith("socket:") or (target.startswith("pipe:") and flags & 1)):
            return entry.name
    raise AssertionError("no descriptor for frames")


def test_silent_host_meets_a_deadline(link: Link) -> None:
    """A stopped helper keeps the connection open; only our own deadline on silence ends the call."""
    link.call("echo")
    link.silence = 1.5
    pid = link.hello["pid"]
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    try:
        with pytest.raises(TransportError, match="said nothing for 2 s during echo"):
            link.call("echo", {"n": 1})
        assert time.monotonic() - start < 6
    finally:
        os.kill(pid, signal.SIGCONT)


def test_heartbeat_keeps_a_long_call_alive(program: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that says nothing for longer than the deadline on silence is no reason to cut the connection."""
    source = tmp_path / "program/protocol.py"
    quick = source.read_text().replace("HEARTBEAT_SECONDS = 5.0", "HEARTBEAT_SECONDS = 0.3")
    assert quick != source.read_text()
    source.write_text(quick)
    made = bundle.build(source.parent)
    monkeypatch.setattr(bundle, "bundle", lambda: made)
    heard: list[dict[str, Any]] = []
    with connect(Host(name="here", transport="local"), on_event=heard.append) as link:
        link.call("echo")
        link.silence = 1.5
        assert link.call("sleep", {"seconds": 4}) == {"slept": 4}
    assert heard == []


def test_slow_call_meets_its_own_limit(link: Link) -> None:
    link.call("echo")
    with pytest.raises(TransportError, match=r"sleep on .* took longer than 1 s"):
        link.call("sleep", {"seconds": 8}, timeout=1)


def test_end_of_the_conversation_runs_the_hooks_and_ends_the_helper(link: Link, tmp_path: Path, within: Wait) -> None:
    mark = tmp_path / "mark"
    link.call("mark", {"file": str(mark)})
    pid = link.hello["pid"]
    link.close()
    assert mark.read_text() == "the controller closed the connection"
    assert within(lambda: not _alive(pid))


def test_silent_controller_is_lost_inside_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: Wait
) -> None:
    """A laptop that sleeps keeps its TCP connection: the host must not wait for it for ever."""
    monkeypatch.setattr(channel, "KEEPALIVE", 3600.0)
    mark = tmp_path / "mark"
    with connect(Host(name="here", transport="local")) as link:
        link.call("mark", {"file": str(mark), "idle": 1.0})
        assert within(mark.exists)
        assert "no sign of the controller" in mark.read_text()


def test_keepalive_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "KEEPALIVE", 0.3)
    mark = tmp_path / "mark"
    with connect(Host(name="here", transport="local")) as link:
        link.call("mark", {"file": str(mark), "idle": 1.5})
        time.sleep(3)
        assert not mark.exists()
        assert link.call("echo", {"n": 1}) == {"n": 1}


# -- SSH only --


def test_cut_connection_in_the_middle_of_a_call(light: LightHost, tmp_path: Path, within: Wait) -> None:
    """The sshd session is killed: the call ends at once with a transport error, and the host undoes by itself."""
    mark = tmp_path / "mark"
    with connect(ssh_host(light)) as link:
        link.call("mark", {"file": str(mark)})
        pid = link.hello["pid"]

        def cut() -> None:
            for session in light.sessions():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(os.getsid(session), signal.SIGKILL)

        threading.Timer(0.5, cut).start()
        start = time.monotonic()
        with pytest.raises(TransportError, match=r"ended|broke"):
            link.call("sleep", {"seconds": 6})
        assert time.monotonic() - start < 5
    assert within(lambda: not _alive(pid))
    assert mark.exists()


NOISE = "\x1b[31mwelcome {to} the machine\x1b[0m"


def test_noisy_start_up_files_are_counted_and_told(tmp_path: Path) -> None:
    """An rc file that prints breaks sftp and naive parsers ("Received message too long")."""
    if find_sshd() is None:
        pytest.skip("openssh-server is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text(f"printf '%s\\n' '{NOISE}'\n")
    (tmp_path / "banner").write_text("Authorised use only {\n")
    heard: list[dict[str, Any]] = []
    options = f'SetEnv HOME={home} BASH_ENV={home}/.bashrc\nForceCommand /bin/bash -c "$SSH_ORIGINAL_COMMAND"\n'
    with (
        LightHost(f"{options}Banner {tmp_path}/banner") as light,
        connect(ssh_host(light), on_event=heard.append) as link,
    ):
        assert link.call("echo", {"n": 1}) == {"n": 1}
        assert link.noise >= len(NOISE)
    assert [event["stdout_noise"] >= len(NOISE) for event in heard] == [True]


@pytest.mark.parametrize("shell", ["fish", "csh", "tcsh", "dash", "bash", "zsh", "ksh"])
def test_login_shells_parse_the_command(shell: str, tmp_path: Path) -> None:
    """The login shell reads our command line first; fish and csh know neither `A=b c` nor `$(...)`."""
    import shutil

    path = shutil.which(shell)
    if path is None or find_sshd() is None:
        pytest.skip(f"{shell} is not installed")
    # sshd runs `LOGIN_SHELL -c COMMAND`; ForceCommand puts the shell under test there without a new account
    options = f'SetEnv HOME={tmp_path}\nForceCommand exec {path} -c "$SSH_ORIGINAL_COMMAND"'
    with LightHost(options) as light, connect(ssh_host(light)) as link:
        assert link.call("echo", {"shell": shell}) == {"shell": shell}


def test_host_without_python_is_a_clear_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddtree_ops.remote import startup

    gone = startup._SCRIPT.replace("/usr/", "/nowhere/").replace("python3", "python3-is-gone")
    monkeypatch.setattr(startup, "COMMAND", f"exec /bin/sh -c '{gone}'")
    host = Host(name="here", transport="local", python="/nowhere/bin/python", environment="/nowhere/env")
    with connect(host) as link, pytest.raises(Refused, match=r"no Python 3\.8 or newer") as caught:
        link.call("echo")
    assert "/nowhere/env/bin/python3" in caught.value.where
    assert "python: /path/to/python3" in caught.value.next_step


def test_environment_is_the_last_place_to_look_for_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minimal image may have Python in the virtual environment alone."""
    import sys

    from ddtree_ops.remote import startup

    environment = tmp_path / "an env"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python3").symlink_to(Path(sys.executable).resolve())
    gone = startup._SCRIPT.replace("/usr/", "/nowhere/").replace(" python3 ", " python3-is-gone ")
    monkeypatch.setattr(startup, "COMMAND", f"exec /bin/sh -c '{gone}'")
    host = Host(name="here", transport="local", python="/nowhere/bin/python", environment=str(environment))
    with connect(host) as link:
        link.call("echo")
        assert link.hello["executable"] == str(environment / "bin/python3")


@pytest.mark.parametrize(
    "says", ["sudo: a password is required", "x is not in the sudoers file.", "sh: 1: exec: sudo: not found"]
)
def test_sudo_that_asks_is_refused_with_what_needs_root(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo` without -n would wait for a password on a terminal that does not exist."""
    sudo = tmp_path / "sudo"
    sudo.write_text(f"#!/bin/sh\n[ \"$1\" = -n ] || sleep 600\necho '{says}' >&2\nexit 1\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    host = Host(name="here", transport="local", become=True, user="ops", environment="/opt/env")
    with connect(host) as link, pytest.raises(Refused) as caught:
        link.call("echo", timeout=30)
    assert "the unit file /etc/systemd/system/sglang-ddtree.service" in caught.value.details["needs_root"]
    assert "ops ALL=(root) NOPASSWD" in caught.value.next_step


def test_two_conversations_at_once(light: LightHost) -> None:
    with connect(ssh_host(light)) as one, connect(ssh_host(light)) as two:
        assert one.call("echo", {"n": 1}) == {"n": 1}
        assert two.call("echo", {"n": 2}) == {"n": 2}
        assert one.hello["pid"] != two.hello["pid"]


def test_max_sessions_is_named(program: Bundle) -> None:
    from ddtree_ops.errors import HostUnreachable

    if find_sshd() is None:
        pytest.skip("openssh-server is not installed")
    with LightHost("MaxSessions 0") as light, pytest.raises(HostUnreachable, match="opens no session") as caught:
        connect(ssh_host(light))
    assert "MaxSessions" in caught.value.why


def test_one_session_is_enough() -> None:
    """A run needs one channel, so `MaxSessions 1` must do for any number of calls."""
    if find_sshd() is None:
        pytest.skip("openssh-server is not installed")
    with LightHost("MaxSessions 1") as light, connect(ssh_host(light)) as link:
        assert [link.call("echo", {"n": n})["n"] for n in range(5)] == [0, 1, 2, 3, 4]


def test_options_of_a_host_default_to_ssh_config() -> None:
    assert SshOptions() == SshOptions(config="", proxy_jump="", accept_host_key="")
