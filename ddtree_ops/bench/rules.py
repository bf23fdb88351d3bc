"""What makes a round or a cell INVALID, each rule with its reason in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from .intervals import converged, not_warm
from .schema import Cell, Plan, Request, RoundRow

PLAIN_ARM = "ar"
NO_TIME = 1e-6  # seconds: less than a clock can tell; nothing is divided by it
CLIENT_BUSY = 0.9  # of one core: beyond, the load generator and not the server sets the pace
NOT_EMPTIED = "the prefix cache was not emptied"
POOR_TOKENS = 1.15  # tokens per verify step of a drafter that helps nowhere


def cached_share(requests: Iterable[Request]) -> float:
    """Prompt tokens that came from the prefix cache / prompt tokens, over finished requests."""
    done = [one for one in requests if one.ok]
    prompt = sum(one.prompt_tokens for one in done)
    return sum(one.cached_tokens for one in done) / prompt if prompt else 0.0


def judged(row: RoundRow, plan: Plan) -> RoundRow:
    """``row`` with its verdict: what it already has against it, and every rule that it breaks."""
    why = [*row.why, *(reason for reason in _round_reasons(row, plan) if reason not in row.why)]
    notes = list(row.notes)
    if plan.cold and not row.flushed and not any(note.startswith(NOT_EMPTIED) for note in notes):
        notes.append(f"{NOT_EMPTIED}: the server did not confirm it")
    told = [one for one in row.requests if one.ok and one.visible is not None]
    if told and not any(one.visible for one in told):
        tokens = sum(one.tokens for one in told)
        notes.append(
            f"no answer has visible text: all {tokens} tokens are reasoning; give more --max-tokens to see some"
        )
    return msgspec.structs.replace(
        row, verdict="invalid" if why else "ok", why=tuple(why), notes=tuple(dict.fromkeys(notes))
    )


def _round_reasons(row: RoundRow, plan: Plan) -> Iterable[str]:
    if not row.requests:
        yield "no request was sent"
        return
    bad = [one for one in row.requests if not one.ok]
    if len(bad) > plan.failed_most * len(row.requests):
        first = bad[0]
        yield f"{len(bad)} of {len(row.requests)} requests failed; request {first.index} ({first.id}): {first.error}"
    if len(bad) == len(row.requests):
        return
    share = cached_share(row.requests)
    if plan.cold and share > plan.cached_most:
        yield (
            f"{100 * share:.1f} % of the prompt tokens came from the prefix cache in a run declared cold "
            f"(at most {100 * plan.cached_most:g} %)"
        )
    yield from _speculation(row)
    if row.client is not None and row.client.busy > CLIENT_BUSY:
        yield f"the load generator kept a core {100 * row.client.busy:.0f} % busy: it, not the server, set the pace"


def _speculation(row: RoundRow) -> Iterable[str]:
    steps = sum(one.verify_ct or 0 for one in row.requests if one.ok)
    if row.arm == PLAIN_ARM:
        if steps:
            yield f"the plain arm counted {steps} verify steps: its server speculates"
    elif not steps:
        yield "speculation inactive: the server counted no verify step (spec_verify_ct = 0)"


def warmups(row: RoundRow, start: int, warm: Sequence[RoundRow]) -> list[list[float]]:
    """Tokens/s of the warm-up rounds that stand for ``row`` in ``start``, per setting.

    Those of the very same setting if there are any, else those of the nearest: same arm and start, then same budget,
    concurrency, temperature, regime as far as there are such.
    """
    found = [one for one in warm if (one.arm, one.start) == (row.arm, start)]
    for name in ("budget", "concurrency", "temperature", "regime"):
        nearer = [one for one in found if getattr(one, name) == getattr(row, name)]
        found = nearer or found
    groups: dict[tuple[object, ...], list[float]] = {}
    for one in found:
        tokens = sum(request.tokens for request in one.requests if request.ok)
        key = (one.budget, one.concurrency, one.temperature, one.regime)
        groups.setdefault(key, []).append(tokens / one.seconds if one.seconds > NO_TIME else 0.0)
    return list(groups.values())


def cell_reasons(rows: Sequence[RoundRow], warmed: Mapping[int, list[list[float]]], plan: Plan) -> list[str]:
    """Why a cell is INVALID; empty when it is not."""
    why = []
    for row in rows:
        if row.verdict != "ok":
            text = "; ".join(row.why) or "invalid"
            why.append(f"start {row.start}, round {row.round}: {text}")
    for start, groups in warmed.items():
        if not groups:
            why.append(f"start {start}: {not_warm((), plan.agree)}")
        why += [f"start {start}: {not_warm(group, plan.agree)}" for group in groups if not converged(group, plan.agree)]
    return why


def cell_notes(cell: Cell) -> list[str]:
    """What is true and not wrong, but explains a figure."""
    found = cell.tokens_per_verify
    if cell.arm != PLAIN_ARM and found is not None and found.median < POOR_TOKENS:
        return [
            f"only {found.median:.2f} tokens per verify step: nearly every draft is refused, as with a drafter that "
            "was trained for another target"
        ]
    return []
