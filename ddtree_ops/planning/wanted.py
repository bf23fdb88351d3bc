"""What the user asked for, beside the inventory."""

from __future__ import annotations

from ..model import Value


class Wanted(Value, frozen=True, kw_only=True):
    """Wishes of one deploy."""

    budget: int
    takeover: str = ""
    service: bool = True  # False: --no-service
    baseline: bool = False
    ready_timeout: float = 1800.0  # seconds
