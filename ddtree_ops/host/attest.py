"""Beacons against the control group and the plan: does every process of the service run the files of this build?

The payload keeps one JSON file per process in the run folder (``ddtree-beacon/1``): pid and start time, build, the
files of the speculative path that were imported with their hashes, settings and counters. Here they are compared with
what the kernel says (processes, start times), with the disk, and with the hashes of the plan. A process that can import
SGLang and has no beacon is a finding: it runs something else.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from . import commands, hashing, procs, sockets
from .protocol import Emit, HostError, verb
from .runner import Service, service_of
from .supervisor import start_time

SCHEMA = "ddtree-beacon/1"
STALE = "the bytecode beside %s is of another source"
SETTLE_SECONDS = 8.0  # a beacon appears about a second after its process imported SGLang
_HELPERS = (
    ("multiprocessing.resource_tracker", "multiprocessing's resource tracker"),
    ("torch/_inductor/compile_worker", "a compile worker of torch"),
)
#: What of the server's arguments may leave the host; its full answer holds the API key.
_INFO_KEYS = (
    "version speculative_algorithm speculative_num_draft_tokens speculative_dflash_block_size speculative_num_steps "
    "speculative_eagle_topk model_path speculative_draft_model_path served_model_name dtype kv_cache_dtype "
    "quantization attention_backend page_size mem_fraction_static max_running_requests max_total_num_tokens "
    "max_req_input_len "
    "context_length disable_overlap_schedule disable_cuda_graph cuda_graph_max_bs disable_radix_cache "
    "chunked_prefill_size tp_size dp_size device random_seed sampling_backend enable_deterministic_inference"
).split()


class Expected(NamedTuple):
    """What the plan says must run; empty values are not checked."""

    build_id: str
    files: Mapping[str, str]  # absolute path -> sha256
    package_dir: str  # .../sglang
    interpreter: str
    applied_at: float  # seconds since the epoch, by this host's clock
    algorithm: str  # "" for a server without speculation


def expected_of(params: Mapping[str, Any]) -> Expected:
    """The expectation of a request."""
    algorithm = str(params.get("algorithm") if params.get("algorithm") is not None else "DDTREE")
    return Expected(
        str(params.get("build_id") or ""),
        dict(params.get("files") or {}),
        str(params.get("package_dir") or ""),
        str(params.get("interpreter") or ""),
        float(params.get("applied_at") or 0.0),
        "" if algorithm == "NONE" else algorithm,
    )


# -- beacons --


def read_beacons(run_dir: str) -> Dict[int, Dict[str, Any]]:
    """The beacons in a run folder, by pid; a file that is no beacon is left out."""
    found: Dict[int, Dict[str, Any]] = {}
    try:
        names = os.listdir(run_dir)
    except OSError:
        return found
    for name in names:
        stem, extension = os.path.splitext(name)
        if extension != ".json" or not stem.isdigit():
            continue
        try:
            with open(os.path.join(run_dir, name), encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and content.get("schema") == SCHEMA:
            found[int(stem)] = content
    return found


def live_beacons(run_dir: str) -> Dict[int, Dict[str, Any]]:
    """The beacons whose process lives: the same pid *and* the same start time."""
    return {pid: beacon for pid, beacon in read_beacons(run_dir).items() if beacon.get("start_time") == start_time(pid)}


def imports_sglang(pid: int, interpreter: str) -> Tuple[bool, str]:
    """Whether a process without a beacon should have one, and why not when it should not."""
    found = procs.process(pid)
    if found is None:
        return False, "gone"
    command = " ".join(found.args)
    for mark, why in _HELPERS:
        if mark in command:
            return False, why
    exe = procs.link(pid, "exe")
    if interpreter and os.path.realpath(interpreter) != os.path.realpath(exe or "/"):
        return "sglang" in command, "not the service's interpreter"
    return True, ""


class Audit:
    """Findings about the processes of one service."""

    def __init__(self, service: Service, expected: Expected) -> None:
        self._service = service
        self._expected = expected
        self.findings: List[str] = []
        self.imported: Dict[str, str] = {}
        self.beacons: Dict[int, Dict[str, Any]] = {}
        self.pids: List[int] = []
        self.exempt: Dict[int, str] = {}

    def run(self, emit: Emit) -> None:
        """Read the beacons, waiting a little for those that are still to come, and compare."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.pids = list(self._service.state()["pids"])
            self.beacons = live_beacons(self._service.run_dir)
            missing = self._missing()
            if self.pids and not missing:
                break
            if time.monotonic() > deadline:
                break
            emit({"kind": "progress", "step": "identity", "text": "waiting for the processes' reports", "done": 0})
            time.sleep(0.5)
        if not self.pids:
            self.findings.append("%s has no process" % self._service.unit)
        for pid in missing:
            self.findings.append("%s reports no imports: it does not run this build" % sockets.describe([pid]))
        for pid in self.pids:
            if pid in self.beacons:
                self._compare(pid, self.beacons[pid])
            self._age(pid)
        self._stale_bytecode()

    def _missing(self) -> List[int]:
        self.exempt = {}
        missing = []
        for pid in self.pids:
            if pid in self.beacons:
                continue
            wanted, why = imports_sglang(pid, self._expected.interpreter)
            if wanted:
                missing.append(pid)
            else:
                self.exempt[pid] = why
        return missing

    def _compare(self, pid: int, beacon: Mapping[str, Any]) -> None:
        build = str(dict(beacon.get("build") or {}).get("build_id") or "")
        if self._expected.build_id and build != self._expected.build_id:
            self.findings.append(
                "pid %d runs build %s, not %s" % (pid, build[:12] or "unknown", self._expected.build_id[:12])
            )
        root = self._expected.package_dir
        for entry in beacon.get("files") or ():
            path, digest = str(entry.get("path")), str(entry.get("sha256"))
            self.imported[path] = digest
            if root and not path.startswith(root.rstrip("/") + "/"):
                self.findings.append("pid %d imported %s, outside of %s" % (pid, path, root))
            wanted = self._expected.files.get(path)
            if wanted is not None and digest != wanted:
                self.findings.append("pid %d imported another content of %s" % (pid, path))
            if entry.get("bytecode") == "unchecked-hash":
                self.findings.append("pid %d loaded unchecked bytecode for %s" % (pid, path))

    def _age(self, pid: int) -> None:
        found = procs.process(pid)
        # One second: the kernel's boot time, which start times are counted from, is a whole second.
        if found is not None and self._expected.applied_at and found.start_time < self._expected.applied_at - 1.0:
            age = self._expected.applied_at - found.start_time
            self.findings.append("pid %d started %.0f s before the change" % (pid, age))

    def _stale_bytecode(self) -> None:
        paths = sorted(path for path in self.imported if path in self._expected.files) or sorted(self.imported)
        if not self._expected.interpreter or not paths:
            return
        for path in stale_bytecode(self._expected.interpreter, paths):
            self.findings.append(STALE % path)

    def missing_files(self) -> List[str]:
        """Files of the payload that no process reported although all of them were expected."""
        return sorted(set(self._expected.files) - set(self.imported))


