"""Reaching a host as ssh_config says, with which keys, and the name of each way not to reach it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_ops.errors import AuthenticationFailed, ConfigError, HostKeyUnknown, HostUnreachable
from ddtree_ops.inventory import Host, SshOptions
from ddtree_ops.remote import ssh
from ddtree_ops.remote.connection import connect
from ddtree_ops.remote.ssh_config import endpoint, jump_endpoint
from tests.hosts.light_sshd import LightHost
from tests.remote.conftest import ssh_config, ssh_host


@pytest.fixture(scope="module")
def bastion(light: LightHost) -> Iterator[LightHost]:
    """A second sshd, to jump through."""
    with LightHost() as host:
        yield host


def _works(host: Host) -> bool:
    with connect(host) as link:
        return bool(link.call("ping", timeout=30)["pid"])


def _entry(name: str, light: LightHost, more: str = "") -> str:
    return (
        f"Host {name}\n HostName {light.address}\n Port {light.port}\n User {light.user}\n"
        f" IdentityFile {light.key}\n UserKnownHostsFile {light.known_hosts}\n{more}"
    )


# -- ssh_config --


def test_alias_of_ssh_config_is_enough(light: LightHost) -> None:
    assert _works(ssh_config(light, _entry("alias", light)))


def test_inventory_goes_before_ssh_config(light: LightHost) -> None:
    host = ssh_config(light, "Host alias\n HostName 192.0.2.1\n Port 1\n User nobody\n IdentityFile /x\n")
    mine = Host(name="alias", address="alias", port=22022, user="me", ssh=host.ssh)
    found = endpoint(mine)
    assert (found.address, found.port, found.user) == ("192.0.2.1", 22022, "me")


def test_include_is_followed_and_ends_with_its_file(light: LightHost, tmp_path: Path) -> None:
    """paramiko ignores Include; and lines after it belong to the section around it, not to the included one."""
    (light.dir / "conf.d").mkdir(exist_ok=True)
    (light.dir / "conf.d/10-alias.conf").write_text(_entry("alias", light) + "Host elsewhere\n Port 7\n")
    host = ssh_config(light, "Include conf.d/*.conf\nServerAliveInterval 3\nHost alias\n ConnectTimeout 7\n")
    assert endpoint(host).connect_timeout == 7
    assert _works(host)


def test_home_and_tokens_in_paths(light: LightHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    host = ssh_config(
        light, "Host alias\n HostName gpu7\n IdentityFile ~/keys/%h_%r\n UserKnownHostsFile ~/a %d/b\n User me\n"
    )
    found = endpoint(host)
    assert found.identity_files == (f"{tmp_path}/keys/gpu7_me",)
    assert found.known_hosts[:2] == (f"{tmp_path}/a", f"{tmp_path}/b")


def test_missing_ssh_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        endpoint(Host(name="x", address="x", ssh=SshOptions(config=str(tmp_path / "none"))))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("bastion", ("bastion", 22)),
        ("ops@bastion:2222", ("bastion", 2222)),
        ("ssh://ops@bastion:2222", ("bastion", 2222)),
        ("[fd00::1]:2222", ("fd00::1", 2222)),
    ],
)
def test_spellings_of_a_jump(tmp_path: Path, spec: str, expected: tuple[str, int]) -> None:
    (tmp_path / "config").touch()
    hop = jump_endpoint(spec, Host(name="x", address="x", ssh=SshOptions(config=str(tmp_path / "config"))))
    assert (hop.address, hop.port) == expected


# -- jumping --


def test_proxy_jump(light: LightHost, bastion: LightHost) -> None:
    config = _entry("alias", light, " ProxyJump bastion\n") + _entry("bastion", bastion)
    before = (bastion.dir / "sshd.log").read_text()
    assert _works(ssh_config(light, config))
    assert "Accepted publickey" in (bastion.dir / "sshd.log").read_text()[len(before) :]


def test_proxy_jump_of_two_hops_and_a_wildcard(light: LightHost, bastion: LightHost) -> None:
    """`Host *` gives the jump host itself a ProxyJump: following it would never end."""
    config = (
        _entry("alias", light, " ProxyJump bastion,second\n")
        + _entry("second", light)
        + _entry("bastion", bastion)
        + "Host *\n ProxyJump bastion\n"
    )
    assert _works(ssh_config(light, config))


def test_every_hop_is_strict(light: LightHost, bastion: LightHost) -> None:
    """A jump host whose key nobody checked could sit in the middle of the whole conversation."""
    unknown = _entry("bastion", bastion).replace(bastion.known_hosts, "/dev/null")
    config = _entry("alias", light, " ProxyJump bastion\n") + unknown + " GlobalKnownHostsFile none\n"
    with pytest.raises(HostKeyUnknown, match=f":{bastion.port}"):
        connect(ssh_config(light, config))


def test_jump_host_that_cannot_reach_the_host(light: LightHost, bastion: LightHost) -> None:
    dead = _entry("alias", light, " ProxyJump bastion\n").replace(f"Port {light.port}", f"Port {_free_port()}")
    with pytest.raises(HostUnreachable, match="jump host cannot reach"):
        connect(ssh_config(light, dead + _entry("bastion", bastion)))


def test_proxy_command(light: LightHost) -> None:
    relay = (
        "python3 -c 'import os,socket,sys,threading; s=socket.create_connection((sys.argv[1], int(sys.argv[2])));"
        " threading.Thread(target=lambda: [s.sendall(d) for d in iter(lambda: os.read(0, 65536), bytes())],"
        " daemon=True).start(); [os.write(1, d) for d in iter(lambda: s.recv(65536), bytes())]' %h %p"
    )
    assert _works(ssh_config(light, _entry("alias", light, f" ProxyCommand {relay}\n")))


def test_proxy_command_that_ends_is_noticed(light: LightHost) -> None:
    """paramiko's own ProxyCommand reads an ended command for ever at full speed."""
    start = time.monotonic()
    with pytest.raises(HostUnreachable):
        connect(ssh_config(light, _entry("alias", light, " ProxyCommand exit 1\n")))
    assert time.monotonic() - start < 10


