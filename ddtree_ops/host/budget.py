"""What the processes report while they serve, and the one thing that can be changed meanwhile: the budget."""

from __future__ import annotations

import os
import time
from typing import Any

from . import durable
from .attest import live_beacons
from .greedy import Row
from .ops import Params
from .protocol import Emit, HostError, verb
from .runner import Service, service_of

CONTROL = "control.json"
AUTO = "auto"


def counters_of(service: Service) -> Row:
    """The counters of the process that decodes; empty for a server without beacons.

    Of tensor-parallel ranks the first one's: all of them count the same steps.
    """
    found: Row = {}
    for beacon in live_beacons(service.run_dir).values():
        if dict(beacon.get("settings") or {}).get("tp_rank"):
            continue
        if dict(beacon.get("counters") or {}).get("verify_steps") is not None:
            for name, value in beacon["counters"].items():
                found[name] = _plus(found.get(name), value)
    return found


def _plus(left: Any, right: Any) -> Any:
    """The sum over processes: numbers add, lists and objects entry by entry; what cannot be added keeps the last."""
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict):
        return {key: _plus(left.get(key), right.get(key)) for key in list(left) + [k for k in right if k not in left]}
    if isinstance(left, list) and isinstance(right, list):
        return [_plus(a, b) for a, b in zip(left, right)]
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (left, right))
    return left + right if numbers else right


def settings_of(service: Service) -> Row:
    """Effective settings as the processes report them (algorithm, budget, width, block size, backend, overlap)."""
    found: Row = {}
    for _, beacon in sorted(live_beacons(service.run_dir).items()):
        found.update(beacon.get("settings") or {})
    return found


def set_budget(service: Service, budget: Any, timeout: float = 10.0) -> Row:
    """Use at most ``budget`` draft nodes from now on, without a restart; the captured width is the upper limit.
    ``"auto"``: the server chooses by cost at every step.

    Raises:
        HostError: ``budget_above_captured`` for a larger tree than the service was started with.
    """
    settings = settings_of(service)
    captured = int(settings.get("budget") or 0)
    if not captured:
        raise HostError(
            "not_ddtree", "no process of %s reports a budget" % service.unit, next="ddtree-ops verify", exit=9
        )
    if budget != AUTO and budget > captured:
        raise HostError(
            "budget_above_captured",
            "the service was started for a budget of %d; %d needs a wider verify step" % (captured, budget),
            next="set `budget: %d` in the inventory and deploy again" % budget,
        )
    path = os.path.join(service.run_dir, CONTROL)
    own = budget == (AUTO if settings.get("auto") else captured)  # what it was started with
    if own:
        durable.discard(path)
    else:
        durable.replace_json(path, {"budget": budget}, 0o644)
    wanted = None if own else budget
    deadline = time.monotonic() + timeout
    while True:
        seen = [dict(beacon.get("control") or {}) for beacon in live_beacons(service.run_dir).values()]
        if seen and all(control.get("budget") == wanted for control in seen):
            return {"budget": budget, "captured": captured}
        if time.monotonic() > deadline:
            raise HostError(
                "budget_not_taken",
                "the processes did not take the budget of %s" % budget,
                where=path,
                next="ddtree-ops restart",
                exit=9,
                details={"control": seen},
            )
        time.sleep(0.2)


@verb("set_budget")
def set_budget_verb(params: Params, emit: Emit) -> Params:
    """``service``, ``budget`` (a number or "auto"): of the running service, up to what it was started with."""
    asked = params.get("budget")
    return set_budget(service_of(params), asked if asked == AUTO else int(asked or 0))
