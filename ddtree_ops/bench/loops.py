"""Answers that repeat themselves: what a target looks like whose state a tree verify step has corrupted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_PERIOD = 64
LEAST_TOKENS = 64  # of repetition at the end, and at least four rounds of it
LEAST_ROUNDS = 4


def loop_of(ids: Sequence[int]) -> str:
    """How the end of an answer repeats itself, in words; empty when it does not.

    >>> loop_of([9, 8] + [1, 2, 3] * 30)
    '3 tokens again and again from token 2'
    """
    for period in range(1, min(LONGEST_PERIOD, len(ids) // LEAST_ROUNDS) + 1):
        first = _periodic_from(ids, period)
        if len(ids) - first >= max(LEAST_TOKENS, LEAST_ROUNDS * period):
            tokens = "token" if period == 1 else "tokens"
            return f"{period} {tokens} again and again from token {first}"
    return ""


def _periodic_from(ids: Sequence[int], period: int) -> int:
    """The first index from which the rest has that period."""
    at = len(ids) - 1
    while at >= period and ids[at] == ids[at - period]:
        at -= 1
    return at - period + 1
