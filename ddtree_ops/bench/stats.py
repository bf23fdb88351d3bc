"""Numbers from the rows of a run, each with its definition. Pure; nothing here divides by zero.

A figure that cannot be formed is ``None`` with a reason elsewhere, never 0 and never infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

DEFINITIONS = {
    "tokens_per_second": "completion tokens of all finished requests / wall seconds of the measured window",
    "request_tokens_per_second": "per request: completion tokens / seconds from sending it to its last byte",
    "decode_tokens_per_second": (
        "per request: (completion tokens - tokens of the first chunk) / seconds from the first to the last chunk"
    ),
    "ttft": "seconds from sending a request to the first chunk that holds a token, prefill included",
    "tokens_per_verify_step": (
        "completion_tokens / spec_verify_ct, summed over requests (SGLang's spec_accept_length): accepted drafts plus "
        "the target's own token, per verify step; the token of the prefill is counted, too"
    ),
    "accepted_drafts_per_step": "spec_num_correct_drafts / spec_verify_ct, summed over requests: drafts only",
    "cached_fraction": "cached prompt tokens / prompt tokens; the prefix cache is emptied as `flush` says",
}


def rate(amount: float, seconds: float) -> float | None:
    """``amount / seconds``, or None when no time passed."""
    return amount / seconds if seconds > 0 else None


def finished(rows: Iterable[Row]) -> list[Row]:
    """Requests that gave at least one token."""
    return [row for row in rows if row.get("ok")]


def tokens_per_verify_step(rows: Iterable[Row]) -> float | None:
    """Summed over requests; None when no verify step was counted: speculation was not active."""
    done = finished(rows)
    steps = sum(int(row.get("verify_ct") or 0) for row in done)
    return sum(int(row["completion_tokens"]) for row in done) / steps if steps else None


def accepted_drafts_per_step(rows: Iterable[Row]) -> float | None:
    """None when the server counts no steps, or does not tell its accepted drafts."""
    done = finished(rows)
    steps = sum(int(row.get("verify_ct") or 0) for row in done)
    if not steps or any(row.get("accepted_drafts") is None for row in done if row.get("verify_ct")):
        return None
    return sum(int(row.get("accepted_drafts") or 0) for row in done) / steps


def request_rate(row: Row) -> float | None:
    """Tokens per second of one request."""
    return rate(float(row.get("completion_tokens") or 0), float(row.get("seconds") or 0.0))


def decode_rate(row: Row) -> float | None:
    """Tokens per second after the first chunk; None for an answer of one chunk."""
    first, last = row.get("ttft"), float(row.get("seconds") or 0.0)
    rest = int(row.get("completion_tokens") or 0) - int(row.get("first_tokens") or 0)
    return rate(rest, last - float(first)) if first is not None and rest > 0 else None


def cached_fraction(rows: Iterable[Row]) -> float:
    """Cached part of all prompt tokens."""
    done = finished(rows)
    prompt = sum(int(row.get("prompt_tokens") or 0) for row in done)
    return sum(int(row.get("cached_tokens") or 0) for row in done) / prompt if prompt else 0.0


def median(values: Sequence[float]) -> float | None:
    """None for an empty sequence."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], part: float) -> float | None:
    """Linear between neighbours; None for an empty sequence."""
    ordered = sorted(values)
    if not ordered:
        return None
    at = part * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(rows: Sequence[Row], seconds: float) -> dict[str, Any]:
    """All figures of a set of requests; ``seconds`` is the wall time of the measured window."""
    done = finished(rows)
    tokens = sum(int(row["completion_tokens"]) for row in done)
    ttft = [float(row["ttft"]) for row in done if row.get("ttft") is not None]
    return {
        "requests": len(rows),
        "failed": len(rows) - len(done),
        "completion_tokens": tokens,
        "tokens_per_second": rate(tokens, seconds),
        "request_tokens_per_second": median([value for row in done if (value := request_rate(row)) is not None]),
        "decode_tokens_per_second": median([value for row in done if (value := decode_rate(row)) is not None]),
        "ttft": median(ttft),
        "ttft_worst": max(ttft, default=None),
        "tokens_per_verify_step": tokens_per_verify_step(done),
        "accepted_drafts_per_step": accepted_drafts_per_step(done),
        "verify_steps": sum(int(row.get("verify_ct") or 0) for row in done),
        "cached_fraction": cached_fraction(done),
    }


def by_regime(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """The figures per regime, over the requests' own seconds: a pooled average hides a regime that loses."""
    regimes: dict[str, list[Row]] = {}
    for row in rows:
        regimes.setdefault(str(row.get("kind") or "own"), []).append(row)
    return {
        name: summary(group, sum(float(row.get("seconds") or 0.0) for row in group))
        for name, group in sorted(regimes.items())
    }


def counter_delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What the processes counted in between; a counter that only one side has is left out."""
    found = {name: _less(value, before[name]) for name, value in after.items() if name in before}
    return {name: value for name, value in found.items() if value is not None}


def _less(new: Any, was: Any) -> Any:
    """``new - was``, entry by entry in lists and tables; None where they cannot be compared.

    A table's entry that is new began at 0; words in it (which clock) are kept.
    """
    if isinstance(new, dict) and isinstance(was, dict):
        found = {key: _less(value, was.get(key, {} if isinstance(value, dict) else 0)) for key, value in new.items()}
        return {key: new[key] if value is None else value for key, value in found.items()}
    if isinstance(new, list) and isinstance(was, list) and len(new) == len(was):
        return [_less(*pair) for pair in zip(new, was, strict=True)]
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (new, was))
    return new - was if numbers else None