#: Run by the service's interpreter. Bytecode that Python would not load (another time or size, or checked by hash) is
#: passed over: it is made again at the next import.
_STALE = r"""
import importlib.util, json, marshal, os, sys
stale = []
for path in json.load(sys.stdin):
    try:
        with open(importlib.util.cache_from_source(path), "rb") as file:
            data = file.read()
        with open(path, "rb") as file:
            text = file.read()
        status = os.stat(path)
    except OSError:
        continue
    flags = int.from_bytes(data[4:8], "little")
    made_of = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little"))
    if flags & 2 or (not flags & 1 and made_of != (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)):
        continue
    try:
        same = marshal.loads(data[16:]) == compile(text, path, "exec", dont_inherit=True)
    except Exception:
        same = False
    if not same:
        stale.append(path)
json.dump(stale, sys.stdout)
"""


def stale_bytecode(interpreter: str, paths: Sequence[str]) -> List[str]:
    """Those of ``paths`` whose cached bytecode is not what the interpreter makes of the source: size and time lie."""
    wanted = json.dumps([path for path in paths if path.endswith(".py")]).encode()
    ran = commands.run([interpreter, "-I", "-S", "-c", _STALE], timeout=60.0, stdin=wanted)
    try:
        return [str(path) for path in json.loads(ran.out.decode("utf-8"))] if ran.ok else []
    except ValueError:
        return []


# -- the disk --


def disk_findings(files: Mapping[str, str]) -> List[str]:
    """Files whose content is not what was deployed."""
    findings = []
    for path, wanted in sorted(files.items()):
        digest = hashing.of_file_or_absent(path)
        if digest != wanted:
            findings.append("%s was %s" % (path, "changed" if digest else "removed"))
    return findings


# -- the server's own word --


def server_info(service: Service) -> Dict[str, Any]:
    """What the server says about itself, without secrets; both names of the endpoint are tried."""
    client = service.client()
    for path in ("/server_info", "/get_server_info"):
        reply = client.get(path, timeout=20.0)
        if reply.status == 404:
            continue
        if reply.status != 200:
            raise HostError("server_info", "%s%s answered %d" % (client.url, path, reply.status), exit=9)
        content = reply.json()
        found = {key: content[key] for key in _INFO_KEYS if key in content}
        states = content.get("internal_states") or []
        found["internal_states"] = [_numbers(state) for state in states if isinstance(state, dict)]
        return found
    raise HostError("server_info", "%s has no /server_info" % client.url, exit=9)


def _numbers(state: Mapping[str, Any]) -> Dict[str, Any]:
    """Numbers, and which build the scheduler says it runs (the payload adds that where SGLang has a place for it)."""
    found: Dict[str, Any] = {
        key: value for key, value in state.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    ours = state.get("ddtree")
    if isinstance(ours, dict) and ours.get("build_id"):
        found["build_id"] = str(ours["build_id"])
    return found


@verb("attest_disk")
def attest_disk(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """The disk alone, for a deployment without a service: ``files``, ``interpreter``."""
    expected = expected_of(params)
    findings = disk_findings(expected.files)
    if expected.interpreter:
        for path in stale_bytecode(expected.interpreter, sorted(expected.files)):
            findings.append(STALE % path)
    return {"ok": not findings, "findings": findings, "files": len(expected.files)}


@verb("beacons")
def beacons(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Settings, counters and control state of each living process of the service, for ``status``."""
    service = service_of(params)
    found = live_beacons(service.run_dir)
    keys = ("pid", "start_time", "argv", "build", "settings", "counters", "control")
    return {"beacons": [{key: beacon.get(key) for key in keys} for _, beacon in sorted(found.items())]}
