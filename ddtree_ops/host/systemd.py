"""systemd as a program sees it: ``systemctl show``, control groups, the journal, ``systemd-analyze verify``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import commands
from .protocol import HostError

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "ExecMainCode",
    "ExecMainStatus",
    "NRestarts",
    "ControlGroup",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "NeedDaemonReload",
    "InvocationID",
)
DROPIN_ROOT = "/run/systemd/system"
FIRST_START = "50-ddtree-first-start.conf"


def available() -> bool:
    """Whether systemd is PID 1 here (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


def systemctl(*args: str, timeout: float = 30.0, check: bool = True) -> commands.Ran:
    """Run ``systemctl``; with ``check`` a failure is a :class:`HostError` that repeats what it said."""
    ran = commands.run(["systemctl", "--no-pager", "--no-ask-password", *args], timeout=timeout)
    if check and not ran.ok:
        raise HostError(
            "systemctl",
            "systemctl %s failed: %s" % (" ".join(args), ran.complaint()),
            next="run it on the host, as the user of the inventory",
        )
    return ran


def show(unit: str) -> Dict[str, str]:
    """The properties of a unit; a unit that does not exist has ``LoadState=not-found``."""
    ran = systemctl("show", unit, "--property=" + ",".join(PROPERTIES))
    pairs = (line.partition("=") for line in ran.text().splitlines())
    return {name: value for name, _, value in pairs}


def state(unit: str) -> Dict[str, Any]:
    """What a unit does now: ``active``, ``sub``, ``result``, ``enabled``, ``main_pid``, ``pids``, ``restarts``."""
    found = show(unit)
    group = found.get("ControlGroup", "")
    return {
        "unit": unit,
        "load": found.get("LoadState", ""),
        "active": found.get("ActiveState", ""),
        "sub": found.get("SubState", ""),
        "result": found.get("Result", ""),
        "enabled": found.get("UnitFileState", ""),
        "main_pid": _number(found.get("MainPID")),
        "exit_code": _number(found.get("ExecMainCode")),
        "exit_status": _number(found.get("ExecMainStatus")),
        "restarts": _number(found.get("NRestarts")),
        "invocation": found.get("InvocationID", ""),
        "path": found.get("FragmentPath", ""),
        "drop_ins": found.get("DropInPaths", "").split(),
        "needs_reload": found.get("NeedDaemonReload") == "yes",
        "cgroup": group,
        "pids": group_processes(group),
    }


def _number(text: Optional[str]) -> int:
    return int(text) if text and text.isdigit() else 0


def group_processes(group: str) -> List[int]:
    """All processes of a control group and the groups in it (v2, hybrid or v1 hierarchy)."""
    if not group or group == "/":
        return []
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        base = root + group
        if os.path.isfile(os.path.join(base, "cgroup.procs")):
            return sorted({pid for folder, _, _ in os.walk(base) for pid in _procs(folder)})
    return []


def _procs(folder: str) -> List[int]:
    try:
        with open(os.path.join(folder, "cgroup.procs")) as file:
            return [int(line) for line in file if line.strip().isdigit()]
    except OSError:
        return []


# -- units on disk --


def verify(name: str, text: str) -> List[str]:
    """What ``systemd-analyze verify`` complains about in this unit text; nothing is installed.

    The exit status alone does not say enough: it also counts units of others that ours depends on, and older releases
    exit 0 on a key that they do not know. So the complaints that name our file count, and with
    ``--recursive-errors=yes`` (systemd 250) a failure that names nothing as well.
    """
    tool = commands.which("systemd-analyze")
    if not tool:
        return []
    folder = tempfile.mkdtemp(prefix="ddtree-verify-")
    try:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        ran = commands.run([tool, "verify", "--recursive-errors=yes", path], timeout=60.0)
        if b"unrecognized option" in ran.err:
            ran = commands.run([tool, "verify", path], timeout=60.0)
        said = [line.replace(folder + "/", "") for line in ran.err.decode("utf-8", "replace").splitlines() if line]
        ours = [line for line in said if name in line]
        if ran.error or (not ran.ok and not said):
            ours.append(ran.complaint())
        return ours
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def daemon_reload() -> None:
    """Make systemd read the unit files again."""
    systemctl("daemon-reload", timeout=60.0)


def restart_off(unit: str) -> None:
    """A run-time drop-in that turns automatic restarts off; a reboot forgets it by itself."""
    folder = os.path.join(DROPIN_ROOT, unit + ".d")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, FIRST_START), "w") as file:
        file.write("# ddtree-ops: a service that dies at its first start must not loop\n[Service]\nRestart=no\n")
    daemon_reload()


def restart_on(unit: str) -> bool:
    """Take the drop-in away again; returns whether there was one."""
    folder = os.path.join(DROPIN_ROOT, unit + ".d")
    try:
        os.unlink(os.path.join(folder, FIRST_START))
    except OSError:
        return False
    try:
        os.rmdir(folder)
    except OSError:
        pass
    daemon_reload()
    return True


# -- starting and stopping --


def start(unit: str, timeout: float = 120.0) -> None:
    """Start without waiting for readiness (``Type=exec``: returns once the program was executed)."""
    systemctl("reset-failed", unit, check=False)
    systemctl("start", unit, timeout=timeout)


def stop(unit: str, timeout: float = 180.0) -> Dict[str, Any]:
    """Stop, and wait until the control group is empty: schedulers may outlive the launcher."""
    systemctl("stop", unit, timeout=timeout)
    deadline = time.monotonic() + 20.0
    found = state(unit)
    while found["pids"] and time.monotonic() < deadline:
        time.sleep(0.2)
        found = state(unit)
    if found["pids"]:
        raise HostError(
            "still_running",
            "%s was stopped, but %d of its processes live" % (unit, len(found["pids"])),
            where="pids " + ", ".join(map(str, found["pids"][:10])),
            next="look at them on the host (ps -fp PID); nothing else was started",
            exit=9,
            details={"pids": found["pids"]},
        )
    return found


# -- the journal --


def cursor() -> str:
    """The journal's present end, "" when it is empty or cannot be read."""
    ran = commands.run(["journalctl", "--no-pager", "-q", "-n", "0", "--show-cursor"], timeout=20.0)
    match = re.search(r"^-- cursor: (.+)$", ran.text(), re.MULTILINE)
    return match.group(1) if match else ""


def journal(unit: str, after: str = "", lines: int = 0, since: float = 0.0) -> Tuple[List[str], str]:
    """Messages of a unit (its own and systemd's about it) after a cursor, and the new cursor."""
    argv = ["journalctl", "--no-pager", "-q", "-u", unit, "-o", "cat", "--show-cursor"]
    if after:
        argv.append("--after-cursor=" + after)
    elif since:
        argv.append("--since=@%d" % int(since))
    if lines:
        argv += ["-n", str(lines)]
    found = commands.run(argv, timeout=30.0).text().splitlines()
    if found and found[-1].startswith("-- cursor: "):
        return found[:-1], found[-1][len("-- cursor: ") :]
    return found, after


def follow(unit: str, lines: int) -> "subprocess.Popen[bytes]":
    """``journalctl -f`` with its output on a pipe."""
    argv: Sequence[str] = ["journalctl", "--no-pager", "-q", "-u", unit, "-o", "cat", "-n", str(lines), "-f"]
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
