"""Token identity: greedy answers against the same target without speculation, judged by the gap where they part.

Verification makes speculation exact up to arithmetic: a verify batch has another shape than plain decoding, and in
16-bit arithmetic two candidates that are nearly equal may swap. So a first difference is allowed where the plain
server's two candidates were a *near tie*: at most two steps of the served type apart. The API gives log-probabilities,
whose differences are those of the logits, but not the logits' size; the step is therefore taken at a stated size. After
the first difference two texts legitimately differ, so nothing later is compared.

What arithmetic alone does is measured, not assumed: :func:`report` compares plain decoding with itself at another batch
shape first (the floor). Only ids are compared; texts of the same length prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..model import Value
from .loops import loop_of
from .schema import Budget, Comparison, IdentityPair, IdentityReport, Outcome, RoundRow, Verdict

_FRACTION_BITS = {"bfloat16": 7, "float16": 10, "half": 10, "float32": 23, "float": 23}
LOGIT_SIZE = 16.0  # logits of 16 to 32: the step of bfloat16 is 0.125 there


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
        rule=_rule(dtype, size),
        missing=tuple(row["id"] for row in rows if row["id"] not in plain),
    )


def _rule(dtype: str, size: float = LOGIT_SIZE) -> str:
    return (
        f"a first difference is allowed where the plain server's candidates are at most {near_tie_gap(dtype, size):g} "
        f"nats apart: two steps of {dtype} at logits of {size:g} to {2 * size:g}"
    )


def _one(plain: Mapping[str, Any], row: Mapping[str, Any], limit: float) -> Comparison:
    left, right = list(plain["ids"]), list(row["ids"])
    shorter = min(len(left), len(right))
    cut = plain.get("finish") == "length" and len(left) < len(right)  # too short to tell whether plain repeats itself
    loop = "" if cut or loop_of(left) else loop_of(right)
    first = next((index for index in range(shorter) if left[index] != right[index]), None)
    if first is None and _stopped_early(plain, row):
        first = shorter
    if first is None:
        return Comparison(id=row["id"], outcome="equal", compared=shorter, loop=loop)
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
        top2=_top2(plain, first),
        loop=loop,
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


def _top2(plain: Mapping[str, Any], index: int) -> float | None:
    """The gap between the plain server's own two best candidates there."""
    top = plain.get("top") or ()
    scores = sorted((float(score) for _, score in top[index] or ()), reverse=True) if index < len(top) else []
    return scores[0] - scores[1] if len(scores) > 1 else None


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


# -- a whole bench --

PLAIN_ARM = "ar"
LOOPS_MOST = 0.1  # part of the prompts that may repeat themselves where plain decoding does not
_WORST_LAST: tuple[Outcome, ...] = ("equal", "near_tie", "unjudged", "differs")
_VERDICTS: tuple[Verdict, ...] = ("ok", "INVALID", "FAILED")


def report(reference: Mapping[str, Any], rows: Sequence[RoundRow], *, dtype: str) -> IdentityReport:
    """Every arm, budget and concurrency against plain decoding, and the floor.

    Args:
        reference: Greedy answers of plain decoding one by one, with candidates (``ddtree-greedy/1``).
        rows: Rounds of the bench; those at a temperature are left out. Rounds of kind ``floor``, or measured ones of
            ``ar`` at a concurrency above 1, are plain decoding at another batch shape.
        dtype: The served type; it decides what a near tie is.
    """
    groups: dict[tuple[str, Budget, int], list[RoundRow]] = {}
    for row in rows:
        if row.kind != "warmup" and not row.temperature:
            groups.setdefault((row.arm, row.budget, row.concurrency), []).append(row)
    pairs = [_pair(key, reference, found, dtype) for key, found in groups.items()]
    plain = [pair for pair in pairs if pair.arm == PLAIN_ARM and pair.concurrency > 1]
    floor = max(plain, key=lambda pair: pair.concurrency, default=None)
    judged = tuple(_beside(pair, floor) for pair in pairs if pair.arm != PLAIN_ARM)
    why = [f"{_name(pair)}: {pair.text}" for pair in judged if pair.verdict != "ok"]
    if floor is None:
        why.append("no floor: plain decoding was not compared with itself at another batch shape")
    return IdentityReport(
        dtype=dtype,
        near_tie=near_tie_gap(dtype),
        rule=_rule(dtype),
        floor=floor,
        pairs=judged,
        verdict=max((pair.verdict for pair in judged), key=_VERDICTS.index, default="INVALID"),
        why=tuple(why),
    )


