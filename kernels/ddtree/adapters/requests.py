"""Per-request refusals, through the check that SGLang's scheduler already makes for DFLASH requests."""

from __future__ import annotations

import copy
import importlib
from typing import Any

from .. import limits, metrics, settings
from . import grammar, logprobs

_SCHEDULER = "sglang.srt.managers.scheduler"
_CHECK = "validate_dflash_request"


def install_request_check() -> None:
    """Add DDTREE's refusals to the scheduler's DFLASH request check; raises ``RuntimeError`` where there is none.

    The scheduler calls its check by a module-level name for every request and answers with the message that comes back.
    Replacing that name in the scheduler's own process keeps the patch smaller by one file; without it a request that
    asks for what a tree does not give would be answered wrongly, so its absence stops the start.
    """
    scheduler = importlib.import_module(_SCHEDULER)
    original = getattr(scheduler, _CHECK, None)
    if original is None:
        raise RuntimeError(f"DDTREE: {_SCHEDULER} has no {_CHECK}; unsupported requests could not be refused.")
    if getattr(original, "ddtree", False):
        return

    def check(req: Any, *args: Any, **kwargs: Any) -> str | None:
        refusal = limits.refuse_request(req, settings.current().budget, logprobs.served(), grammar.served())
        if refusal is None:
            message: str | None = original(_without_logprobs(req), *args, **kwargs)
            return message
        reason, text = refusal
        metrics.host.add("refused")
        metrics.host.add(f"refused_{reason}")
        return text

    check.ddtree = True  # type: ignore[attr-defined]
    setattr(scheduler, _CHECK, check)


def _without_logprobs(req: Any) -> Any:
    """Return what DFLASH's own check is to see: some releases refuse log-probabilities, which DDTREE serves."""
    if not getattr(req, "return_logprob", False):
        return req
    seen = copy.copy(req)
    seen.return_logprob = False
    return seen
