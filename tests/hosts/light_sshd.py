"""A light host: a real OpenSSH sshd on 127.0.0.1 and a random port, without systemd; root is not needed."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

_SBIN = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:" + os.environ.get("PATH", "")
_SFTP = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
    "/usr/libexec/sftp-server",
)
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {dir}/host_key
AuthorizedKeysFile {dir}/authorized_keys
PidFile {dir}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
PrintMotd no
UseDNS no
LogLevel VERBOSE
AllowTcpForwarding yes
Subsystem sftp {sftp}
"""


def find_sshd() -> str | None:
    """The absolute path of sshd (it refuses to start under a relative one), or None."""
    return shutil.which("sshd", path=_SBIN)


class LightHost:
    """One sshd with its own host key, client key and known_hosts file; a context manager.

    Terminating the listener leaves live sessions alive, as ``systemctl stop ssh`` does: ``stop(sessions=True)``
    ends them too, and leaving the ``with`` block always does.
    """

    name = "light"
    address = "127.0.0.1"

    def __init__(self, options: str = "") -> None:
        """``options`` are further lines for sshd_config; they stand first, and sshd takes the first value it meets."""
        self.options = options
        self.user = getpass.getuser()
        self.port = 0
        self.dir = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def key(self) -> str:
        """Path of the private key that this host accepts."""
        return str(self.dir / "client_key")

    @property
    def known_hosts(self) -> str:
        """Path of a known_hosts file that holds this host's true key."""
        return str(self.dir / "known_hosts")

    def __enter__(self) -> LightHost:
        sshd = find_sshd()
        if sshd is None:
            raise RuntimeError("openssh-server is not installed")
        self.dir = Path(tempfile.mkdtemp(prefix="lighthost-"))
        if os.geteuid() == 0:  # a root sshd wants its privilege separation folder, which only an init makes
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for name in ("host_key", "client_key"):
            self.make_key(name)
        shutil.copyfile(self.dir / "client_key.pub", self.dir / "authorized_keys")
        (self.dir / "authorized_keys").chmod(0o600)
        for _ in range(20):  # another process may take the free port between our look and sshd's bind
            if self._start(sshd):
                break
        else:
            raise RuntimeError((self.dir / "sshd.log").read_text())
        public = " ".join((self.dir / "host_key.pub").read_text().split()[:2])
        Path(self.known_hosts).write_text(f"[127.0.0.1]:{self.port} {public}\n")
        return self

    def make_key(self, name: str) -> Path:
        """Make another key pair in the host's folder (for a wrong client key, say); its path."""
        path = self.dir / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True)
        return path

    def _start(self, sshd: str) -> bool:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        sftp = next((path for path in _SFTP if Path(path).exists()), "internal-sftp")
        config = self.dir / "sshd_config"
        text = _CONFIG.format(port=self.port, dir=self.dir, user=self.user, sftp=sftp)
        config.write_text(self.options.format(dir=self.dir) + "\n" + text)
        self._log = (self.dir / "sshd.log").open("wb")
        self._process = subprocess.Popen(
            [sshd, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self._answers(time.monotonic() + 10)

    def _answers(self, end: float) -> bool:
        assert self._process is not None
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with socket.create_connection((self.address, self.port), 0.5) as link:
                    return link.recv(4) == b"SSH-"
            except OSError:
                time.sleep(0.01)
        return False

    def sessions(self) -> list[int]:
        """Process ids of the live connections: children of the listener, each in a session of its own."""
        assert self._process is not None
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == self._process.pid:
                    found.append(int(stat.parent.name))
        return found

    def stop(self, *, sessions: bool = False) -> None:
        """End the listener, and with ``sessions`` also every live connection."""
        if self._process is None:
            return
        live = self.sessions() if sessions else []
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
        for pid in live:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def __exit__(self, *exc: object) -> None:
        self.stop(sessions=True)
        if self._log:
            self._log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
