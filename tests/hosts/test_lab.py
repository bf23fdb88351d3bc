"""The lab keeps its promises; every other test on a real host leans on them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from tests.hosts import layers
from tests.hosts.lab import Lab, TestHost
from tests.hosts.light_sshd import LightHost


def connect(host: TestHost | LightHost, **over: object) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.load_host_keys(str(over.pop("known_hosts", host.known_hosts)))
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    key = str(over.pop("key", host.key))
    client.connect(
        host.address,
        host.port,
        host.user,
        key_filename=key,
        allow_agent=False,
        look_for_keys=False,
        timeout=5,
        banner_timeout=5,
        auth_timeout=5,
    )
    return client


def ask(client: paramiko.SSHClient, command: str) -> str:
    _, out, _ = client.exec_command(command, timeout=30)
    return out.read().decode()


def test_hosts_are_real_and_apart(hosts: Callable[[int], list[TestHost]]) -> None:
    for host in hosts(2):
        with connect(host) as client:
            said = ask(client, "cat /proc/1/comm; hostname; systemctl is-system-running").split()
        assert said == ["systemd", host.name, "running"]


def test_snapshot_sees_content_mode_times_and_deletion(testhost: TestHost) -> None:
    testhost.write("/etc/a", "one\n")
    testhost.write("/etc/b", "two\n")
    before = testhost.snapshot()
    assert before.changes(testhost.snapshot()) == []
    testhost.run("chmod 600 /etc/a; touch /etc/b; rm /etc/motd; mkdir /opt/new; printf x > /tmp/t")
    said = "\n".join(before.changes(testhost.snapshot()))
    for line in ("/etc/a (mode)", "/etc/b (mtime)", "/etc/motd", "new      /opt/new", "new      /tmp/t"):
        assert line in said


def test_differs_sees_through_rewritten_and_deleted_files(origin_host: TestHost) -> None:
    """A rollback writes files again: equal content is no difference, a folder made anew hides what was below it."""
    before = origin_host.differs()
    target = f"{layers.CHECKOUT}/python/pyproject.toml"
    origin_host.run(f"cp -p {target} /tmp/x; rm {target}; mv /tmp/x {target}; touch {layers.ENVIRONMENT}/pyvenv.cfg")
    assert origin_host.differs() == before
    origin_host.run(f"rm -r {layers.ENVIRONMENT}/bin; mkdir {layers.ENVIRONMENT}/bin; rm {target}")
    gone = origin_host.differs()
    assert gone[target] is None
    assert gone[f"{layers.ENVIRONMENT}/bin/python3"] is None
    assert layers.ENVIRONMENT not in gone


def test_snapshot_sees_units(testhost: TestHost) -> None:
    testhost.write("/etc/systemd/system/x.service", "[Service]\nExecStart=/bin/sleep 999\n")
    testhost.run("systemctl daemon-reload")
    before = testhost.snapshot()
    testhost.run("systemctl start x")
    assert any(line.startswith("unit     x.service") for line in before.changes(testhost.snapshot()))


def test_quiet_host_stays_unchanged(origin_host: TestHost) -> None:
    with origin_host.unchanged(), connect(origin_host) as client:
        assert ask(client, "git -C /root/sglang log --oneline -1").endswith("Release 0.5.10.post1\n")


def test_origin_story_material(origin_host: TestHost) -> None:
    """The wheel has the DFLASH worker, the checkout is older, dirty in two files and has none."""
    python = f"{layers.ENVIRONMENT}/bin/python"
    where = origin_host.run(
        f"cd /; {python} -I -c 'import importlib.util as u; print(u.find_spec(\"sglang\").origin)'"
    ).strip()
    assert where == f"{layers.ENVIRONMENT}/lib/python3.11/site-packages/sglang/__init__.py"
    assert origin_host.exists(f"{Path(where).parent}/srt/speculative/dflash_worker.py")
    assert not origin_host.exists(f"{layers.CHECKOUT}/python/sglang/srt/speculative/dflash_worker.py")
    dirty = origin_host.run(f"git -C {layers.CHECKOUT} status --porcelain").split()
    assert sorted(dirty[1::2]) == sorted(f"python/{path}" for path in layers.DIRTY)
    assert origin_host.run(f"git -C {layers.CHECKOUT} describe --tags").strip() == f"v{layers.OLD}"


def test_a_stranger_is_out_of_reach(testhost: TestHost) -> None:
    """From the lab's network a packet to any other address has nowhere to go."""
    with pytest.raises(OSError, match="unreachable"):
        socket.create_connection(("10.1.230.172", 22), 2)


def test_lab_ends_with_the_process_that_made_it() -> None:
    """A test run that is killed must not leave hosts, mounts or loop disks behind."""
    if Lab.missing():
        pytest.skip("no real hosts here")
    name = f"orphan{os.getpid()}"
    code = f"import os; from tests.hosts.lab import Lab; lab = Lab({name!r}); lab.up(); lab.add(); os._exit(9)"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    end = subprocess.run(
        ["sh", "-c", f"for i in $(seq 300); do [ -e {Lab(name).state} ] || exit 0; sleep 0.1; done; exit 1"]
    )
    assert end.returncode == 0


def test_light_host_checks_keys(light_host: LightHost, tmp_path: Path) -> None:
    with connect(light_host) as client:
        assert ask(client, "id -un").strip() == light_host.user
    (tmp_path / "empty").touch()
    with pytest.raises(paramiko.SSHException, match="not found in known_hosts"):
        connect(light_host, known_hosts=tmp_path / "empty")
    with pytest.raises(paramiko.AuthenticationException):
        connect(light_host, key=light_host.make_key("stranger"))


def test_disk_survives_power_cut_and_reboot(testhost: TestHost) -> None:
    """The overlay is mounted volatile; its mark must not keep the next boot from mounting the same disk."""
    testhost.write("/etc/kept", "x")
    testhost.power("kill")
    testhost.power("on")
    testhost.power("reboot")
    assert testhost.read("/etc/kept") == "x"
