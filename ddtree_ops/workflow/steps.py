"""The steps of a deploy: each turns a part of the plan into operations of the transaction.

A step gets the :class:`Run` (plan, open transaction, options) and the playbook's parameters for it. It undoes nothing
by itself: every operation recorded its own way back on the host before it changed anything.
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..applying.transaction import Transaction
from ..bench import smoke
from ..bench.load import SOAK_REQUESTS
from ..inventory import HOST_FILE, Host
from ..model import Facts
from ..patching.text import sha256
from ..planning.plan import Prepared
from ..planning.wanted import Wanted
from ..remote.channel import Link
from ..service import units
from ..service.settings import ServiceSpec
from ..source.environment import server_for
from ..ui.progress import Steps
from .bench_gate import GateJob
from .bench_progress import Bars


@dataclass
class Run:
    """One deploy under way. ``seen`` collects what the steps found, by step name; it ends in the report."""

    host: Host
    facts: Facts
    wanted: Wanted
    prepared: Prepared
    tx: Transaction
    progress: Steps
    secrets: Mapping[str, str] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    link: Link | None = None  # the gate talks to its arms beside the transaction
    beside: Path | None = None  # the inventory's folder

    @property
    def spec(self) -> ServiceSpec:
        """The service; only steps of the service ask for it."""
        assert self.prepared.spec is not None
        return self.prepared.spec

    def do(self, op: str, params: Mapping[str, Any], timeout: float | None = 600.0) -> dict[str, Any]:
        """Run one operation on the host."""
        result = self.tx.do(op, params, timeout=timeout, on_event=self.progress.event)
        self.progress.output.detail(2, f"  {op}: {result.get('seconds', 0)} s")
        return result


Step = Callable[[Run, Mapping[str, Any]], None]


def derive(run: Run, params: Mapping[str, Any]) -> None:
    """The derived tree with its pristine commit."""
    live, source, layout = run.prepared.live, run.prepared.source, run.prepared.layout
    request = {
        "release_id": layout.release_id,
        "package_dir": source.root,
        "release": run.prepared.build.release,
        "content_hash": source.content_hash,
    }
    if layout.borrowed and source.git is not None:
        python = run.prepared.plan.verdict.environment
        more = {"toplevel": source.git.toplevel, "head": source.git.head, "python": python}
        run.seen["derive"] = run.do("borrow_checkout", {**request, **more})
        return
    owner = next((info.path for info in live.dist_infos if info.recorded), "")
    run.seen["derive"] = run.do("derive_tree", {**request, "dist_info": owner})
    _commit(run, "pristine", f"SGLang {run.prepared.build.release} as installed in {live.environment or live.root}")


def payload(run: Run, params: Mapping[str, Any]) -> None:
    """The ddtree package with its ``_build.json``."""
    files = run.prepared.build.payload_files
    run.seen["payload"] = _write(run, [_file(path, data, "") for path, data in files.items()])


def patch(run: Run, params: Mapping[str, Any]) -> None:
    """SGLang's own files as patched, and the commit that shows exactly our change."""
    changes = run.prepared.build.patch.changes
    files = [_file(change.path, change.after_bytes, change.before_sha) for change in changes]
    run.seen["patch"] = _write(run, files)
    build = run.prepared.build
    _commit(run, "patch", f"DDTREE: patch and payload by ddtree-ops, build {build.build_id}")


def editable(run: Run, params: Mapping[str, Any]) -> None:
    """The editable install; everything that leaves the environment is kept for the way back."""
    layout, verdict = run.prepared.layout, run.prepared.plan.verdict
    uv = run.facts.tools.get("uv", "")
    request = {"python": verdict.environment, "tree": layout.project, "uv": uv}
    run.seen["editable"] = run.do("install_editable", request, timeout=900.0)