# -- keys --


def test_wrong_key_tells_what_was_offered(light: LightHost) -> None:
    other = light.make_key("not_authorised")
    with pytest.raises(AuthenticationFailed) as caught:
        connect(ssh_host(light, identity_files=(str(other), "/nowhere/key")))
    assert caught.value.details["offered"] == [f"{other} (ssh-ed25519)"]
    assert "/nowhere/key does not exist" in caught.value.why
    assert "the server allows: publickey" in caught.value.why


def test_later_key_is_tried_after_a_wrong_one(light: LightHost) -> None:
    other = light.make_key("not_authorised_either")
    assert _works(ssh_host(light, identity_files=(str(other), light.key)))


def _encrypted(light: LightHost) -> Path:
    path = light.dir / "encrypted"
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "pass phrase", "-f", str(path)], check=True)
        with (light.dir / "authorized_keys").open("a") as keys:
            keys.write(path.with_suffix(".pub").read_text())
    return path


def test_encrypted_key_without_agent_is_named(light: LightHost) -> None:
    """There is no terminal in CI: a prompt for the passphrase would hang."""
    with pytest.raises(AuthenticationFailed) as caught:
        connect(ssh_host(light, identity_files=(str(_encrypted(light)),)))
    assert "is encrypted and no agent holds it" in caught.value.why
    assert caught.value.details["offered"] == []


@pytest.fixture
def agent(light: LightHost, tmp_path: Path) -> Iterator[Path]:
    """A real ssh-agent that holds the encrypted key."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    askpass = tmp_path / "askpass"
    askpass.write_text("#!/bin/sh\necho 'pass phrase'\n")
    askpass.chmod(0o700)
    try:
        for _ in range(200):
            if path.exists():
                break
            time.sleep(0.02)
        environment = {
            **os.environ,
            "SSH_AUTH_SOCK": str(path),
            "SSH_ASKPASS": str(askpass),
            "SSH_ASKPASS_REQUIRE": "force",
        }
        key = str(_encrypted(light))
        subprocess.run(["ssh-add", "-q", key], env=environment, check=True, stdin=subprocess.DEVNULL)
        yield path
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("named", [True, False], ids=["as IdentityFile", "by the agent alone"])
def test_agent_opens_an_encrypted_key(
    light: LightHost, agent: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    files = (str(_encrypted(light)),) if named else ()
    config = light.dir / "config_of_agent"
    config.write_text("" if named else f"Host *\n IdentityFile {light.dir}/missing\n")
    assert _works(ssh_host(light, identity_files=files, agent=True, config=str(config)))


def test_identities_only_leaves_the_agents_other_keys_alone(
    light: LightHost, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    other = light.make_key("not_authorised_again")
    config = light.dir / "identities_only"
    config.write_text("Host *\n IdentitiesOnly yes\n")
    with pytest.raises(AuthenticationFailed) as caught:
        connect(ssh_host(light, identity_files=(str(other),), agent=True, config=str(config)))
    assert caught.value.details["offered"] == [f"{other} (ssh-ed25519)"]


def test_agent_that_hangs_costs_a_second(light: LightHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale SSH_AUTH_SOCK of a forwarded session hangs fabric's open() for ever (fabric #2306)."""
    path = tmp_path / "stale"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        start = time.monotonic()
        assert _works(ssh_host(light, agent=True))
        assert time.monotonic() - start < 6


