"""Starting the program on the host: one constant command line, and what it means when nothing answers."""

from __future__ import annotations

from ..errors import DdtreeError, Refused, TransportError
from ..inventory import Host
from .bundle import Bundle

NO_PYTHON = "DDTREE-OPS-NO-PYTHON"

# Read by /bin/sh, but first by the account's login shell, which may be csh or fish: only single quotes, and inside them
# no quote, backslash, "!" or newline. What varies (interpreters to try, program, nonce) therefore comes over stdin.
_LOADER = (
    "import io,os,zlib; s=io.BufferedReader(io.FileIO(os.dup(0))); n,k=s.readline().split(); "
    "exec(zlib.decompress(s.read(int(n))))"
)
_OLD = "import sys; sys.exit(sys.version_info < (3, 8))"
_SCRIPT = (
    "IFS= read -r first; IFS= read -r last; "
    'for p in "$first" python3 /usr/bin/python3 /usr/local/bin/python3 "$last"; do '
    '[ -n "$p" ] && command -v "$p" >/dev/null 2>&1 '
    f'&& "$p" -I -S -c "{_OLD}" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -I -S -X utf8 -c "{_LOADER}"; '
    f"done; echo {NO_PYTHON} >&2; exit 127"
)
COMMAND = f"exec /bin/sh -c '{_SCRIPT}'"
SUDO_COMMAND = f"exec sudo -n -H /bin/sh -c '{_SCRIPT}'"


def command(host: Host, as_root: bool) -> str:
    """The command line for ``host``; sudo only where root is wanted and the account is not root already."""
    return SUDO_COMMAND if host.become and not as_root else COMMAND


def preamble(host: Host, nonce: str, program: Bundle, first: str = "") -> bytes:
    """What is sent before the first request: interpreters to try first and last, then the program's core."""
    last = f"{host.environment.rstrip('/')}/bin/python3" if host.environment else ""
    head = f"{host.python or first}\n{last}\n{len(program.packed)} {nonce}\n"
    return head.encode("utf-8", "surrogateescape") + program.packed


def needs_root(host: Host) -> list[str]:
    """What a deploy does with root's rights, for a message and for a sudoers line."""
    unit = host.service.unit
    items = [
        f"state under {host.state_root or '/var/lib/ddtree-ops'}",
        f"the unit file /etc/systemd/system/{unit}",
        f"systemctl daemon-reload, start, stop, enable, disable of {unit}",
    ]
    if host.environment:
        items.append(f"the editable install in {host.environment}, where the account may not write there")
    return items


def failure(host: Host, status: int | None, stderr: str, noise: str) -> DdtreeError:
    """The error for a helper that ended before its first word."""
    tail = "\n".join((stderr or noise).strip().splitlines()[-8:])
    if NO_PYTHON in stderr:
        tried = [host.python, "python3 on PATH", "/usr/bin/python3", "/usr/local/bin/python3"]
        tried.append(f"{host.environment}/bin/python3" if host.environment else "")
        return Refused(
            f"no Python 3.8 or newer was found on {host.name}",
            where=", ".join(place for place in tried if place),
            why="the program on the host is Python, standard library only",
            next_step=f"name an interpreter: `python: /path/to/python3` for {host.name} in the inventory",
            code="no_python",
        )
    if host.become and _sudo_refused(status, stderr):
        return Refused(
            f"sudo on {host.name} does not work without a password",
            where=f"{host.user or 'the account'} on {host.name}",
            why=f"{tail or 'sudo -n failed'}; root is needed for: " + "; ".join(needs_root(host)),
            next_step=f"allow it for this account (visudo: `{host.user or 'ACCOUNT'} ALL=(root) NOPASSWD: /bin/sh`), "
            "connect as root (`user: root`), or set `become: false` with `init: process`",
            code="sudo",
            details={"needs_root": needs_root(host), "stderr": tail},
        )
    ended = "was cut off" if status is None else f"ended with status {status}"
    return TransportError(
        f"the program on {host.name} {ended} before its first reply",
        where=host.address or host.name,
        why=tail or "it printed nothing",
        next_step=f"see what the account's shell does: ssh {host.address or host.name} /bin/sh -c true",
        details={"status": status, "stderr": tail},
    )


def _sudo_refused(status: int | None, stderr: str) -> bool:
    marks = ("password is required", "terminal is required", "not in the sudoers", "not allowed to", "may not run sudo")
    missing = "sudo" in stderr and "not found" in stderr
    return status not in (None, 0) and (missing or any(mark in stderr for mark in marks))
