"""One face for both ways a service runs: a systemd unit, or a process group of our own.

Every verb and operation about a service takes the same ``service`` object::

    {"unit": "sglang-ddtree.service", "init": "systemd" | "process", "path": the unit's file, "run_dir": ...,
     "secrets_file": ..., "address": "127.0.0.1", "port": 30000}

``path`` matters to ``init: process`` alone; a unit of systemd is found by its name. For a server that is not ours
(takeover), ``unit``, ``init``, ``address`` and ``port`` are enough.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List

from . import procrun, systemd
from .http import Client, Redactor, api_key, redactor
from .logs import FileLog, JournalLog, Log
from .protocol import HostError

State = Dict[str, Any]


class Service:
    """A service on this host, by the ``service`` object of a request."""

    def __init__(self, found: Any) -> None:
        if not isinstance(found, dict) or not found.get("unit"):
            raise HostError("bad_params", "parameter 'service' must be an object with a 'unit'", exit=1)
        self.ref: Dict[str, Any] = dict(found)
        self.unit = str(found["unit"])
        self.init = str(found.get("init") or "systemd")
        self.path = str(found.get("path") or "")
        self.run_dir = str(found.get("run_dir") or "")
        self.secrets_file = str(found.get("secrets_file") or "")
        self.address = str(found.get("address") or "127.0.0.1")
        self.port = int(found.get("port") or 0)
        if self.init not in ("systemd", "process"):
            raise HostError("bad_params", "init must be systemd or process, not %r" % self.init, exit=1)
        if self.init == "systemd" and not systemd.available():
            raise HostError(
                "no_systemd",
                "systemd is not PID 1 on this host",
                where="/run/systemd/system does not exist",
                next="set `init: process` for this host in the inventory; such a service does not survive a reboot",
            )
        self._process = procrun.ProcessUnit(self.unit, self.path)

    # -- what it does --

    def state(self) -> State:
        """Active, enabled, processes; see :func:`.systemd.state`."""
        return systemd.state(self.unit) if self.init == "systemd" else self._process.state()

    def running(self) -> bool:
        """Whether anything of it is alive or about to be."""
        found = self.state()
        return found["active"] in ("active", "activating", "reloading", "deactivating") or bool(found["pids"])

    def start(self, first: bool = False) -> None:
        """Start; with ``first`` it is not restarted by itself when it dies (until :meth:`settle`)."""
        if self.init == "process":
            self._process.start(restart=not first)
            return
        if first:
            systemd.restart_off(self.unit)
        systemd.start(self.unit)

    def stop(self) -> State:
        """Stop all of it, and wait until no process of it lives."""
        return systemd.stop(self.unit) if self.init == "systemd" else self._process.stop()

    def settle(self) -> bool:
        """Allow automatic restarts again; returns whether they had been off."""
        return systemd.restart_on(self.unit) if self.init == "systemd" else self._process.restart_on()

    # -- how to talk to it --

    def client(self) -> Client:
        """A client for its API, with the key that it asks for."""
        if not self.port:
            raise HostError("bad_params", "the service object names no port", exit=1)
        pid = 0 if self.secrets_file else int(self.state()["main_pid"])
        return Client(self.address, self.port, api_key(self.secrets_file, pid))

    def redactor(self) -> Redactor:
        """Replaces this service's secrets in text."""
        return redactor(self.secrets_file)

    def mark(self) -> str:
        """The present end of its log, for :meth:`log`."""
        if self.init == "systemd":
            return systemd.cursor() or "@%d" % time.time()
        return FileLog(self._process.log_path()).mark()

    def log(self, after: str = "") -> Log:
        """Its log from a mark on; "" is everything that is kept."""
        if self.init == "systemd":
            return JournalLog(self.unit, after, self.redactor())
        return FileLog(self._process.log_path(), after, self.redactor())

    def last_lines(self, lines: int) -> List[str]:
        """The last lines of its log."""
        if self.init == "systemd":
            found = systemd.journal(self.unit, lines=lines)[0]
        else:
            found = procrun.tail(self._process.log_path(), lines)
        hide = self.redactor()
        return [hide(line) for line in found]


def service_of(params: Dict[str, Any]) -> Service:
    """The service that a request names."""
    return Service(params.get("service"))
