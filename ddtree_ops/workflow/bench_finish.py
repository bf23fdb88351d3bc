"""From the rows of a folder to what it concludes: cells, identity, acceptance, gates, reports. No host is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..bench import gates as gating
from ..bench import identity as judging
from ..bench.results import (
    Comparison,
    Cost,
    Folder,
    Gates,
    IdentityPair,
    IdentityReport,
    RoundRow,
    Summary,
    Verdict,
    acceptance,
    summarise,
)
from ..errors import GateFailed


def conclude(folder: Folder, *, dtype: str, costs: Sequence[Cost] = ()) -> Summary:
    """Write ``summary.json``, ``identity.json``, ``acceptance.json``, ``costs.json`` from what was measured so far."""
    rows = folder.rows()
    summary = summarise(folder.manifest, rows)
    folder.save("summary", summary)
    folder.save("acceptance", acceptance(rows))
    if costs:
        folder.save("costs", tuple(costs))
    reference = _reference(folder)
    if reference is not None:
        folder.save("identity", identity_report(reference, rows, dtype))
    return summary


def _reference(folder: Folder) -> dict[str, Any] | None:
    path = folder.path / "reference.json"
    if not path.exists():
        return None
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return found


def identity_report(reference: Mapping[str, Any], rows: Sequence[RoundRow], dtype: str) -> IdentityReport:
    """Every arm, budget and concurrency against plain decoding one by one; plain decoding itself at another batch
    shape first: that is the floor, what arithmetic alone makes of the same model."""
    measured = [row for row in rows if row.kind == "measured" and not row.temperature]
    groups: dict[tuple[str, Any, int], list[RoundRow]] = {}
    for row in measured:
        groups.setdefault((row.arm, row.budget, row.concurrency), []).append(row)
    pairs = {key: _pair(key, reference, found, dtype) for key, found in groups.items()}
    plain = {key: pair for key, pair in pairs.items() if key[0] == "ar"}
    floor = plain[max(plain, key=lambda key: key[2])] if plain else None
    others = tuple(pair for key, pair in pairs.items() if key[0] != "ar")
    why = tuple(f"{_name(pair)}: {pair.text}" for pair in others if pair.verdict != "ok")
    return IdentityReport(
        dtype=dtype,
        near_tie=judging.near_tie_gap(dtype),
        rule=judging.compare(reference, [], dtype=dtype).rule,
        floor=floor,
        pairs=others,
        verdict=_worst([pair.verdict for pair in others]),
        why=why,
    )


def _pair(
    key: tuple[str, Any, int], reference: Mapping[str, Any], rows: Sequence[RoundRow], dtype: str
) -> IdentityPair:
    """One prompt counts once, with its worst outcome over the rounds of all starts."""
    arm, budget, concurrency = key
    worst: dict[str, tuple[judging.Comparison, str]] = {}
    missing: set[str] = set()
    tokens = 0
    for row in rows:
        answers = [_answer(one) for one in row.requests if one.ok and one.ids is not None]
        found = judging.compare(reference, answers, dtype=dtype)
        missing.update(found.missing)
        for one in found.comparisons:
            before = worst.get(one.id)
            if before is None or _ORDER.index(one.outcome) > _ORDER.index(before[0].outcome):
                worst[one.id] = (one, row.regime)
    comparisons = tuple(_comparison(one, regime) for one, regime in worst.values())
    tokens = sum(one.compared for one in comparisons)
    counts = {outcome: sum(one.outcome == outcome for one in comparisons) for outcome in _ORDER}
    return IdentityPair(
        arm=arm,
        budget=budget,
        concurrency=concurrency,
        counts=counts,
        tokens=tokens,
        comparisons=comparisons,
        missing=tuple(sorted(missing)),
        verdict="FAILED" if counts["differs"] else "INVALID" if counts["unjudged"] or not comparisons else "ok",
        text=_text(comparisons, counts, tokens),
    )


_ORDER = ("equal", "near_tie", "unjudged", "differs")


def _answer(request: Any) -> dict[str, Any]:
    return {"id": request.id, "ids": list(request.ids), "ok": True, "finish": request.finish}


def _comparison(one: judging.Comparison, regime: str) -> Comparison:
    return Comparison(**msgspec.structs.asdict(one), regime=regime)


def _text(comparisons: Sequence[Comparison], counts: Mapping[str, int], tokens: int) -> str:
    if not comparisons:
        return "nothing was compared"
    parts = [f"{counts['equal']} of {len(comparisons)} answers equal ({tokens} tokens compared)"]
    if counts["near_tie"]:
        parts.append(f"not bit-identical: {counts['near_tie']} prompts, all at near ties" if not counts["differs"]
                     else f"{counts['near_tie']} part at near ties")  # fmt: skip
    for one in comparisons:
        if one.outcome == "differs":
            gap = "?" if one.gap is None else f"{one.gap:.3g}"
            parts.append(f"verify bug suspected: {one.id} differs at token {one.index}, where the gap is {gap} nats")
            break
    if counts["unjudged"]:
        parts.append(f"{counts['unjudged']} differences cannot be judged")
    return "; ".join(parts)


def _name(pair: IdentityPair) -> str:
    budget = "" if pair.budget is None else f" budget {pair.budget}"
    return f"{pair.arm}{budget}, concurrency {pair.concurrency}"


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    return "FAILED" if "FAILED" in found else "INVALID" if "INVALID" in found else "ok"


def judge_gates(folder: Folder, book: gating.GateBook, served: int) -> Gates:
    """Evaluate the gates on what the folder holds, into ``gates.json``."""
    summary, auto = folder.summary, folder.auto
    assert summary is not None
    recommended = (auto.recommended.get("all") if auto else None) or None
    budget = gating.budget_to_judge(book, folder.manifest.plan.budgets, served, recommended)
    found = gating.evaluate(book, summary, folder.identity, budget)
    folder.save("gates", found)
    return found


def reports(folder: Folder) -> list[str]:
    """Write ``report.md`` and ``report.html``; their paths."""
    from ..bench.render import write_reports

    return [str(path) for path in write_reports(folder)]


def require_valid(folder: Folder) -> None:
    """Raise :class:`GateFailed` (exit 8) when the measurement is INVALID or greedy answers part at a wide gap."""
    summary, identity = folder.summary, folder.identity
    if identity is not None and identity.verdict == "FAILED":
        raise GateFailed(
            f"greedy answers differ from plain decoding: {identity.why[0]}",
            where=str(folder.path),
            why="; ".join(identity.why[1:]),
            next_step="identity.json has every prompt; do not serve this build before that is explained",
            code="identity",
        )
    if summary is not None and summary.verdict != "ok":
        raise GateFailed(
            f"the measurement is {summary.verdict}: {summary.why[0] if summary.why else 'see summary.json'}",
            where=str(folder.path),
            why="; ".join(summary.why[1:4]),
            next_step="summary.json has every reason; what is INVALID must not be quoted",
            code="invalid",
        )