def _pair(
    key: tuple[str, Budget, int], reference: Mapping[str, Any], rows: Sequence[RoundRow], dtype: str
) -> IdentityPair:
    """A prompt counts once, with its worst outcome over the rounds of all starts."""
    worst: dict[str, Comparison] = {}
    missing: dict[str, None] = {}
    for row in rows:
        answers = [_answer(one.id, one.ids, one.finish) for one in row.requests if one.ok and one.ids is not None]
        found = compare(reference, answers, dtype=dtype)
        missing.update(dict.fromkeys(found.missing))
        for one in found.comparisons:
            known = worst.get(one.id)
            if known is None or _WORST_LAST.index(one.outcome) > _WORST_LAST.index(known.outcome):
                worst[one.id] = msgspec.structs.replace(one, regime=row.regime)
    comparisons = tuple(worst.values())
    counts: dict[str, int] = {name: sum(one.outcome == name for one in comparisons) for name in _WORST_LAST}
    arm, budget, concurrency = key
    return IdentityPair(
        arm=arm,
        budget=budget,
        concurrency=concurrency,
        counts=counts,
        tokens=sum(one.compared for one in comparisons),
        comparisons=comparisons,
        missing=tuple(missing),
        verdict="FAILED" if counts["differs"] else "INVALID" if counts["unjudged"] or not comparisons else "ok",
        text=_words(comparisons, counts),
    )


def _answer(name: str, ids: Sequence[int], finish: str) -> dict[str, Any]:
    return {"id": name, "ids": list(ids), "ok": True, "finish": finish}


def _beside(pair: IdentityPair, floor: IdentityPair | None) -> IdentityPair:
    """The pair judged beside the floor: what plain decoding does to itself cannot be held against a tree."""
    loops, usual = loops_in(pair.comparisons), loops_in(floor.comparisons) if floor else []
    verdict, texts = pair.verdict, [pair.text]
    if loops:
        texts.append(repeating(loops))
        if len(loops) > max(LOOPS_MOST * len(pair.comparisons), len(usual)):
            verdict = "FAILED"
    if floor is not None and floor.verdict == "FAILED" and pair.verdict == "FAILED":
        verdict = "INVALID"
        texts.append("plain decoding parts from itself at a wide gap, too, so identity cannot be judged here")
    return msgspec.structs.replace(pair, verdict=verdict, text="; ".join(texts))


def loops_in(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Answers that repeat themselves where plain decoding does not."""
    return [one for one in comparisons if one.loop]


def repeating(loops: Sequence[Comparison]) -> str:
    """The same in words."""
    return f"{len(loops)} answers repeat themselves where plain decoding does not; {loops[0].id}: {loops[0].loop}"


def _words(comparisons: Sequence[Comparison], counts: Mapping[str, int]) -> str:
    if not comparisons:
        return "nothing was compared"
    tokens = sum(one.compared for one in comparisons)
    parts = [f"{counts['equal']} of {len(comparisons)} answers equal ({tokens} tokens compared)"]
    if counts["near_tie"]:
        only = counts["near_tie"] + counts["equal"] == len(comparisons)
        where = _places(one for one in comparisons if one.outcome == "near_tie")
        prompts = "1 prompt" if counts["near_tie"] == 1 else f"{counts['near_tie']} prompts"
        parts.append(f"not bit-identical: {prompts}, {'all at near ties' if only else 'at near ties'} ({where})")
    if counts["differs"]:
        where = _places(one for one in comparisons if one.outcome == "differs")
        parts.append(f"{counts['differs']} differ at a wide gap, verify bug suspected: {where}")
    if counts["unjudged"]:
        where = _places(one for one in comparisons if one.outcome == "unjudged")
        parts.append(f"{counts['unjudged']} differences cannot be judged: {where}")
    return "; ".join(parts)


def _places(found: Iterable[Comparison]) -> str:
    """``math/dice at token 17, gap 0.0312``: the first three."""
    shown = list(found)
    texts = [
        f"{one.id} at token {one.index}, gap {'unknown' if one.gap is None else f'{one.gap:.3g}'}" for one in shown[:3]
    ]
    return "; ".join(texts) + (f"; and {len(shown) - 3} more" if len(shown) > 3 else "")


def _name(pair: IdentityPair) -> str:
    budget = "" if pair.budget is None else f" budget {pair.budget}"
    return f"{pair.arm}{budget}, concurrency {pair.concurrency}"