def probe(run: Run, params: Mapping[str, Any]) -> None:
    """What the service would import, asked the way it will ask."""
    spec, layout = run.prepared.spec, run.prepared.layout
    request = {
        "python": run.prepared.plan.verdict.environment,
        "package_dir": layout.package,
        "env": spec.env() if spec else dict(run.host.service.environment),
        "cwd": "/" if spec else run.host.service.working_directory or "/",
        "files": expected_hashes(run),
    }
    run.seen["probe"] = run.do("import_probe", request, timeout=180.0)


def unit(run: Run, params: Mapping[str, Any]) -> None:
    """The unit (or the process runner's file) and the secrets."""
    assert run.prepared.unit is not None
    run.seen["unit"] = run.do("unit_install", _unit_request(run, run.spec, run.prepared.unit.text))


def takeover(run: Run, params: Mapping[str, Any]) -> None:
    """The old server: its greedy answers as baseline if it serves the same target, then stopped and disabled."""
    server = server_for(run.facts, run.wanted.takeover)
    name = server.unit if server is not None and server.unit else run.wanted.takeover
    port = server.port if server is not None and server.port else run.host.service.port
    old = {"unit": name, "init": "systemd", "address": _loopback(server.address if server else ""), "port": port}
    if server is not None and server.port and server.model_path == run.host.service.target_model:
        run.seen["baseline"] = run.do("greedy_record", {"service": old, **smoke.greedy_request()})
    run.seen["takeover"] = run.do("service_stop", {"service": old, "disable": True}, timeout=300.0)


def baseline(run: Run, params: Mapping[str, Any]) -> None:
    """Our unit once without speculation: its greedy answers are what DDTREE's are compared with."""
    plain = run.spec.variant("NONE")
    service = plain.ref()
    run.do("unit_install", _unit_request(run, plain, units.service_unit(plain).text))
    started = run.do("service_start", {"service": service, "first": True}, timeout=300.0)
    limits = {"timeout": run.wanted.ready_timeout}
    run.do("wait_ready", {"service": service, "start": started, **limits}, timeout=None)
    run.seen["baseline"] = run.do("greedy_record", {"service": service, **smoke.greedy_request()}, timeout=None)
    run.do("service_stop", {"service": service, "for_good": True}, timeout=300.0)
    unit(run, {})


def start(run: Run, params: Mapping[str, Any]) -> None:
    """Start the service; it is not restarted by itself until it has proven itself."""
    run.seen["start"] = run.do("service_start", {"service": run.spec.ref(), "first": True}, timeout=300.0)


def ready(run: Run, params: Mapping[str, Any]) -> None:
    """Wait until it serves; progress counts, not the clock alone."""
    limits = {"timeout": params.get("timeout", run.wanted.ready_timeout), "silence": params.get("silence", 300)}
    request = {"service": run.spec.ref(), "start": run.seen.get("start", {}), **limits}
    run.seen["ready"] = run.do("wait_ready", request, timeout=None)


def identity(run: Run, params: Mapping[str, Any]) -> None:
    """Socket, cgroup, start time, algorithm, and the build that every process imported; a finding is an error."""
    run.seen["identity"] = run.do("identity", identity_request(run), timeout=120.0)


def smoke_bench(run: Run, params: Mapping[str, Any]) -> None:
    """A handful of requests; fails when the server does not speculate or its greedy answers part at a wide gap."""
    request = smoke.request(
        run.spec.ref(),
        max_tokens=int(params.get("max_tokens", 48)),
        prompts=int(params.get("prompts", 6)),
        soak=int(params.get("requests", SOAK_REQUESTS)),
    )
    raw = run.do("smoke", {**request, "budget": run.spec.budget}, timeout=None)
    result = smoke.evaluate(raw, run.seen.get("baseline"), dtype=served_dtype(run.facts, run.spec))
    run.seen["smoke"] = result
    smoke.require(result)


