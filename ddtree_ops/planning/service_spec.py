"""Inventory and facts -> the service that a deploy would start."""

from __future__ import annotations

import posixpath

from .. import __version__
from ..inventory import Host
from ..model import Facts
from ..service.settings import RUN_ROOT, ServiceSpec

DEFAULT_BLOCK_SIZE = 16


def service_spec(
    host: Host, facts: Facts, interpreter: str, state_root: str, budget: int, ids: tuple[str, str]
) -> ServiceSpec:
    """The service of ``host`` under ``interpreter``; ``ids`` are release and build id."""
    service = host.service
    python = next((one.version for one in facts.interpreters if one.path == interpreter), "")
    as_root = facts.host.euid == 0
    return ServiceSpec(
        interpreter=interpreter,
        target=service.target_model,
        drafter=service.drafter,
        unit=service.unit,
        init=host.init,
        budget=budget,
        auto_budget=service.auto_budget,
        block_size=block_size(facts),
        listen=service.host,
        port=service.port,
        gpus=tuple(str(index) for index in service.gpus),
        extra_args=service.extra_flags,
        environment=dict(service.environment),
        secrets=tuple(sorted(service.secrets)),
        state_root=state_root,
        run_root=RUN_ROOT if as_root else posixpath.join(state_root, "run"),
        release_id=ids[0],
        build_id=ids[1],
        user=service.user,
        working_directory=service.working_directory,
        python_version=_version(python),
        timeout_start=int(service.readiness_timeout),
        timeout_stop=int(service.stop_timeout),
        tool_version=__version__,
    )


def block_size(facts: Facts) -> int:
    """The drafter's block, anchor included, from its config."""
    for model in facts.models:
        if model.role == "draft":
            nested = model.config.get("dflash_config")
            found = model.config.get("block_size") or (nested or {}).get("block_size")
            if isinstance(found, int) and found > 0:
                return found
    return DEFAULT_BLOCK_SIZE


def _version(text: str) -> tuple[int, int]:
    parts = text.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() else (3, 11)
