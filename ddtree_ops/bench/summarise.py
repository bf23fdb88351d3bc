"""From rounds to cells: figures with intervals, validity with reasons, speed-ups, and the lines at the top. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from . import intervals, rules
from .acceptance import acceptance
from .definitions import DEFINITIONS
from .headline import headline
from .rules import judged
from .schema import Budget, Cell, Interval, Manifest, Plan, Request, RoundRow, Summary

__all__ = ["acceptance", "judged", "rate", "summarise"]

Key = tuple[str, Budget, str, int, float]


def rate(row: RoundRow) -> float | None:
    """Tokens per second of a round, over its finished requests; None when no time passed or nothing finished."""
    tokens = sum(one.tokens for one in row.requests if one.ok)
    return tokens / row.seconds if row.seconds > rules.NO_TIME and tokens else None


def summarise(manifest: Manifest, rows: Sequence[RoundRow]) -> Summary:
    """Cells in the order of their first measurement; a round that was measured again replaces the earlier one."""
    plan = manifest.plan
    latest = list(_latest(rows))
    measured: dict[Key, list[RoundRow]] = {}
    for row in latest:
        if row.kind == "measured":
            measured.setdefault(_key(row), []).append(row)
    warm = [row for row in latest if row.kind == "warmup"]
    cells = {key: _cell(key, found, warm, plan) for key, found in measured.items()}
    compared = [_compared(cell, key, cells, measured, plan) for key, cell in cells.items()]
    why = [f"{cell.name}: {cell.why[0]}" for cell in compared if not cell.valid]
    if not compared:
        why = ["no round was measured"]
    return Summary(
        cells=tuple(compared),
        headline=tuple(headline(compared)),
        verdict="INVALID" if why else "ok",
        why=tuple(why),
        definitions=manifest.definitions or DEFINITIONS,
    )


def _key(row: RoundRow) -> Key:
    return (row.arm, row.budget, row.regime, row.concurrency, row.temperature)


def _latest(rows: Sequence[RoundRow]) -> Iterable[RoundRow]:
    """Of rounds with the same place in the plan the last one: the others were cut and measured again."""
    kept = {(*_key(row), row.start, row.round, row.kind): row for row in rows}
    return kept.values()


def _cell(key: Key, rows: Sequence[RoundRow], warm: Sequence[RoundRow], plan: Plan) -> Cell:
    arm, budget, regime, concurrency, temperature = key
    starts = sorted({row.start for row in rows})
    requests = [one for row in rows for one in row.requests]
    warmed = {start: rules.warmups(rows[0], start, warm) for start in starts}
    cell = Cell(
        arm=arm,
        budget=budget,
        regime=regime,
        concurrency=concurrency,
        temperature=temperature,
        runs=len(rows),
        starts=len(starts),
        requests=len(requests),
        failed=sum(one.outcome == "failed" for one in requests),
        empty=sum(one.outcome == "empty" for one in requests),
        timed_out=sum(one.outcome == "timeout" for one in requests),
        failures=tuple(_failures(rows)),
        cached_share=rules.cached_share(requests),
        warmup=tuple(round(value, 2) for groups in warmed.values() for group in groups for value in group),
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )
    why = rules.cell_reasons(rows, warmed, plan)
    found = msgspec.structs.replace(cell, valid=not why, why=tuple(why), **_figures(cell, rows, requests, plan))
    return msgspec.structs.replace(found, notes=(*found.notes, *rules.cell_notes(found)))


def _failures(rows: Sequence[RoundRow]) -> Iterable[str]:
    for row in rows:
        for one in row.requests:
            if not one.ok:
                yield f"start {row.start}, round {row.round}, request {one.index} ({one.id}): {one.error}"


def _figures(cell: Cell, rows: Sequence[RoundRow], requests: Sequence[Request], plan: Plan) -> Mapping[str, Any]:
    done = [one for one in requests if one.ok]
    prompts: dict[tuple[int, str], list[Request]] = {}
    for one in done:
        prompts.setdefault((one.index, one.id), []).append(one)
    seed = f"{plan.seed}/{cell.name}/"
    per_request = [
        value
        for group in prompts.values()
        if (value := _median([r for one in group if (r := _speed(one))])) is not None
    ]
    return {
        "tok_per_s": intervals.of_rounds(_rates(rows), seed + "rate"),
        "tok_per_s_per_request": intervals.of_prompts(per_request, seed + "request"),
        "tokens_per_verify": intervals.ratio_of_sums(_sums(prompts.values(), "tokens"), seed + "verify"),
        "accepted_drafts": intervals.ratio_of_sums(_sums(prompts.values(), "accepted_drafts"), seed + "drafts"),
        "ttft_ms": intervals.percentiles([1e3 * one.ttft_s for one in done if one.ttft_s is not None]),
        "tpot_ms": intervals.percentiles(_per(done, "tokens")),
        "step_ms": intervals.percentiles(_per(done, "steps")),
    }


def _rates(rows: Sequence[RoundRow]) -> list[list[float]]:
    """Tokens/s of the rounds of each start."""
    starts: dict[int, list[float]] = {}
    for row in rows:
        if (value := rate(row)) is not None:
            starts.setdefault(row.start, []).append(value)
    return list(starts.values())


def _speed(one: Request) -> float | None:
    return one.tokens / one.total_s if one.total_s and one.total_s > rules.NO_TIME else None


def _median(values: Sequence[float]) -> float | None:
    found = intervals.percentiles(values)
    return found.p50 if found else None


def _sums(prompts: Iterable[Sequence[Request]], name: str) -> list[tuple[float, float]]:
    """Per prompt the sums of ``name`` and of verify steps; requests of which the server did not tell are left out."""
    return [
        (
            float(sum(getattr(one, name) for one in group if one.verify_ct and getattr(one, name) is not None)),
            float(sum(one.verify_ct or 0 for one in group if getattr(one, name) is not None)),
        )
        for group in prompts
    ]


def _per(requests: Sequence[Request], unit: str) -> list[float]:
    """Milliseconds after the first chunk per token or per step; an answer of one chunk has none."""
    found = []
    for one in requests:
        if one.ttft_s is None or one.total_s is None:
            continue
        count = one.tokens - one.first_tokens if unit == "tokens" or not one.verify_ct else one.verify_ct
        if count > 0 and one.tokens > one.first_tokens:
            found.append(1e3 * (one.total_s - one.ttft_s) / count)
    return found


def _compared(
    cell: Cell, key: Key, cells: Mapping[Key, Cell], measured: Mapping[Key, Sequence[RoundRow]], plan: Plan
) -> Cell:
    """The cell with its speed-ups; none where one of the two is INVALID."""

    def against(arm: str) -> Interval | None:
        other = next((one for one in cells if one[0] == arm and one[2:] == key[2:]), None)
        if other is None or other == key or not (cell.valid and cells[other].valid):
            return None
        seed = f"{plan.seed}/{cell.name}/against {arm}"
        return intervals.ratio_of_medians(_rates(measured[key]), _rates(measured[other]), seed)

    if cell.arm == rules.PLAIN_ARM:
        return cell
    return msgspec.structs.replace(cell, speedup_vs_ar=against("ar"), speedup_vs_dflash=against("dflash"))