def gate(run: Run, params: Mapping[str, Any]) -> None:
    """Measure the arms and judge the gates; a gate that fails undoes the deploy. The service is started again after."""

    def again() -> None:
        start(run, {})
        ready(run, {})
        identity(run, {})

    assert run.link is not None
    assert isinstance(run.progress, Bars)
    proof = {key: value for key, value in identity_request(run).items() if key not in ("service", "algorithm")}
    dtype = served_dtype(run.facts, run.spec)
    job = GateJob(run.link, run.tx, run.host, run.facts, run.spec, proof, dtype, run.progress, run.beside)
    run.seen["gate"] = job.run(Path(params["file"]), again)


def enable(run: Run, params: Mapping[str, Any]) -> None:
    """Start at boot, and restarts allowed again."""
    run.seen["enable"] = run.do("service_enable", {"service": run.spec.ref()})


def settle(run: Run) -> None:
    """For a playbook without ``enable``: automatic restarts, which the first start had switched off."""
    run.do("service_settle", {"service": run.spec.ref()})


def run_command(run: Run, params: Mapping[str, Any]) -> None:
    """The operator's own command, with an optional command as its way back."""
    request = {key: params[key] for key in ("argv", "undo", "timeout", "cwd") if key in params}
    run.seen.setdefault("run", []).append(
        run.do("run_command", request, timeout=float(params.get("timeout", 600)) + 30)
    )


STEPS: dict[str, Step] = {
    "derive": derive,
    "payload": payload,
    "patch": patch,
    "unit": unit,
    "takeover": takeover,
    "editable": editable,
    "probe": probe,
    "baseline": baseline,
    "start": start,
    "ready": ready,
    "identity": identity,
    "smoke": smoke_bench,
    "gate": gate,
    "enable": enable,
    "run": run_command,
}


def expected_hashes(run: Run) -> dict[str, str]:
    """Path relative to the package root -> SHA-256 of every file that is ours or patched."""
    build = run.prepared.build
    return {**{path: sha256(data) for path, data in build.payload_files.items()}, **dict(build.patch.after)}


def identity_request(run: Run) -> dict[str, Any]:
    """What ``identity`` compares disk and processes with."""
    layout = run.prepared.layout
    return {
        "service": run.spec.ref(),
        "algorithm": "DDTREE",
        "build_id": run.prepared.build.build_id,
        "interpreter": run.prepared.plan.verdict.environment,
        "package_dir": layout.package,
        "files": {posixpath.join(layout.package, path): digest for path, digest in expected_hashes(run).items()},
        "applied_at": run.seen.get("start", {}).get("started", 0.0),
    }


def served_dtype(facts: Facts, spec: ServiceSpec) -> str:
    """The type that the target is served in: the flag, else the checkpoint's own; "" when neither says."""
    flags = spec.extra_args
    if "--dtype" in flags[:-1]:
        return flags[flags.index("--dtype") + 1]
    target = next((model for model in facts.models if model.role == "target"), None)
    return str((target.config.get("dtype") or target.config.get("torch_dtype") or "") if target else "")


def _unit_request(run: Run, spec: ServiceSpec, text: str) -> dict[str, Any]:
    secrets = units.secrets_text(run.secrets) if run.secrets else ""
    places = {name: s.source for name, s in run.host.service.secrets.items() if s.source.startswith(HOST_FILE)}
    return {
        "service": spec.ref(),
        "text": text,
        "secrets": secrets,
        "host_secrets": {name: source.removeprefix(HOST_FILE) for name, source in places.items()},
        "cache_dir": spec.cache_dir,
        "user": spec.user,
    }


def _file(path: str, data: bytes, before: str) -> dict[str, Any]:
    return {"path": path, "data": base64.b64encode(data).decode(), "sha256": sha256(data), "before": before}


def _write(run: Run, files: list[dict[str, Any]]) -> dict[str, Any]:
    return run.do("write_files", {"root": run.prepared.layout.package, "files": files})


def _commit(run: Run, tag: str, message: str) -> None:
    request = {"release": run.prepared.layout.tree, "message": message}
    run.seen[f"commit {tag}"] = run.do("git_commit", request)


def _loopback(address: str) -> str:
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(address, address)
