"""Waiting for a server: progress while it loads, and an end by silence, by death or by a limit, never by guess.

A server shows life by log lines, by GPU memory that changes, by bytes that it reads (weights), or by a compiler that
works for it. ``/health`` answers 503 until the warm-up request is through, and then takes about a second.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import commands, sockets
from .http import HEALTH_TIMEOUT, Client, HttpTrouble
from .logs import errors, phase
from .protocol import Emit, HostError
from .runner import Service

POLL_SECONDS = 1.0
GPU_EVERY_SECONDS = 4.0
_COMPILERS = ("nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "ninja", "ld", "tilelang")


class Limits(NamedTuple):
    """When to give up: ``total`` seconds in all, ``silence`` seconds without any sign of life."""

    total: float = 1800.0
    silence: float = 300.0


class Start(NamedTuple):
    """What :func:`..service.service_start` noted: where the log stood, and how often it had been restarted."""

    mark: str
    started: float
    restarts: int


class Watch:
    """One wait; :meth:`run` returns when the server answers and raises when it will not."""

    def __init__(self, service: Service, start: Start, limits: Limits, emit: Emit) -> None:
        self._service = service
        self._start = start
        self._limits = limits
        self._emit = emit
        self._client: Client = service.client()
        self._log = service.log(start.mark)
        self._lines: List[str] = []
        self._began = time.monotonic()
        self._phases: List[Tuple[str, float]] = [("starting", 0.0)]
        self._alive = self._began
        self._why_alive = "started"
        self._gpu: Dict[str, int] = {}
        self._gpu_first: Optional[int] = None
        self._gpu_at = 0.0
        self._read_bytes = 0
        self._gpu_tool = commands.which("nvidia-smi")

    @property
    def _phase(self) -> str:
        return self._phases[-1][0]

    def run(self) -> Dict[str, Any]:
        """Wait; the result says how long it took and which phases were seen."""
        while True:
            state = self._service.state()
            self._look(state)
            if self._died(state):
                raise self._death(state)
            health, status = self._ask(state)
            self._tell(status)
            if health:
                return {
                    "seconds": round(time.time() - self._start.started, 2) if self._start.started else None,
                    "waited": round(time.monotonic() - self._began, 2),
                    "phases": [{"phase": name, "at": at} for name, at in self._phases],
                    "gpu_mib": self._gpu_now(),
                    "main_pid": state["main_pid"],
                    "pids": state["pids"],
                    "restarts": state["restarts"],
                }
            self._give_up(state)
            time.sleep(POLL_SECONDS)

    # -- signs of life --

    def _look(self, state: Dict[str, Any]) -> None:
        lines = self._log.read()
        if lines:
            self._lines = (self._lines + lines)[-2000:]
            self._sign("log")
            for line in lines:  # each line counts: a quick phase begins and ends between two looks
                found = phase(line)
                if found and found != self._phase:
                    self._phases.append((found, round(time.monotonic() - self._began, 1)))
            self._emit({"kind": "log", "lines": lines[-50:]})
        if self._gpu_tool and time.monotonic() - self._gpu_at > GPU_EVERY_SECONDS:
            self._gpu_at = time.monotonic()
            now = gpu_memory(self._gpu_tool)
            if now != self._gpu:
                self._sign("GPU memory")
            self._gpu = now
            if self._gpu_first is None:
                self._gpu_first = sum(now.values())
        read = _bytes_read(state["pids"])
        if read > self._read_bytes + (1 << 20):
            self._sign("reading weights")
            self._read_bytes = read
        compiler = _compiler(state["pids"])
        if compiler:
            self._sign("compiling kernels (%s)" % compiler)

    def _sign(self, what: str) -> None:
        self._alive = time.monotonic()
        self._why_alive = what

    def _gpu_now(self) -> Optional[int]:
        return sum(self._gpu.values()) if self._gpu else None

    def _ask(self, state: Dict[str, Any]) -> Tuple[bool, str]:
        """Ask ``/health``, but only a socket of ours: an old server that still holds the port is no good news."""
        owners = sockets.owners(self._service.port, state["pids"])
        if not owners & set(state["pids"]):
            return False, "port held by pid %d, not ours" % min(owners) if owners else "not listening"
        try:
            reply = self._client.get("/health", timeout=HEALTH_TIMEOUT)
        except HttpTrouble as trouble:
            return False, trouble.kind
        if reply.status in (401, 403):
            raise HostError(
                "unauthorized",
                "%s refuses the API key (%d)" % (self._client.url, reply.status),
                next="put the key that the server wants into the secret SGLANG_DDTREE_API_KEY",
                exit=9,
            )
        return reply.status == 200, str(reply.status)

    def _tell(self, status: str) -> None:
        seconds = time.monotonic() - self._began
        event: Dict[str, Any] = {
            "kind": "progress",
            "step": "ready",
            "text": self._phase,
            "done": round(seconds, 1),
            "total": 0,
            "health": status,
            "quiet": round(time.monotonic() - self._alive, 1),
        }
        now = self._gpu_now()
        if now is not None:
            event["gpu_mib"] = now
            event["gpu_grown_mib"] = now - (self._gpu_first or 0)
        self._emit(event)

    # -- ends --

    def _died(self, state: Dict[str, Any]) -> bool:
        if state["restarts"] > self._start.restarts:
            return True
        return state["active"] in ("failed", "inactive")

    def _death(self, state: Dict[str, Any]) -> HostError:
        time.sleep(0.3)  # the journal gets the last words a moment later
        self._lines += self._log.read()
        found = errors(self._lines)
        how = "signal %d" % state["exit_status"] if state["exit_code"] in (2, 3) else "status %d" % state["exit_status"]
        return HostError(
            "service_died",
            "%s died while it started (%s)%s" % (self._service.unit, how, ": " + found[-1] if found else ""),
            where="phase: " + self._phase,
            next=self._advice(found),
            exit=9,
            details={"errors": found, "log": self._lines[-40:], "phase": self._phase, "state": state},
        )

    def _advice(self, found: Sequence[str]) -> str:
        text = " ".join(found)
        if "out of memory" in text.lower() and "graph" in self._phase:
            return "graph capture ran out of memory: a smaller `--cuda-graph-max-bs` or a smaller budget"
        if "out of memory" in text.lower():
            return "lower `--mem-fraction-static` or free the GPU"
        if "already in use" in text.lower():
            return "another process holds port %d: `ddtree-ops status`" % self._service.port
        return "ddtree-ops logs -n 200"

    def _give_up(self, state: Dict[str, Any]) -> None:
        now = time.monotonic()
        quiet, total = now - self._alive, now - self._began
        if quiet < self._limits.silence and total < self._limits.total:
            return
        silent = quiet >= self._limits.silence
        what = "showed no sign of life for %.0f s" % quiet if silent else "is not ready after %.0f s" % total
        raise HostError(
            "not_ready",
            "%s %s (last phase: %s)" % (self._service.unit, what, self._phase),
            where="last progress %.0f s ago: %s" % (quiet, self._why_alive),
            next="ddtree-ops logs -f; give `ready` a longer `%s` if it is still loading"
            % ("silence" if silent else "timeout"),
            exit=9,
            details={"errors": errors(self._lines), "log": self._lines[-40:], "phase": self._phase, "state": state},
        )


def gpu_memory(tool: str) -> Dict[str, int]:
    """Used memory in MiB per GPU, by UUID; empty when the driver does not answer."""
    ran = commands.run([tool, "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"], timeout=10.0)
    found: Dict[str, int] = {}
    for line in ran.lines():
        uuid, _, used = line.partition(",")
        if used.strip().isdigit():
            found[uuid.strip()] = int(used)
    return found


def _bytes_read(pids: Sequence[int]) -> int:
    total = 0
    for pid in pids:
        try:
            with open("/proc/%d/io" % pid) as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith(("read_bytes:", "rchar:")))
        except (OSError, ValueError):
            continue
    return total


def _compiler(pids: Sequence[int]) -> str:
    for pid in pids:
        try:
            with open("/proc/%d/comm" % pid) as file:
                name = file.read().strip()
        except OSError:
            continue
        if os.path.basename(name) in _COMPILERS:
            return name
    return ""


def wait_ready(params: Dict[str, Any], service: Service, emit: Emit) -> Dict[str, Any]:
    """``params``: ``start`` (the result of ``service_start``), ``timeout``, ``silence`` (seconds)."""
    noted = dict(params.get("start") or {})
    start = Start(str(noted.get("mark") or ""), float(noted.get("started") or 0), int(noted.get("restarts") or 0))
    defaults = Limits()
    limits = Limits(
        float(params.get("timeout") or defaults.total),
        float(params.get("silence") or defaults.silence),
    )
    return Watch(service, start, limits, emit).run()
