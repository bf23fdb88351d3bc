"""What the user asked for, beside the inventory."""

from __future__ import annotations

from ..model import Value


class Wanted(Value, frozen=True, kw_only=True):
    """Wishes of one deploy. ``steps``: the names in the playbook, in order, after what does not apply was dropped."""

    budget: int
    takeover: str = ""
    service: bool = True  # False: --no-service
    baseline: bool = False
    steps: tuple[str, ...] = ()
    ready_timeout: float = 1800.0
