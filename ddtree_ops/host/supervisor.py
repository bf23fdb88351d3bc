"""Supervisor of one service where PID 1 is not systemd: a program of its own, written to the host and run alone.

    python3 -I supervisor.py CONFIG.json

It starts the service in a session of its own, adopts what the service leaves behind (as a child subreaper), restarts
it after a failure within limits, and ends *all* of it when told to stop. No process is ever chosen by name. Imports
nothing of this package: :mod:`.procrun` writes this file's source to the host and reads what it reports.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Set

PR_SET_CHILD_SUBREAPER = 36
NO_RESTART = "no-restart"  # a file in the run folder: set while a deploy watches the first start
STATE = "supervisor.json"


def start_time(pid: int) -> int:
    """Start of a process in clock ticks since boot (field 22 of ``/proc/PID/stat``); 0 when it is gone."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def stat_fields(pid: int) -> List[str]:
    """Fields 3 and on of ``/proc/PID/stat``: state, ppid, pgrp, session, ...; empty when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().decode("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def boot_id() -> str:
    """This boot's name; "" where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def write_json(path: str, value: Dict[str, Any]) -> None:
    """Replace ``path`` by ``value`` in one step."""
    temporary = "%s.%d.new" % (path, os.getpid())
    with open(temporary, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)


def raise_limits() -> None:
    """Locked memory and open files up to the hard limits: the soft ones are too low for GPU hosts."""
    for number in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE):
        _, hard = resource.getrlimit(number)
        try:
            resource.setrlimit(number, (hard, hard))
        except (OSError, ValueError):
            pass


class Supervisor:
    """One service; ``run`` returns when it has ended for good."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._state_path = os.path.join(config["run_dir"], STATE)
        self._child: Optional["subprocess.Popen[bytes]"] = None
        self._sessions: Dict[int, int] = {}  # session leader -> its start time
        self._stopping = False
        self._starts: List[float] = []
        self._restarts = 0

    def run(self) -> int:
        """Start, watch, restart; the exit status is 0 after a stop, 1 after a failure."""
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        raise_limits()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while True:
            self._start()
            status = self._wait()
            self._end_rest()
            if self._stopping:
                self._report("inactive", status)
                return 0
            if status == 0 or not self._may_restart():
                self._report("inactive" if status == 0 else "failed", status)
                return 0 if status == 0 else 1
            self._restarts += 1
            self._report("activating", status)
            self._nap(float(self._config["restart"]["delay"]))
            if self._stopping:
                self._report("inactive", status)
                return 0

    def _start(self) -> None:
        self._starts.append(time.time())
        self._child = subprocess.Popen(
            self._config["argv"],
            env=self._config["environment"],
            cwd=self._config.get("directory") or self._config["run_dir"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._sessions[self._child.pid] = start_time(self._child.pid)
        self._report("active", None)

    def _wait(self) -> int:
        """Reap until the service's first process ends; orphans that came to us are reaped on the way."""
        assert self._child is not None
        deadline = 0.0
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 1
            if pid == self._child.pid:
                return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            if pid == 0:
                if self._stopping and not deadline:
                    deadline = time.monotonic() + float(self._config["timeout_stop"])
                    self._signal([self._child.pid], signal.SIGTERM)
                if deadline and time.monotonic() > deadline:
                    self._signal([self._child.pid], signal.SIGKILL)
                time.sleep(0.1)

    def _end_rest(self) -> None:
        """Kill what the service left behind, until nothing of it lives."""
        for _ in range(100):
            rest = sorted(self.members())
            if not rest:
                return
            self._signal(rest, signal.SIGKILL)
            time.sleep(0.05)
            self._reap()

    def members(self) -> Set[int]:
        """Every process of the service: our descendants, and the sessions that we opened."""
        parents: Dict[int, int] = {}
        found: Set[int] = set()
        for name in os.listdir("/proc"):
            fields = stat_fields(int(name)) if name.isdigit() else []
            if len(fields) < 20 or fields[0] in "ZX":
                continue
            pid, parents[int(name)] = int(name), int(fields[1])
            session = int(fields[3])
            if session in self._sessions and start_time(session) in (0, self._sessions[session]):
                found.add(pid)
        own = os.getpid()
        for pid in parents:
            chain, at = [pid], parents[pid]
            while at in parents and at != own and len(chain) < 100:
                chain.append(at)
                at = parents[at]
            if at == own:
                found.update(chain)
        return found - {own}

    def _reap(self) -> None:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    def _may_restart(self) -> bool:
        if os.path.exists(os.path.join(self._config["run_dir"], NO_RESTART)):
            return False
        limits = self._config["restart"]
        recent = [at for at in self._starts if at > time.time() - float(limits["interval"])]
        return len(recent) < int(limits["burst"])

    def _report(self, active: str, status: Optional[int]) -> None:
        child = self._child.pid if self._child is not None else 0
        state = {
            "active": active,
            "pid": os.getpid(),
            "start_time": start_time(os.getpid()),
            "boot_id": boot_id(),
            "child": child,
            "child_start_time": self._sessions.get(child, 0),
            "sessions": {str(pid): started for pid, started in self._sessions.items()},
            "status": status,
            "restarts": self._restarts,
            "since": time.time(),
        }
        try:
            write_json(self._state_path, state)
        except OSError as error:
            print("supervisor: %s" % error, file=sys.stderr, flush=True)

    def _stop(self, _number: int, _frame: Any) -> None:
        self._stopping = True

    def _nap(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping:
            time.sleep(0.1)

    @staticmethod
    def _signal(pids: List[int], number: int) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except OSError:
                pass


def main() -> int:
    """Read the configuration that :mod:`.procrun` wrote, and run."""
    with open(sys.argv[1]) as file:
        config = json.load(file)
    os.unlink(sys.argv[1])  # it holds the whole environment, secrets included
    return Supervisor(config).run()


if __name__ == "__main__":
    sys.exit(main())
