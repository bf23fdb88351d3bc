"""The process runner: what systemd does for a unit, for hosts whose PID 1 is not systemd (``init: process``).

The "unit" is a JSON file (``ddtree-process/1``, written by the controller) with the argument vector, the environment
and the run folder. :mod:`.supervisor` runs it, detached from the ssh session: own session, all streams redirected.
Every process is told apart by pid *and* start time *and* boot, so a pid that was given to somebody else is never
signalled. Nothing starts at boot, and ``state`` says so (``enabled`` is ``static``).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from . import supervisor
from .http import read_secrets
from .protocol import HostError

SCHEMA = "ddtree-process/1"


class ProcessUnit:
    """One service of the process runner; ``path`` is its JSON file."""

    def __init__(self, unit: str, path: str) -> None:
        self.unit = unit
        self.path = path

    # -- what it is --

    def config(self) -> Dict[str, Any]:
        """The unit's JSON; a missing or foreign file is a :class:`HostError`."""
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError) as error:
            raise HostError("no_unit", "the service file cannot be read: %s" % error, where=self.path) from None
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise HostError("no_unit", "the service file is not one of ddtree-ops", where=self.path)
        return found

    @property
    def exists(self) -> bool:
        """Whether the unit's file is there."""
        return os.path.isfile(self.path)

    def state(self) -> Dict[str, Any]:
        """The same keys as :func:`.systemd.state`; ``pids`` are all living processes of the service."""
        report = self._report() if self.exists else {}
        living = self._supervisor_lives(report)
        pids = sorted(self._members(report)) if report else []
        active = str(report.get("active", "inactive"))
        if not living and active in ("active", "activating"):
            active = "failed"  # the supervisor was killed
        status = report.get("status")
        status = status if isinstance(status, int) else 0
        return {
            "unit": self.unit,
            "load": "loaded" if self.exists else "not-found",
            "active": active,
            "sub": "running" if active == "active" else "dead",
            "result": "success" if active != "failed" else ("signal" if status < 0 else "exit-code"),
            "enabled": "static" if self.exists else "",
            "main_pid": int(report.get("child") or 0) if active == "active" else 0,
            "exit_code": 2 if status < 0 else 1,  # CLD_KILLED, CLD_EXITED
            "exit_status": abs(status),
            "restarts": int(report.get("restarts") or 0),
            "invocation": "%s-%s" % (report.get("pid"), report.get("start_time")) if report else "",
            "path": self.path,
            "drop_ins": [],
            "needs_reload": False,
            "cgroup": "",
            "pids": pids,
        }

    def log_path(self) -> str:
        """The file that takes the service's output."""
        return str(self.config()["log"])

    # -- starting and stopping --

    def start(self, restart: bool = True, timeout: float = 15.0) -> None:
        """Start the supervisor and the service under it; a service that runs already is left alone."""
        if self.state()["pids"]:
            return
        config = self.config()
        run_dir = str(config["run_dir"])
        _fresh_folder(run_dir)
        if not restart:
            open(os.path.join(run_dir, supervisor.NO_RESTART), "w").close()
        secrets = read_secrets(str(config.get("secrets_file") or ""))
        config["environment"] = dict(_base_environment(), **config["environment"])
        config["environment"].update(secrets)
        program = self._write_program()
        handed = os.path.join(run_dir, "start.json")
        _write_private(handed, json.dumps(config))
        with open(self._rotated_log(config), "ab", buffering=0) as log:
            child = subprocess.Popen(
                [sys.executable or "python3", "-I", program, handed],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=_base_environment(),
                start_new_session=True,
            )
        self._await_report(child, timeout)

    def _await_report(self, child: "subprocess.Popen[bytes]", timeout: float) -> None:
        _STARTED[child.pid] = child
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._report().get("pid") == child.pid:
                return
            if child.poll() is not None:
                del _STARTED[child.pid]
                break
            time.sleep(0.05)
        raise HostError(
            "service_died",
            "the supervisor of %s did not start" % self.unit,
            where=self.log_path(),
            exit=9,
            details={"log": tail(self.log_path(), 20)},
        )

    def stop(self, timeout: float = 180.0) -> Dict[str, Any]:
        """Stop the whole service and wait until none of its processes lives."""
        report = self._report()
        if self._supervisor_lives(report):
            _signal(int(report["pid"]), signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            _reap(int(report.get("pid") or 0))
            if not self._supervisor_lives(report):
                rest = self._members(report)
                if not rest:
                    return self.state()
                for pid in rest:  # the supervisor was killed before; what it left is ours by session and start time
                    _signal(pid, signal.SIGKILL)
            time.sleep(0.1)
        rest_now = sorted(self._members(report))
        raise HostError(
            "still_running",
            "%s was stopped, but %d of its processes live" % (self.unit, len(rest_now)),
            where="pids " + ", ".join(map(str, rest_now[:10])),
            exit=9,
            details={"pids": rest_now},
        )

    def restart_on(self) -> bool:
        """Allow restarts after failures; returns whether they had been off."""
        try:
            os.unlink(os.path.join(str(self.config()["run_dir"]), supervisor.NO_RESTART))
            return True
        except OSError:
            return False

    # -- what runs --

    def _report(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(str(self.config()["run_dir"]), supervisor.STATE)) as file:
                found = json.load(file)
        except (OSError, ValueError, HostError):
            return {}
        if not isinstance(found, dict) or found.get("boot_id") != supervisor.boot_id():
            return {}
        return found

    @staticmethod
    def _supervisor_lives(report: Dict[str, Any]) -> bool:
        pid = int(report.get("pid") or 0)
        fields = supervisor.stat_fields(pid) if pid else []
        return len(fields) > 19 and fields[0] not in "ZX" and int(fields[19]) == report.get("start_time")

    def _members(self, report: Dict[str, Any]) -> Set[int]:
        """Processes of the service, without the supervisor: its descendants and the sessions that it opened."""
        sessions = {int(pid): int(started) for pid, started in dict(report.get("sessions") or {}).items()}
        table = _process_table()
        found = {
            pid
            for pid, (_, session, _) in table.items()
            if session in sessions and (session not in table or table[session][2] == sessions[session])
        }
        if self._supervisor_lives(report):
            root = int(report["pid"])
            frontier = {root}
            while frontier:
                frontier = {pid for pid, (parent, _, _) in table.items() if parent in frontier} - found - {root}
                found |= frontier
        return found

    # -- files --

    def _write_program(self) -> str:
        path = os.path.join(os.path.dirname(self.path), "supervisor.py")
        loader = getattr(supervisor, "__loader__", None)
        source = loader.get_source(supervisor.__name__) if loader is not None else None
        if not source:
            raise HostError("bug", "the supervisor's source is not at hand", exit=1)
        temporary = "%s.%d.new" % (path, os.getpid())
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(source)
        os.replace(temporary, path)
        return path

    @staticmethod
    def _rotated_log(config: Dict[str, Any]) -> str:
        path = str(config["log"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path):
            os.replace(path, path + ".1")
        return path


def tail(path: str, lines: int, most: int = 256 * 1024) -> List[str]:
    """The last lines of a file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most))
            return file.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def _process_table() -> Dict[int, Tuple[int, int, int]]:
    """Living processes: pid -> (parent, session, start time in ticks)."""
    table: Dict[int, Tuple[int, int, int]] = {}
    for name in os.listdir("/proc"):
        fields = supervisor.stat_fields(int(name)) if name.isdigit() else []
        if len(fields) > 19 and fields[0] not in "ZX":
            table[int(name)] = (int(fields[1]), int(fields[3]), int(fields[19]))
    return table


def _base_environment() -> Dict[str, str]:
    """What a login gives and a service may want; nothing that changes what Python imports."""
    kept = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ}


def _fresh_folder(path: str) -> None:
    """An empty run folder: what another start left there must not be taken for ours."""
    os.makedirs(path, exist_ok=True)
    for name in os.listdir(path):
        try:
            os.unlink(os.path.join(path, name))
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ENOENT, errno.EPERM):
                raise


def _write_private(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


#: Supervisors that this very program started: they are its children until it ends, then init's.
_STARTED: Dict[int, "subprocess.Popen[bytes]"] = {}


def _reap(pid: int) -> None:
    """Collect the status of a supervisor of ours, so that it is no zombie."""
    child = _STARTED.get(pid)
    if child is not None and child.poll() is not None:
        del _STARTED[pid]


def find(unit: str, path: str) -> Optional[ProcessUnit]:
    """The process unit of this name, when its file is there."""
    found = ProcessUnit(unit, path)
    return found if found.exists else None
