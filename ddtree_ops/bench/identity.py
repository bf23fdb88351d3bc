"""Token identity: greedy answers against the same target without speculation, judged by the gap where they part.

Verification makes speculation exact up to arithmetic: a verify batch has another shape than plain decoding, and in
16-bit arithmetic two candidates that are nearly equal may swap. So a first difference is allowed where the plain
server's two candidates were a *near tie*: at most two steps of the served type apart. The API gives log-probabilities,
whose differences are those of the logits, but not the logits' size; the step is therefore taken at a stated size. After
the first difference two texts legitimately differ, so nothing later is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..model import Value

Outcome = Literal["equal", "near_tie", "differs", "unjudged"]

_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "half": 10, "float32": 23, "float": 23}
LOGIT_SIZE = 16.0  # logits of 16 to 32: the step of bfloat16 is 0.125 there


class Comparison(Value, frozen=True, kw_only=True):
    """One prompt; ``index`` counts generated tokens from 0, ``gap`` is in nats on the plain server."""

    id: str
    outcome: Outcome
    compared: int
    index: int | None = None
    gap: float | None = None
    plain: int | None = None  # the token there
    ours: int | None = None


class Identity(Value, frozen=True, kw_only=True):
    """All prompts, and the rule that was applied."""

    comparisons: tuple[Comparison, ...]
    near_tie: float
    dtype: str
    rule: str
    missing: tuple[str, ...] = ()  # measured prompts that the baseline does not have

    def count(self, outcome: Outcome) -> int:
        """How many prompts ended so."""
        return sum(one.outcome == outcome for one in self.comparisons)

    @property
    def tokens(self) -> int:
        """Tokens that were compared."""
        return sum(one.compared for one in self.comparisons)

    @property
    def ok(self) -> bool:
        """No difference at a wide gap, and none that could not be judged."""
        return not self.count("differs") and not self.count("unjudged")

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        import msgspec

        counts = {name: self.count(name) for name in ("equal", "near_tie", "differs", "unjudged")}
        return {**msgspec.to_builtins(self), "counts": counts, "tokens": self.tokens, "ok": self.ok}


def near_tie_gap(dtype: str, size: float = LOGIT_SIZE) -> float:
    """Two steps of ``dtype`` at logits of ``size``: 0.25 for bfloat16 at 16 to 32."""
    bits = _FRACTION_BITS.get(dtype.removeprefix("torch."), _FRACTION_BITS["bfloat16"])
    return float(2.0 * 2.0 ** (math.floor(math.log2(size)) - bits))


def compare(
    baseline: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, dtype: str, size: float = LOGIT_SIZE
) -> Identity:
    """Compare measured rows with a recorded baseline (``ddtree-greedy/1``), prompt by prompt."""
    limit = near_tie_gap(dtype, size)
    plain = {answer["id"]: answer for answer in baseline.get("answers") or ()}
    found = [_one(plain[row["id"]], row, limit) for row in rows if row.get("ok") and row["id"] in plain]
    return Identity(
        comparisons=tuple(found),
        near_tie=limit,
        dtype=dtype,
        rule=(
            f"a first difference is allowed where the plain server's candidates are at most {limit:g} nats apart: two "
            f"steps of {dtype} at logits of {size:g} to {2 * size:g}"
        ),
        missing=tuple(row["id"] for row in rows if row["id"] not in plain),
    )


def _one(plain: Mapping[str, Any], row: Mapping[str, Any], limit: float) -> Comparison:
    left, right = list(plain["ids"]), list(row["ids"])
    shorter = min(len(left), len(right))
    first = next((index for index in range(shorter) if left[index] != right[index]), None)
    if first is None and _stopped_early(plain, row):
        first = shorter
    if first is None:
        return Comparison(id=row["id"], outcome="equal", compared=shorter)
    here = left[first] if first < len(left) else None
    there = right[first] if first < len(right) else None
    gap, exact = _gap(plain, first, here, there)
    return Comparison(
        id=row["id"],
        outcome=_judge(gap, exact, limit),
        compared=first + 1,
        index=first,
        gap=gap,
        plain=here,
        ours=there,
    )


def _stopped_early(plain: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the shorter answer ended by itself; one that was cut by its limit of tokens just is not compared on."""
    left, right = len(plain["ids"]), len(row["ids"])
    shorter = plain if left < right else row
    return left != right and shorter.get("finish") != "length"


def _judge(gap: float | None, exact: bool, limit: float) -> Outcome:
    if gap is None:
        return "unjudged"
    if gap > limit:
        return "differs"
    return "near_tie" if exact else "unjudged"


def _gap(plain: Mapping[str, Any], index: int, here: int | None, there: int | None) -> tuple[float | None, bool]:
    """How far our token was behind on the plain server, and whether that is exact: a token that is not among the
    recorded candidates is at least as far behind as the last of them."""
    top = plain.get("top") or ()
    if index >= len(top) or not top[index]:
        return None, False
    scores = {int(token): float(score) for token, score in top[index]}
    best = scores[here] if here in scores else max(scores.values())
    if there in scores:
        return abs(best - scores[there]), True
    return best - min(scores.values()), False
