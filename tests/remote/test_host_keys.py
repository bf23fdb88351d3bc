"""Host keys against a real sshd: right, unknown and changed are three outcomes, and nothing makes a fourth."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddtree_ops.errors import HostKeyChanged, HostKeyUnknown
from ddtree_ops.inventory import Host
from ddtree_ops.remote.connection import connect
from ddtree_ops.remote.host_keys import read
from tests.hosts.light_sshd import LightHost
from tests.remote.conftest import ssh_config, ssh_host


def _fingerprint(path: Path) -> str:
    text = subprocess.run(["ssh-keygen", "-lf", str(path)], capture_output=True, text=True, check=True).stdout
    return text.split()[1]


def _public(path: Path) -> str:
    return " ".join(path.read_text().split()[:2])


def _ran_nothing(light: LightHost, before: str) -> bool:
    return "Starting session" not in (light.dir / "sshd.log").read_text()[len(before) :]


def test_right_key_connects(host: Host) -> None:
    with connect(host) as link:
        assert link.call("ping", timeout=30)["pid"] > 0


def test_unknown_key_is_refused_and_named(light: LightHost, tmp_path: Path) -> None:
    """Stock fabric accepts any key (AutoAddPolicy): this pins that ours does not."""
    empty = tmp_path / "known_hosts"
    empty.touch()
    before = (light.dir / "sshd.log").read_text()
    with pytest.raises(HostKeyUnknown) as caught:
        connect(ssh_host(light, known_hosts=(str(empty),)))
    right = _fingerprint(light.dir / "host_key.pub")
    assert right in str(caught.value)
    assert f"--accept-new-host-key {right}" in caught.value.next_step
    assert f"ssh-keyscan -p {light.port} -t ed25519 127.0.0.1 >> {empty}" in caught.value.next_step
    assert empty.read_text() == ""
    assert _ran_nothing(light, before)


def test_changed_key_names_both_fingerprints_and_the_line(light: LightHost, tmp_path: Path) -> None:
    other = light.make_key("other_host_key")
    known = tmp_path / "known_hosts"
    known.write_text(f"# a comment\n\n[127.0.0.1]:{light.port} {_public(other.with_suffix('.pub'))}\n")
    before = (light.dir / "sshd.log").read_text()
    with pytest.raises(HostKeyChanged) as caught:
        connect(ssh_host(light, known_hosts=(str(known),)))
    assert _fingerprint(light.dir / "host_key.pub") in str(caught.value)
    assert _fingerprint(other.with_suffix(".pub")) in str(caught.value)
    assert caught.value.where == f"{known}:3"
    assert _ran_nothing(light, before)


@pytest.mark.parametrize("word", ["no", "accept-new", "off"])
def test_ssh_config_cannot_weaken_the_check(light: LightHost, tmp_path: Path, word: str) -> None:
    """`StrictHostKeyChecking no` makes ssh itself connect to a changed key."""
    other = light.make_key(f"other_{word}")
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{light.port} {_public(other.with_suffix('.pub'))}\n")
    config = (
        f"Host alias\n HostName 127.0.0.1\n Port {light.port}\n User {light.user}\n IdentityFile {light.key}\n"
        f" StrictHostKeyChecking {word}\n UserKnownHostsFile {known}\n"
    )
    with pytest.raises(HostKeyChanged):
        connect(ssh_config(light, config))
    with pytest.raises(HostKeyUnknown):
        connect(ssh_config(light, config.replace(str(known), "/dev/null") + " GlobalKnownHostsFile none\n"))


def test_hashed_entries_match(light: LightHost, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(Path(light.known_hosts).read_text())
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    assert known.read_text().startswith("|1|")
    with connect(ssh_host(light, known_hosts=(str(known),))) as link:
        assert link.call("ping", timeout=30)
    other = light.make_key("other_hashed")
    known.write_text(f"[127.0.0.1]:{light.port} {_public(other.with_suffix('.pub'))}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(known)], check=True, capture_output=True)
    with pytest.raises(HostKeyChanged):
        connect(ssh_host(light, known_hosts=(str(known),)))


def test_key_is_asked_for_in_the_recorded_type(tmp_path: Path) -> None:
    """A host known by its RSA key alone is not "changed" because its server would rather show an Ed25519 key."""
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)], check=True)
    with LightHost(f"HostKey {rsa}") as light:
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{light.port} {_public(rsa.with_suffix('.pub'))}\n")
        with connect(ssh_host(light, known_hosts=(str(known),))) as link:
            assert link.call("ping", timeout=30)


def test_recorded_in_another_type_only_is_changed_not_unknown(light: LightHost, tmp_path: Path) -> None:
    """Else --accept-new-host-key would let a new key pass for a host that is known."""
    rsa = tmp_path / "rsa"
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", str(rsa)], check=True)
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{light.port} {_public(rsa.with_suffix('.pub'))}\n")
    right = _fingerprint(light.dir / "host_key.pub")
    with pytest.raises(HostKeyChanged):
        connect(ssh_host(light, known_hosts=(str(known),), accept_host_key=right))


def test_revoked_key_is_refused_even_when_recorded(light: LightHost, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    line = Path(light.known_hosts).read_text()
    known.write_text(line + "@revoked * " + _public(light.dir / "host_key.pub") + "\n")
    with pytest.raises(HostKeyChanged, match="recorded is") as caught:
        connect(ssh_host(light, known_hosts=(str(known),)))
    assert caught.value.where == f"{known}:2"


def test_expected_fingerprint_lets_an_unknown_key_pass_and_writes_nothing(light: LightHost, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    right = _fingerprint(light.dir / "host_key.pub")
    with connect(ssh_host(light, known_hosts=(str(known),), accept_host_key=right)) as link:
        assert link.call("ping", timeout=30)
    assert not known.exists()
    wrong = "SHA256:" + "A" * 43
    with pytest.raises(HostKeyUnknown, match=f"expects {wrong}"):
        connect(ssh_host(light, known_hosts=(str(known),), accept_host_key=wrong))


def test_expected_fingerprint_does_not_override_a_changed_key(light: LightHost, tmp_path: Path) -> None:
    other = light.make_key("other_accept")
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{light.port} {_public(other.with_suffix('.pub'))}\n")
    right = _fingerprint(light.dir / "host_key.pub")
    with pytest.raises(HostKeyChanged):
        connect(ssh_host(light, known_hosts=(str(known),), accept_host_key=right))


def test_entry_without_port_counts_where_there_is_none_with_it(light: LightHost, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"127.0.0.1 {_public(light.dir / 'host_key.pub')}\n")
    with connect(ssh_host(light, known_hosts=(str(known),))) as link:
        assert link.call("ping", timeout=30)


@pytest.mark.parametrize(
    ("names", "asked", "matches"),
    [
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("[10.0.0.1]:2222", "1]:2222", False),
        ("*.example.org,!bad.example.org", "gpu.example.org", True),
        ("*.example.org,!bad.example.org", "bad.example.org", False),
        ("GPU7", "gpu7", True),
        ("gpu?", "gpu77", False),
        ("|1|bad|hash", "gpu7", False),
    ],
)
def test_names_of_an_entry(tmp_path: Path, names: str, asked: str, matches: bool) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"{names} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== comment\nno entry at all\n")
    (entry,) = read([str(known)])
    assert entry.matches(asked) is matches
