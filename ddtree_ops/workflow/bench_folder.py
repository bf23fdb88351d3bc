"""The manifest of a result folder: what was asked for, and the conditions under which it was measured."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec

from .. import __version__
from ..bench.definitions import DEFINITIONS
from ..bench.results import Conditions, Manifest, ModelOf
from ..model import Facts
from ..remote.channel import Link
from ..service.settings import ServiceSpec
from .bench_plan import Wanted


def manifest(
    link: Link, facts: Facts, host: str, spec: ServiceSpec, wanted: Wanted, *, build_id: str, dtype: str
) -> Manifest:
    """A manifest of now; asks the host for its GPU driver and the hashes of the models' configs."""
    machine = link.call("bench_conditions", {}, timeout=60.0)
    python = next((one for one in facts.interpreters if one.path == spec.interpreter), None)
    chosen = [gpu for gpu in facts.gpus if not spec.gpus or str(gpu.index) in spec.gpus or gpu.uuid in spec.gpus]
    models = {"target": spec.target, "draft": spec.drafter}
    conditions = Conditions(
        gpu=tuple(gpu.name for gpu in chosen),
        driver=str(machine.get("driver") or ""),
        sglang=spec.release_id.partition("-")[0],
        torch=python.packages.get("torch", "") if python else "",
        dtype=dtype,
        models={name: _model(link, path) for name, path in models.items() if path},
        other={
            **{name: machine.get(name) for name in ("cpu", "cores", "kernel")},
            "service": msgspec.to_builtins(spec),
            "wish": {name: value for name, value in wanted.wish.items() if name not in ("name", "smoke")},
            "origins": wanted.origins,
        },
    )
    return Manifest(
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        tool_version=__version__,
        host=host,
        unit=spec.unit,
        build_id=build_id,
        command=tuple(sys.argv),
        conditions=conditions,
        plan=wanted.plan,
        definitions=DEFINITIONS,
    )


def _model(link: Link, path: str) -> ModelOf:
    if not path.startswith("/"):
        return ModelOf(path=path)
    found = link.call("read_files", {"base": path, "paths": ["config.json"]}, timeout=60.0)["files"]
    return ModelOf(path=path, sha256=str(found[0].get("sha256") or ""))


def compared(found: Manifest) -> dict[str, Any]:
    """What two runs must share to be one result; the service setting by setting, so that a difference is short."""
    conditions = found.conditions
    service: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(conditions.other.get("service") or {}))
    return {
        "host": found.host,
        "unit": found.unit,
        "build": found.build_id,
        "gpu": list(conditions.gpu),
        "driver": conditions.driver,
        "sglang": conditions.sglang,
        "torch": conditions.torch,
        "models": msgspec.to_builtins(conditions.models),
        **{f"service {name}": value for name, value in service.items() if name != "tool_version"},
    }