# -- no way there --


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _at(port: int, tmp_path: Path, address: str = "127.0.0.1", timeout: float = 10.0) -> Host:
    (tmp_path / "config").touch()
    options = SshOptions(config=str(tmp_path / "config"), agent=False, connect_timeout=timeout)
    return Host(name="x", address=address, port=port, ssh=options)


def test_refused(tmp_path: Path) -> None:
    port = _free_port()
    with pytest.raises(HostUnreachable, match=rf"127\.0\.0\.1:{port} cannot be reached: Connection refused"):
        connect(_at(port, tmp_path))


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachable, match=r"name no-such-host\.invalid is not known"):
        connect(_at(22, tmp_path, "no-such-host.invalid"))


def test_no_answer_meets_the_connect_timeout(tmp_path: Path) -> None:
    """A full backlog drops SYNs as a firewall does."""
    with socket.socket() as listener, socket.socket() as one, socket.socket() as two:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for client in (one, two):
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        time.sleep(0.2)
        start = time.monotonic()
        with pytest.raises(HostUnreachable, match=r"no answer from .* within 1 s"):
            connect(_at(listener.getsockname()[1], tmp_path, timeout=1.0))
        assert time.monotonic() - start < 5


@pytest.fixture
def stranger() -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes connections and sends what the test puts in the list, then nothing more."""
    words: list[bytes] = []
    kept: list[socket.socket] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                kept.append(link)
                for word in words:
                    link.sendall(word)
                if words == [b""]:
                    link.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], words
        listener.shutdown(socket.SHUT_RDWR)
    for link in kept:
        link.close()


def test_server_without_a_banner_meets_a_deadline(
    stranger: tuple[int, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen host accepts TCP and then says nothing."""
    monkeypatch.setattr(ssh, "HANDSHAKE", 1.0)
    monkeypatch.setattr(ssh, "_RETRIES", ())
    start = time.monotonic()
    with pytest.raises(HostUnreachable, match="answers, but not as an SSH server"):
        connect(_at(stranger[0], tmp_path))
    assert time.monotonic() - start < 8


def test_server_that_hangs_in_the_key_exchange_meets_a_deadline(
    stranger: tuple[int, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "HANDSHAKE", 2.0)
    monkeypatch.setattr(ssh, "_RETRIES", ())
    stranger[1].append(b"SSH-2.0-OpenSSH_9.2\r\n")
    start = time.monotonic()
    with pytest.raises(HostUnreachable):
        connect(_at(stranger[0], tmp_path, timeout=2.0))
    assert time.monotonic() - start < 12


def test_full_sshd_is_tried_again(light: LightHost, tmp_path: Path) -> None:
    """MaxStartups closes new connections before authentication: nothing was run, so trying again is safe."""
    with LightHost("MaxStartups 1:100:1\nLoginGraceTime 60") as busy:
        for _ in range(50):  # the connection that waited for sshd may still count
            blocker = socket.create_connection((busy.address, busy.port))
            if blocker.recv(4) == b"SSH-":
                break
            blocker.close()
            time.sleep(0.05)
        threading.Timer(0.3, blocker.close).start()
        assert _works(ssh_host(busy))
        assert "beginning MaxStartups throttling" in (busy.dir / "sshd.log").read_text()


def test_nothing_is_logged_to_the_terminal(stranger: tuple[int, list[bytes]], tmp_path: Path) -> None:
    """paramiko's threads print tracebacks to stderr through logging's last resort."""
    stranger[1].append(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    import subprocess as sub
    import sys

    code = (
        "from ddtree_ops.inventory import Host, SshOptions\n"
        "from ddtree_ops.remote import ssh\n"
        "from ddtree_ops.remote.connection import connect\n"
        "from ddtree_ops.errors import HostUnreachable\n"
        "ssh.HANDSHAKE, ssh._RETRIES = 2.0, ()\n"
        f"host = Host(name='x', address='127.0.0.1', port={stranger[0]},"
        f" ssh=SshOptions(config={str(tmp_path / 'config')!r}, agent=False))\n"
        "try:\n    connect(host)\nexcept HostUnreachable:\n    print('unreachable')\n"
    )
    (tmp_path / "config").touch()
    done = sub.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("unreachable\n", "")
