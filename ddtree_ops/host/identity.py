"""Proof of identity: the socket that answers, the processes behind it, their start, and what they say they run.

Nothing here believes an exit status. A healthy endpoint can be an old server, a service that systemd calls active can
run another tree; so four independent things must agree: the kernel (who holds the listening socket), the control group,
the beacons of all processes, and the server's own information.
"""

from __future__ import annotations

from typing import Any, Dict, List

from . import procs, sockets
from .attest import Audit, Expected, disk_findings, expected_of, server_info
from .http import HttpTrouble
from .ops import Params, Tx, op
from .protocol import Emit, HostError, verb
from .runner import Service, service_of

_UNLIMITED = ("unlimited", "-1")


def evidence(service: Service, expected: Expected, emit: Emit, ask_server: bool = True) -> Dict[str, Any]:
    """The ``Evidence`` of the data model, and ``counters``, ``notes`` and ``exempt`` beside it."""
    audit = Audit(service, expected)
    audit.run(emit)
    findings = disk_findings(expected.files) + audit.findings
    state = service.state()
    listener = _listener(service, state, findings) if ask_server else 0
    info = _ask(service, expected, findings) if ask_server and listener else {}
    main = procs.process(state["main_pid"]) if state["main_pid"] else None
    return {
        "ok": not findings,
        "unit": service.unit,
        "main_pid": state["main_pid"],
        "processes": audit.pids,
        "listener_pid": listener,
        "started": round(main.start_time, 2) if main else 0.0,
        "algorithm": str(info.get("speculative_algorithm") or ""),
        "build_id": _one_build(audit),
        "imported": audit.imported,
        "findings": findings,
        "server_info": info,
        "settings": _merged(audit, "settings"),
        "counters": _merged(audit, "counters"),
        "exempt": {str(pid): why for pid, why in audit.exempt.items()},
        "notes": _notes(state, audit),
    }


def _listener(service: Service, state: Dict[str, Any], findings: List[str]) -> int:
    found = sockets.listeners(service.port, state["pids"])
    if not found:
        findings.append("nothing listens on port %d" % service.port)
        return 0
    strangers = sorted({pid for item in found for pid in item.pids} - set(state["pids"]))
    if strangers or not all(item.pids for item in found):
        findings.append(
            "port %d is answered by %s, not by %s" % (service.port, sockets.describe(strangers), service.unit)
        )
    ours = sorted({pid for item in found for pid in item.pids} & set(state["pids"]))
    return ours[0] if ours else 0


def _ask(service: Service, expected: Expected, findings: List[str]) -> Dict[str, Any]:
    try:
        info = server_info(service)
    except (HttpTrouble, HostError) as error:
        findings.append("the server does not tell what it runs: %s" % error)
        return {}
    says = str(info.get("speculative_algorithm") or "")
    if says.upper() != expected.algorithm.upper():
        findings.append(
            "the server says it runs %s, not %s" % (says or "no speculation", expected.algorithm or "no speculation")
        )
    for state in info.get("internal_states") or ():
        build = str(state.get("build_id") or "")
        if build and expected.build_id and build != expected.build_id:
            findings.append("the server says it runs build %s, not %s" % (build[:12], expected.build_id[:12]))
    return info


def _one_build(audit: Audit) -> str:
    builds = {str(dict(beacon.get("build") or {}).get("build_id") or "") for beacon in audit.beacons.values()}
    return builds.pop() if len(builds) == 1 else ""


def _merged(audit: Audit, key: str) -> Dict[str, Any]:
    """The settings or counters of the processes that have any (the scheduler; the launcher knows settings too)."""
    merged: Dict[str, Any] = {}
    for _, beacon in sorted(audit.beacons.items()):
        for name, value in dict(beacon.get(key) or {}).items():
            if key == "counters" and isinstance(value, (int, float)) and isinstance(merged.get(name), (int, float)):
                merged[name] += value
            else:
                merged[name] = value
    return merged


def _notes(state: Dict[str, Any], audit: Audit) -> List[str]:
    """What is not wrong, but good to know: limits that the kernel did not grant, payload files nobody imported yet."""
    notes = []
    memlock = _soft_limit(state["main_pid"], "Max locked memory")
    if memlock and memlock not in _UNLIMITED:
        notes.append("locked memory is limited to %s bytes: this host does not grant LimitMEMLOCK=infinity" % memlock)
    missing = audit.missing_files()
    if missing:
        notes.append("%d of the deployed files are not imported by any process" % len(missing))
    return notes


def _soft_limit(pid: int, name: str) -> str:
    try:
        with open("/proc/%d/limits" % pid) as file:
            for line in file:
                if line.startswith(name):
                    return line[len(name) :].split()[0]
    except (OSError, IndexError):
        pass
    return ""


def _proved(params: Params, emit: Emit) -> Params:
    found = evidence(service_of(params), expected_of(params), emit)
    if not found["ok"]:
        raise HostError(
            "identity",
            found["findings"][0],
            where="%d finding%s" % (len(found["findings"]), "s" if len(found["findings"]) > 1 else ""),
            next="ddtree-ops verify lists all of them",
            exit=9,
            details={"evidence": found},
        )
    return found


@op("identity", must_hold=False)
def identity_op(tx: Tx, params: Params) -> Params:
    """Proof inside a deploy; see :func:`attest_verb` for the parameters. A finding is an error (exit 9)."""
    return _proved(params, tx.emit)


@verb("attest")
def attest_verb(params: Params, emit: Emit) -> Params:
    """The evidence, findings included, without judging it.

    ``service``; ``build_id``, ``files`` (absolute path -> sha256), ``package_dir``, ``interpreter``, ``applied_at`` (by
    the host's clock), ``algorithm`` (default DDTREE; "NONE": no speculation), ``ask_server`` (default true).
    """
    return evidence(service_of(params), expected_of(params), emit, bool(params.get("ask_server", True)))
