"""Real hosts for tests, driven from Python: systemd as PID 1, a real sshd, an own disk and address each.

``testhost.sh`` makes them out of plain namespaces; this module starts it and gives each host a handle.
The hosts are reachable only from the *control* network namespace, which has no way out to the world: a test that aims
at a wrong address can never reach a stranger. ``Lab.inside()`` moves the calling thread (and every thread and process
that it starts later) there, so that in-process SSH clients connect as they would on any network.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.snapshot import PROGRAM, VOLATILE, Snapshot

SCRIPT = Path(__file__).with_name("testhost.sh")
_CLONE_NEWNET = 0x40000000
_inside: list[Lab] = []  # the lab whose network the test thread is in, if any
_UNITS = "Id,ActiveState,SubState,MainPID,NRestarts,UnitFileState,FragmentPath,DropInPaths"


class LabError(Exception):
    """A host could not be made or driven; the text is what testhost.sh said."""


def _set_network(fd: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns is Python 3.12
    if libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


@contextlib.contextmanager
def outside_network() -> Iterator[None]:
    """The machine's own network around a block (for a download), wherever the caller is."""
    was = list(_inside)
    for lab in was:
        lab.leave()
    try:
        yield
    finally:
        for lab in was:
            lab.enter()


@dataclass
class TestHost:
    """One running host. ``name`` is h1, h2 ...; ``key`` and ``known_hosts`` are paths for a strict SSH client."""

    __test__ = False  # not a test class

    lab: Lab
    name: str
    address: str
    port: int
    user: str
    key: str
    known_hosts: str
    layers: tuple[str, ...] = ()

    def run(
        self,
        command: str | Sequence[str],
        *,
        check: bool = True,
        stdin: str | bytes = b"",
        timeout: float = 120,
    ) -> str:
        """Run a command on the host as root, past SSH; its stdout. A string goes through ``sh -euc``."""
        words = ["sh", "-euc", command] if isinstance(command, str) else list(command)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        return self.lab.script("in", self.name, "--", *words, check=check, stdin=data, timeout=timeout)

    def write(self, path: str, text: str | bytes, mode: str = "644") -> None:
        """Write a file on the host, with its parents."""
        self.run(
            ["sh", "-euc", 'mkdir -p "$(dirname "$1")"; cat > "$1"; chmod "$2" "$1"', "sh", path, mode], stdin=text
        )

    def read(self, path: str) -> str:
        """The text of a file on the host."""
        return self.run(["cat", path])

    def exists(self, path: str) -> bool:
        """Whether a path is there (a dangling link counts)."""
        return self.run(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ] && echo yes || true', "sh", path]).strip() == "yes"

    def net(self, *what: str) -> None:
        """Network faults: ``down``, ``up``, ``loss 20``, ``rate 2000``, ``refuse``, ``clear``."""
        self.lab.script("net", self.name, *what)

    def disk(self, *what: str) -> None:
        """Disk faults: ``fill [PATH] [LEAVE_KIB]``, ``empty``, ``ro PATH``, ``rw PATH``, ``abort``."""
        self.lab.script("disk", self.name, *what)

    def power(self, what: str) -> None:
        """Power faults: ``kill``, ``off``, ``on``, ``freeze``, ``thaw``, ``reboot``."""
        self.lab.script("power", self.name, what)

    def snapshot(self) -> Snapshot:
        """The state of the whole host; see snapshot.py. About 0.2 s."""
        roots = [["/run/.testhost-disk/up", ""], ["/tmp", "/tmp"], ["/dev/shm", "/dev/shm"]]
        roots += [["/run/ddtree-ops", "/run/ddtree-ops"], ["/run/systemd/system", "/run/systemd/system"]]
        manifest = self.run(["python3", "-I", "-c", PROGRAM], stdin=json.dumps([roots, VOLATILE]))
        units = self.run(
            "names=$(cd /etc/systemd/system && ls -d *.service *.timer *.socket 2>/dev/null | grep -v @ || true); "
            f'[ -z "$names" ] || systemctl show -p {_UNITS} $names'
        )
        return Snapshot.of(manifest, units)

    def differs(self) -> dict[str, Any]:
        """Where the disk differs from the layers it was started with; see ``Snapshot.effective``."""
        return self.snapshot().effective([*map(Path, self.layers), self.lab.image()])

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Fail when the block leaves anything on the host different: content, mode, owner, mtime, units."""
        before = self.snapshot()
        yield
        changes = before.changes(self.snapshot())
        assert not changes, f"{len(changes)} changes on the host:\n" + "\n".join(changes[:40])

    def inventory(self, path: Path, name: str | None = None, **settings: object) -> Path:
        """Write an inventory with this host alone; ``settings`` (``environment=``, ``service=``) go into its entry.

        Nothing else is needed to log in strictly: the key and the known_hosts file are named in it.
        """
        ssh = {"identity_files": [self.key], "known_hosts": [self.known_hosts], "agent": False}
        entry = {"address": self.address, "user": self.user, "ssh": ssh, **settings}
        path.write_text(json.dumps({"hosts": {name or self.name: entry}}, indent=2))  # JSON is YAML
        return path

    def ssh_home(self, home: Path) -> None:
        """Make ``home`` the home of a user who can log in here: ~/.ssh/config and ~/.ssh/known_hosts."""
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        (ssh / "config").write_text((self.lab.state / "ssh_config").read_text())
        (ssh / "known_hosts").write_text(Path(self.known_hosts).read_text())


@dataclass
class Lab:
    """One instance of testhost.sh: any number of hosts on a bridge of their own, apart from every other instance."""

    name: str
    hosts: dict[str, TestHost] = field(default_factory=dict)
    _own: int = -1
    _control: int = -1

    @property
    def state(self) -> Path:
        """The instance's folder: hosts.json, ssh_config, known_hosts, id."""
        return Path(os.environ.get("TESTHOST_STATE") or f"/run/testhost/{self.name}")

    def script(
        self,
        *words: str,
        check: bool = True,
        stdin: bytes = b"",
        timeout: float = 300,
        env: dict[str, str] | None = None,
    ) -> str:
        """Call testhost.sh; its stdout. LabError with its stderr when it fails and ``check`` is set."""
        done = subprocess.run(
            ["bash", str(SCRIPT), *words],
            input=stdin,
            capture_output=True,
            timeout=timeout,
            env={**os.environ, "TESTHOST_NAME": self.name, **(env or {})},
            check=False,
        )
        if check and done.returncode:
            text = (done.stderr + done.stdout).decode(errors="replace").strip()
            raise LabError(f"testhost.sh {' '.join(words)[:200]}: exit {done.returncode}\n{text}")
        return done.stdout.decode(errors="surrogateescape")

    def image(self) -> Path:
        """The root file system that every host starts from; built on first use (about 90 s)."""
        return Path(self.script("image", timeout=1800).split()[-1])

    @staticmethod
    def missing() -> str | None:
        """Why no host can be made on this machine, or None when one can."""
        done = subprocess.run(["bash", str(SCRIPT), "check"], capture_output=True, text=True, check=False)
        return (
            (done.stderr.strip().removeprefix("SKIP testhost: ") or "testhost.sh check failed")
            if done.returncode
            else None
        )

    def up(self) -> None:
        """Start the instance without hosts. It ends when this process does, however that ends."""
        text = self.script("up", "0", timeout=900, env={"TESTHOST_OWNER": str(os.getpid())})
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._control = os.open(f"/proc/{json.loads(text)['control_pid']}/ns/net", os.O_RDONLY)

    def add(
        self,
        layers: Sequence[Path] = (),
        *,
        disk: str = "2G",
        binds: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> TestHost:
        """Start one host over the given read-only layers, the first on top; about 0.7 s until it answers."""
        env = {
            "TESTHOST_LAYER": ":".join(map(str, layers)),
            "TESTHOST_DISK": disk,
            "TESTHOST_BIND": " ".join(binds),
            **(environment or {}),
        }
        facts = json.loads(self.script("add", env=env))["hosts"][0]
        keys = ("name", "address", "port", "user", "key", "known_hosts")
        host = TestHost(self, **{k: facts[k] for k in keys}, layers=tuple(map(str, layers)))
        self.hosts[host.name] = host
        return host

    def remove(self, host: TestHost) -> None:
        """End a host and forget its disk and keys."""
        self.script("rm", host.name)
        del self.hosts[host.name]

    def enter(self) -> None:
        """Move this thread into the control namespace; threads and processes started from here on follow."""
        _set_network(self._control)
        _inside[:] = [self]

    def leave(self) -> None:
        """Back to the machine's own network."""
        _set_network(self._own)
        _inside.clear()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """``enter`` and ``leave`` around a block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def down(self) -> None:
        """End every host of the instance."""
        if self._own >= 0:
            self.leave()
            os.close(self._own)
            os.close(self._control)
            self._own = self._control = -1
        self.script("down")
        self.hosts.clear()
