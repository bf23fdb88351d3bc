"""Run a command with a deadline, both streams drained, and no exception: missing tools are an ordinary answer."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

#: Where tools are looked for besides PATH: a non-interactive login often lacks these.
EXTRA_PATH = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "~/.local/bin",
    "~/.cargo/bin",
    "/opt/conda/bin",
    "/usr/local/cuda/bin",
    "/snap/bin",
)


class Ran(NamedTuple):
    """Outcome of one command; ``error`` says why it has none (not found, timed out), ``code`` is then -1."""

    code: int
    out: bytes
    err: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        """The command ran and exited with 0."""
        return self.code == 0 and not self.error

    def text(self) -> str:
        """Standard output, undecodable bytes as lone surrogates."""
        return os.fsdecode(self.out)

    def lines(self) -> List[str]:
        """Standard output by lines, without empty ones."""
        return [line for line in self.text().splitlines() if line]

    def complaint(self) -> str:
        """The first thing that the command complained about, for a message."""
        text = self.error or self.err.decode("utf-8", "replace").strip()
        return text.splitlines()[0] if text else "exit status %d" % self.code


Run = Callable[..., Ran]


def search_path() -> str:
    """PATH of this process, then the usual places that it lacks."""
    entries = [entry for entry in os.environ.get("PATH", "").split(":") if os.path.isabs(entry)]
    for extra in map(os.path.expanduser, EXTRA_PATH):
        if extra not in entries:
            entries.append(extra)
    return ":".join(entries)


def which(name: str, path: Optional[str] = None) -> str:
    """Absolute path of the tool ``name``, "" when there is none."""
    for folder in (path or search_path()).split(":"):
        candidate = os.path.join(folder, name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return ""


def clean_environment(extra: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """An environment for probes: C locale, full PATH, no Python, git or loader settings of the login."""
    kept = {key: os.environ[key] for key in ("HOME", "USER", "LOGNAME", "TMPDIR") if key in os.environ}
    kept.update(PATH=search_path(), LC_ALL="C", LANGUAGE="C", PYTHONDONTWRITEBYTECODE="1")
    kept.update(extra or {})
    return kept


def run(
    argv: Sequence[str],
    timeout: float = 10.0,
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    stdin: bytes = b"",
) -> Ran:
    """Run ``argv``; on timeout its whole process group is ended. Never raises for what the host may lack."""
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=clean_environment() if env is None else env,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Ran(-1, b"", b"", "%s: %s" % (argv[0], getattr(error, "strerror", None) or error))
    try:
        out, err = child.communicate(stdin or None, timeout=timeout)
    except subprocess.TimeoutExpired:
        _end(child)
        return Ran(-1, b"", b"", "%s: no answer in %g s" % (os.path.basename(argv[0]), timeout))
    return Ran(child.returncode, out, err)


def _end(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        child.kill()
    try:
        child.communicate(timeout=1.0)
    except subprocess.TimeoutExpired:
        pass  # a grandchild in another session holds the pipes; it is not ours to hunt
