"""What a deploy leaves behind: ``deployment.json`` on the host, and the report for the user."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .. import __version__
from ..errors import as_error
from ..patching.text import sha256
from .steps import Run, expected_hashes


def deployment(run: Run, *, healthy: bool) -> dict[str, Any]:
    """``deployment.json`` (:class:`ddtree_ops.model.Deployment`), less what the host fills in."""
    prepared, build = run.prepared, run.prepared.build
    files = {f"{prepared.layout.package}/{path}": digest for path, digest in expected_hashes(run).items()}
    if prepared.unit is not None:
        files[prepared.unit.path] = sha256(prepared.unit.text.encode())
    interpreter = next(one for one in run.facts.interpreters if one.path == prepared.plan.verdict.environment)
    spec = prepared.spec
    return {
        "release_id": build.release_id,
        "build_id": build.build_id,
        "strategy": prepared.plan.verdict.strategy,
        "environment": interpreter.path,
        "prefix": interpreter.prefix,
        "tree": prepared.layout.tree,
        "package_dir": prepared.layout.package,
        "unit": spec.unit if spec else "",
        "port": spec.port if spec else 0,
        "created": time.time(),
        "tool_version": __version__,
        "files": files,
        "settings": msgspec.to_builtins(spec) if spec else {},
        "takeover": run.wanted.takeover,
        "series": build.series,
        "base_hash": build.base_hash,
        "patch_hash": build.patch_hash,
        "healthy": healthy,
        "baseline": run.seen.get("baseline", {}),
    }


def report(run: Run, before: Mapping[str, Any], failure: tuple[str, BaseException] | None) -> dict[str, Any]:
    """One host's part of the deploy document; ``failure``: the step that failed and was left as it is, and why."""
    build = run.prepared.build
    return {
        "host": run.host.name,
        "outcome": "deployed" if failure is None else "unhealthy",
        "release_id": build.release_id,
        "build_id": build.build_id,
        "strategy": run.prepared.plan.verdict.strategy,
        "tree": run.prepared.layout.tree,
        "unit": run.prepared.spec.unit if run.prepared.spec else "",
        "root_before": before.get("root", ""),
        "steps": {name: round(seconds, 2) for name, seconds in run.progress.seconds.items()},
        "seen": _seen(run),
        "failure": None if failure is None else {"step": failure[0], **as_error(failure[1]).as_dict()},
    }


def _seen(run: Run) -> dict[str, Any]:
    """What the steps found, less the bulk: the answers of the baseline."""
    found = dict(run.seen)
    if "baseline" in found:
        found["baseline"] = {key: value for key, value in found["baseline"].items() if key != "answers"}
    return found
