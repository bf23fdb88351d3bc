"""One digest over what a plan rests on; a saved plan is refused when it differs.

What changes by itself (time, free memory, process numbers) is left out; what decides the verdict, the patch or the
window is in.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ..jsontext import json_bytes
from ..model import Facts, Verdict


def facts_digest(facts: Facts, verdict: Verdict) -> str:
    """SHA-256 over the live copy, the environment, what is imported, what is deployed, and who holds the port."""
    live = next((copy for copy in facts.copies if copy.id == verdict.live), None)
    interpreter = next((one for one in facts.interpreters if one.path == verdict.environment), None)
    basis: dict[str, Any] = {
        "live": live and [live.root, live.content_hash, live.anchors, live.dist_infos, live.kind, live.ddtree],
        "git": live and live.git and [live.git.head, sorted(live.git.dirty)],
        "interpreter": interpreter and [interpreter.realpath, interpreter.version, interpreter.packages],
        "imports": sorted(
            (r.context, r.interpreter, r.origin) for r in facts.resolutions if r.context != "checkout-cwd"
        ),
        "deployment": facts.deployment and [facts.deployment.run_id, facts.deployment.build_id],
        "units": sorted((unit.name, unit.path, unit.enabled, unit.active == "active") for unit in facts.units),
        "ports": sorted((owner.port, owner.unit) for owner in facts.ports),
        "models": [[model.path, model.config, model.tokenizer_sha256] for model in facts.models],
        "boot": facts.host.hostname,
        "strategy": verdict.strategy,
    }
    return hashlib.sha256(json_bytes(basis, order="sorted")).hexdigest()
