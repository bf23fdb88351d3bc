"""Verbs and operations about the service: start, stop, enablement, readiness, status, logs.

Each mutation first records how it is taken back (:mod:`.ops`). The ``service`` object of the requests is described in
:mod:`.runner`; the unit's files are written by :mod:`.unitfiles`.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List

from . import enablement, procs, readiness, sockets, systemd
from . import unitfiles as unitfiles  # registers unit_install
from .http import HEALTH_TIMEOUT, HttpTrouble
from .logs import errors
from .ops import Params, Tx, Work, need, op, undoer
from .protocol import Emit, HostError, verb
from .runner import Service, service_of

# -- stopping and starting --


@op("service_stop")
def service_stop(tx: Tx, params: Params) -> Params:
    """Stop a service (ours, or the one that is taken over) and wait until its processes and its port are gone.

    ``service``; ``disable``: also keep it from starting at boot. Undo: enabled as before, and running again; not
    running with ``for_good``, for a service that this very run started.
    """
    service = service_of(params)
    before = service.state()
    if before["load"] == "not-found" and not before["pids"]:
        raise HostError(
            "no_unit",
            "there is no unit %s to stop" % service.unit,
            next="a server that was started by hand must be stopped by hand; only a unit can be brought back",
        )
    if params.get("disable"):
        _disable(tx, service)
    if not service.running():
        return {"before": before, "stopped": False, "seconds": 0.0}
    if not params.get("for_good"):
        tx.will("start_service", {"service": service.ref}, "stop %s" % service.unit)
    started = time.monotonic()
    after = service.stop()
    _await_port_free(service, before["pids"])
    return {"before": before, "after": after, "stopped": True, "seconds": round(time.monotonic() - started, 2)}


def _await_port_free(service: Service, pids: List[int], timeout: float = 15.0) -> None:
    """Nobody may hold the port after a stop; a stranger that does is named, never ended."""
    if not service.port:
        return
    deadline = time.monotonic() + timeout
    while True:
        found = sockets.listeners(service.port, pids)
        if not found:
            return
        if time.monotonic() > deadline:
            raise HostError(
                "port_in_use",
                "port %d is still held after %s was stopped" % (service.port, service.unit),
                where=sockets.describe(pid for item in found for pid in item.pids),
                next="end it on the host, or choose another port",
            )
        time.sleep(0.2)


@undoer("start_service")
def start_service(work: Work, data: Params) -> None:
    """Start what had been running; it is not waited for until it serves."""
    service = Service(data["service"])
    if not service.running():
        service.start()
        work.notes.append("%s was started again" % service.unit)


@op("service_start", must_hold=False)
def service_start(tx: Tx, params: Params) -> Params:
    """Start our service; ``first``: it is not restarted by itself until ``service_settle`` or ``service_enable``.

    The result is what ``wait_ready`` wants as ``start``. Undo: stop, all of it.
    """
    service = service_of(params)
    _refuse_taken_port(service)
    before = service.state()
    tx.will("stop_service", {"service": service.ref}, "start %s" % service.unit)
    result = {"mark": service.mark(), "started": round(time.time(), 3), "restarts": 0}
    try:
        service.start(first=bool(params.get("first")))
    except HostError as error:
        raise _could_not_start(service, error) from None
    after = service.state()
    result.update(restarts=after["restarts"], before=before["active"], main_pid=after["main_pid"])
    return result


def _could_not_start(service: Service, error: HostError) -> HostError:
    lines = service.last_lines(40)
    found = errors(lines)
    return HostError(
        "service_died",
        "%s could not be started%s" % (service.unit, ": " + found[-1] if found else ""),
        where=error.message,
        next="ddtree-ops logs -n 200",
        exit=9,
        details={"errors": found, "log": lines},
    )


def _refuse_taken_port(service: Service) -> None:
    if not service.port or service.running():
        return
    found = sockets.listeners(service.port)
    if found:
        raise HostError(
            "port_in_use",
            "port %d is in use" % service.port,
            where=sockets.describe(pid for item in found for pid in item.pids),
            next="name its unit with --takeover, or choose another port",
        )


@undoer("stop_service")
def stop_service(work: Work, data: Params) -> None:
    """Stop the service and forget its failures."""
    service = Service(data["service"])
    if service.init == "process" and not os.path.exists(service.path):
        return
    if service.running():
        service.stop()
    service.settle()
    if service.init == "systemd":
        systemd.systemctl("reset-failed", service.unit, check=False)


@op("service_settle")
def service_settle(tx: Tx, params: Params) -> Params:
    """The first start went well: from now on the service is restarted when it fails."""
    return {"restart": True, "was_off": service_of(params).settle()}


@op("service_enable")
def service_enable(tx: Tx, params: Params) -> Params:
    """Start at boot, and restarts allowed. The process runner cannot start at boot; the result says so."""
    service = service_of(params)
    was_off = service.settle()
    if service.init == "process":
        return {"enabled": "static", "restart_was_off": was_off, "note": "init: process does not start at boot"}
    before = systemd.state(service.unit)["enabled"]
    if before != "enabled":
        tx.will("restore_enablement", enablement.snapshot(service.unit), "enable %s" % service.unit)
        systemd.systemctl("enable", service.unit)
    after = systemd.state(service.unit)["enabled"]
    if after != "enabled":
        raise HostError("not_enabled", "%s is %s after `systemctl enable`" % (service.unit, after or "unknown"), exit=9)
    return {"enabled": after, "before": before, "restart_was_off": was_off}


@op("service_disable")
def service_disable(tx: Tx, params: Params) -> Params:
    """Do not start at boot. Undo restores the very links that were there."""
    service = service_of(params)
    before = service.state()["enabled"]
    _disable(tx, service)
    return {"before": before, "enabled": service.state()["enabled"]}


def _disable(tx: Tx, service: Service) -> None:
    if service.init != "systemd" or not enablement.links(service.unit):
        return
    tx.will("restore_enablement", enablement.snapshot(service.unit), "disable %s" % service.unit)
    systemd.systemctl("disable", service.unit)


@undoer("restore_enablement")
def restore_enablement(work: Work, data: Params) -> None:
    """The enablement links as they were."""
    enablement.restore(data)


@op("wait_ready", must_hold=False)
def wait_ready_op(tx: Tx, params: Params) -> Params:
    """See :func:`.readiness.wait_ready`."""
    return readiness.wait_ready(params, service_of(params), tx.emit)


# -- verbs --


@verb("wait_ready")
def wait_ready_verb(params: Params, emit: Emit) -> Params:
    """Wait outside of a transaction, after ``service_control``."""
    return readiness.wait_ready(params, service_of(params), emit)


@verb("service_status")
def service_status(params: Params, emit: Emit) -> Params:
    """State, processes with age and memory, who listens on the port, and whether it is healthy."""
    service = service_of(params)
    state = service.state()
    found: Dict[str, Any] = {"state": state, "processes": [_process(pid) for pid in state["pids"]]}
    if service.port:
        found["listeners"] = [item.as_dict() for item in sockets.listeners(service.port, state["pids"])]
        found["health"] = _health(service)
    if state["active"] == "failed":
        found["errors"] = errors(service.last_lines(200))
    return found


def _health(service: Service) -> Dict[str, Any]:
    try:
        reply = service.client().get("/health", timeout=HEALTH_TIMEOUT)
    except HttpTrouble as trouble:
        return {"ok": False, "status": 0, "text": trouble.text}
    return {"ok": reply.status == 200, "status": reply.status, "text": "", "seconds": round(reply.seconds, 3)}


def _process(pid: int) -> Dict[str, Any]:
    found = procs.process(pid)
    if found is None:
        return {"pid": pid, "command": "", "rss": 0, "started": 0.0}
    try:
        with open("/proc/%d/statm" % pid) as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        rss = 0
    command = " ".join(word for word in procs.redact(found.args) if word)[:200]
    return {"pid": pid, "command": command, "rss": rss, "started": round(found.start_time, 2)}


@verb("service_control")
def service_control(params: Params, emit: Emit) -> Params:
    """``action``: start, stop or restart. The result's ``start`` is for ``wait_ready``."""
    service = service_of(params)
    action = str(need(params, "action"))
    if action not in ("start", "stop", "restart"):
        raise HostError("bad_params", "unknown action %r" % action, exit=1)
    before = service.state()
    if before["load"] == "not-found":
        raise HostError("no_unit", "%s does not exist on this host" % service.unit, next="ddtree-ops deploy")
    if action in ("stop", "restart") and service.running():
        emit({"kind": "progress", "step": "stop", "text": "stopping %s" % service.unit, "done": 0, "total": 0})
        service.stop()
    start: Dict[str, Any] = {}
    if action != "stop":
        _refuse_taken_port(service)
        start = {"mark": service.mark(), "started": round(time.time(), 3), "restarts": 0}
        try:
            service.start()
        except HostError as error:
            raise _could_not_start(service, error) from None
        start["restarts"] = service.state()["restarts"]
    return {"before": before, "after": service.state(), "start": start}


@verb("logs")
def logs(params: Params, emit: Emit) -> Params:
    """The last ``lines`` of the log as ``{"kind": "log", "lines": [...]}`` events; ``follow``: until nobody listens."""
    service = service_of(params)
    count = int(params.get("lines") or 100)
    mark = service.mark() if params.get("follow") else ""
    lines = service.last_lines(count)
    for index in range(0, len(lines), 500):
        emit({"kind": "log", "lines": lines[index : index + 500]})
    if not params.get("follow"):
        return {"lines": len(lines)}
    source = service.log(mark)
    total = len(lines)
    while True:
        new = source.read()
        total += len(new)
        emit({"kind": "log", "lines": new})  # an empty one notices that the controller is gone
        time.sleep(0.5)
