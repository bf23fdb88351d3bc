"""Arms of a bench on the host: units that live in ``/run`` only, and what is read back from them.

A bench is a transaction that always ends with its undo: each operation records the way back before it changes
anything, so the user's own service runs again and no arm is left behind, whether the bench ends well, fails, is
interrupted, loses its controller, or the machine goes down (``recover``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import commands, durable, systemd
from .budget import counters_of, settings_of
from .http import HttpTrouble
from .ops import Params, Tx, Work, absolute, need, op, undoer
from .protocol import Emit, HostError, verb
from .readiness import gpu_memory
from .runner import Service, service_of

TRANSIENT = "/run/systemd/system"
TRACE = "trace.jsonl"
PORTS = 200  # how many ports after the service's own are tried
SETTLE_SECONDS = 4.0
BEAT_SECONDS = 1.1  # a beacon follows its process by about a second
REQUEST_STEPS = "requests"  # the payload's counter of verify steps, each request of a batch counted
#: Answers of the server's information that never leave the host.
_SECRET_KEYS = ("api_key", "admin_api_key", "ssl_keyfile_password", "ssl_keyfile", "ssl_certfile")


# -- units in /run --


@op("arm_install", must_hold=False)
def arm_install(tx: Tx, params: Params) -> Params:
    """Write the unit of an arm: ``service``, ``text``; for systemd under ``/run``, where a reboot forgets it.

    Undo: no trace of it. Refuses a path that is not the arm's own place, and a unit that systemd complains about.
    """
    service = service_of(params)
    path = absolute(params["service"], "path")
    text = str(need(params, "text"))
    _refuse_place(service, path, tx.state_root)
    if service.init == "systemd":
        said = systemd.verify(service.unit, text)
        if said:
            raise HostError(
                "unit_invalid",
                "systemd-analyze verify complains about the arm's unit: %s" % said[0],
                where=service.unit,
                next="correct the service settings in the inventory",
                details={"complaints": said},
            )
    tx.will("forget_arm", {"service": service.ref}, "write %s" % path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    durable.replace_bytes(path, text.encode("utf-8"), 0o644)
    if service.init == "systemd":
        systemd.daemon_reload()
        found = systemd.state(service.unit)
        if found["load"] != "loaded" or found["path"] != path:
            raise HostError("unit_not_seen", "systemd does not use %s" % path, where=found["path"] or found["load"])
    return {"path": path, "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest()}


def _refuse_place(service: Service, path: str, state_root: str) -> None:
    wanted = TRANSIENT if service.init == "systemd" else os.path.join(state_root, "services")
    if os.path.dirname(path) != wanted:
        raise HostError("bad_params", "the unit of an arm belongs into %s, not at %s" % (wanted, path), exit=1)
    if service.init == "systemd" and systemd.state(service.unit)["path"] not in ("", path):
        raise HostError(
            "unit_foreign",
            "a unit called %s exists already" % service.unit,
            where=systemd.state(service.unit)["path"],
            next="rename it: bench uses this name for one of its arms",
        )


@op("arm_forget", must_hold=False)
def arm_forget(tx: Tx, params: Params) -> Params:
    """Take the unit of a stopped arm away: ``service``."""
    forget(service_of(params))
    return {}


@undoer("forget_arm")
def forget_arm(work: Work, data: Params) -> None:
    """The same on the way back; the arm was stopped before, by the undo of its start."""
    forget(Service(data["service"]))


def forget(service: Service) -> None:
    """Remove unit, run folder and log of an arm. Raises ``still_running`` rather than to lose sight of a process."""
    if service.running():
        raise HostError("still_running", "the arm %s still runs" % service.unit, next="ddtree-ops recover", exit=9)
    if service.init == "systemd":
        systemd.restart_on(service.unit)
        if os.path.exists(service.path):
            durable.discard(service.path)
            systemd.daemon_reload()
        systemd.systemctl("reset-failed", service.unit, check=False)
        return
    stem = service.path[: -len(".json")] if service.path.endswith(".json") else service.path
    for name in (service.path, stem + ".log", stem + ".log.1"):
        durable.discard(name)
    if os.path.basename(service.run_dir) == os.path.basename(stem):
        shutil.rmtree(service.run_dir, ignore_errors=True)


# -- between two arms --


@op("gpu_settle", must_hold=False)
def gpu_settle(tx: Tx, params: Params) -> Params:
    """Wait until GPU memory is back: at most ``tolerance_mib`` above ``baseline`` (MiB by GPU), or, without a baseline,
    until it no longer falls. ``gpus``: indices or UUIDs to look at, all by default.

    Result: ``gpus`` (MiB by UUID; null where there is no nvidia-smi) and ``seconds``. Raises ``gpu_busy`` with the
    figures after ``timeout`` seconds.
    """
    tool = commands.which("nvidia-smi")
    if not tool:
        return {"gpus": None, "seconds": 0.0}
    tolerance, timeout = int(params.get("tolerance_mib") or 64), float(params.get("timeout") or 120.0)
    baseline: Optional[Dict[str, int]] = params.get("baseline")
    started, before = time.monotonic(), _memory(tool, params)
    while True:
        now = _memory(tool, params)
        seconds = time.monotonic() - started
        above = {gpu: used - baseline.get(gpu, used) for gpu, used in now.items()} if baseline is not None else {}
        settled = max(above.values()) <= tolerance if above else seconds > 0 and _steady(before, now, tolerance)
        if settled:
            return {"gpus": now, "seconds": round(seconds, 1)}
        if seconds > timeout:
            raise HostError(
                "gpu_busy",
                "GPU memory is not back after %.0f s: %s" % (seconds, _figures(now, baseline)),
                where="nvidia-smi",
                next="nvidia-smi on the host names the process that holds it; end it, then run again",
                exit=8,
                details={"now": now, "baseline": baseline, "tolerance_mib": tolerance},
            )
        tx.progress("gpu", "GPU memory %s" % _figures(now, baseline))
        before = now
        time.sleep(1.0)


def _memory(tool: str, params: Mapping[str, Any]) -> Dict[str, int]:
    wanted = [str(gpu) for gpu in params.get("gpus") or ()]
    found = gpu_memory(tool)
    if not found:
        raise HostError("nvidia_smi", "nvidia-smi does not tell the used memory", where=tool, exit=8)
    if not wanted:
        return found
    chosen = {u: used for i, (u, used) in enumerate(found.items()) if str(i) in wanted or u in wanted}
    return chosen or found


def _steady(before: Mapping[str, int], now: Mapping[str, int], tolerance: int) -> bool:
    return all(before.get(gpu, used) - used <= tolerance // 4 for gpu, used in now.items())


def _figures(now: Mapping[str, int], baseline: Optional[Mapping[str, int]]) -> str:
    if baseline is None:
        return ", ".join("%s %d MiB" % (gpu[:12], used) for gpu, used in sorted(now.items()))
    return ", ".join(
        "%s %d MiB, baseline %d MiB" % (gpu[:12], used, baseline.get(gpu, 0)) for gpu, used in sorted(now.items())
    )


@verb("free_port")
def free_port(params: Params, emit: Emit) -> Params:
    """The first port after ``near`` on loopback that nobody holds: arms never answer for the user's service."""
    near = int(need(params, "near"))
    for port in range(near + 1, min(near + 1 + PORTS, 65536)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return {"port": port}
    raise HostError("no_port", "no port from %d to %d is free on loopback" % (near + 1, near + PORTS))


# -- what is read back --


@verb("arm_facts")
def arm_facts(params: Params, emit: Emit) -> Params:
    """``arguments``: everything that the server says it runs with, less secrets and its state; ``settings`` and
    ``counters`` of the processes; ``state`` (numbers of the scheduler)."""
    service = service_of(params)
    arguments, state = _arguments(service)
    return {
        "arguments": arguments,
        "state": state,
        "settings": settings_of(service),
        "counters": counters_of(service),
    }


@verb("arm_counters")
def arm_counters(params: Params, emit: Emit) -> Params:
    """``counters`` of the processes, which a beacon shows about a second late.

    ``since``: an earlier answer; ``steps``: verify steps that the server's answers have counted after it. They are
    waited for, at most :data:`SETTLE_SECONDS`. Without both: until two readings a beat apart are the same.
    """
    service, since = service_of(params), dict(params.get("since") or {})
    deadline = time.monotonic() + SETTLE_SECONDS
    found = counters_of(service)
    if params.get("steps") and isinstance(found.get(REQUEST_STEPS), int):
        target = int(since.get(REQUEST_STEPS) or 0) + int(params["steps"])
        while found.get(REQUEST_STEPS, 0) < target and time.monotonic() < deadline:
            time.sleep(0.1)
            found = counters_of(service)
        return {"counters": found}
    while found and time.monotonic() < deadline:
        time.sleep(BEAT_SECONDS)
        again = counters_of(service)
        if again == found:
            break
        found = again
    return {"counters": found}


def _arguments(service: Service) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    client = service.client()
    hide = service.redactor()
    for path in ("/server_info", "/get_server_info"):
        try:
            reply = client.get(path, timeout=20.0)
        except HttpTrouble as trouble:
            raise HostError("server_info", "%s%s: %s" % (client.url, path, trouble.text), exit=9) from None
        if reply.status == 404:
            continue
        if reply.status != 200:
            raise HostError("server_info", "%s%s answered %d" % (client.url, path, reply.status), exit=9)
        content = dict(reply.json())
        states = [dict(state) for state in content.pop("internal_states", None) or () if isinstance(state, dict)]
        numbers = [
            {k: v for k, v in state.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
            for state in states
        ]
        kept = {k: hide(v) if isinstance(v, str) else v for k, v in content.items() if k not in _SECRET_KEYS}
        return kept, numbers
    raise HostError("server_info", "%s has no /server_info" % client.url, exit=9)


@verb("bench_conditions")
def bench_conditions(params: Params, emit: Emit) -> Params:
    """What of the machine a figure depends on: ``driver`` of the GPUs ("" without), ``cpu``, ``cores``, ``kernel``."""
    tool = commands.which("nvidia-smi")
    ran = commands.run([tool, "--query-gpu=driver_version", "--format=csv,noheader"], timeout=10.0) if tool else None
    lines = sorted({line.strip() for line in ran.lines()}) if ran is not None and ran.ok else []
    return {
        "driver": ", ".join(line for line in lines if line),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


@verb("arm_paths")
def arm_paths(params: Params, emit: Emit) -> Params:
    """Accepted paths of the rounds that an arm has traced since ``offset`` (bytes): ``accepted``, node indices of each
    round, root first, and the next ``offset``. A trace is large, and this is all that a prediction needs of it."""
    path = os.path.join(service_of(params).run_dir, TRACE)
    offset, found = int(params.get("offset") or 0), []
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                record = json.loads(line.decode("utf-8"))
                if record.get("kind") == "round":
                    found.append(record["accepted"])
    except OSError:
        pass
    return {"accepted": found, "offset": offset}


@verb("arm_trace")
def arm_trace(params: Params, emit: Emit) -> Params:
    """The trace that an arm has written into its run folder: ``text`` (whole lines), "" when there is none; at most
    ``most`` bytes of it."""
    path = os.path.join(service_of(params).run_dir, TRACE)
    most = int(params.get("most") or 32 * 1024 * 1024)
    try:
        with open(path, "rb") as file:
            data = file.read(most)
    except OSError:
        data = b""
    return {"text": data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")}
