"""Rounds made by hand, for tests of what follows from them."""

from __future__ import annotations

from typing import Any

import msgspec

from ddtree_ops.bench.results import Manifest, Plan, Request, RoundRow, judged

MANIFEST = Manifest(created="2026-11-30T19:00:00Z", tool_version="0.1.0", host="gpu1", plan=Plan(concurrency=(1,)))


def request(index: int = 0, **more: Any) -> Request:
    """A good request of a speculating server: 100 tokens in 25 verify steps, 75 accepted drafts."""
    base = {"id": f"chat/{index}", "ok": True, "tokens": 100, "total_s": 2.0, "prompt_tokens": 50, "verify_ct": 25}
    return Request(index=index, **{**base, "accepted_drafts": 75, "ttft_s": 0.5, "first_tokens": 1, **more})


def failed(index: int = 0, outcome: str = "failed", error: str = "500: out of memory") -> Request:
    return Request(index=index, id=f"chat/{index}", ok=False, outcome=outcome, error=error, tokens=0, total_s=1.0)


def row(arm: str = "ddtree", seconds: float = 1.0, plan: Plan = MANIFEST.plan, **more: Any) -> RoundRow:
    """A round of three requests, 300 tokens in all; judged by ``plan``."""
    plain = {"verify_ct": None, "accepted_drafts": None} if arm == "ar" else {}
    base = {"arm": arm, "regime": "chat", "concurrency": 1, "flushed": True, "seconds": seconds}
    if arm == "ddtree":
        base["budget"] = 32
    base["requests"] = tuple(request(index, **plain) for index in range(3))
    return judged(RoundRow(**{**base, **more}), plan)


def warm(arm: str = "ddtree", start: int = 1, **more: Any) -> list[RoundRow]:
    """Two warm-up rounds that agree."""
    return [row(arm, start=start, round=index, kind="warmup", **more) for index in range(2)]


def cell_rows(arm: str, seconds: float, starts: int = 2, rounds: int = 3, **more: Any) -> list[RoundRow]:
    """Warm-up and measured rounds of two starts."""
    found = []
    for start in range(1, starts + 1):
        found += warm(arm, start, **more)
        found += [row(arm, seconds, start=start, round=index, **more) for index in range(rounds)]
    return found


def manifest(**plan: Any) -> Manifest:
    return msgspec.structs.replace(MANIFEST, plan=msgspec.structs.replace(MANIFEST.plan, **plan))
