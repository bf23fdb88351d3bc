"""Tokens per verify step against the budget, from one recording. Pure.

Trees of one score order are nested: the tree of budget b is the first b nodes of any wider one, so a node's index says
in which trees it is. Two ways follow:

*walks*   an offline greedy recording drafts at every position of a finished answer (``offline/check.py``), so each
          budget's decoding is replayed step by step: exact, the linear block included.
*nested*  any recorded rounds, also of a server: what the first b nodes of each tree would have given. After a round a
          smaller budget would have gone on from another position; over many rounds that averages out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..bench.intervals import ratio_of_sums
from ..bench.schema import Offline, OfflinePoint
from ..errors import ConfigError
from .traces import Request, Trace

LINEAR = "linear"
ALL = "all"
DEFAULT_BUDGETS = (4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1023)


def nested_length(accepted: Iterable[Sequence[int]], budget: int) -> float | None:
    """Mean tokens per verify step (bonus included) that ``budget`` would have had in recorded rounds.

    ``accepted``: per round the accepted nodes, root first, of a tree at least as wide. None without a round.
    """
    lengths = [sum(node <= budget for node in path) for path in accepted]
    return sum(lengths) / len(lengths) if lengths else None


def offline(trace: Trace, budgets: Sequence[int] = (), *, method: str = "") -> Offline:
    """The curve of a recording: its exact walks where it has them, else nested rounds; ``method`` insists on one.

    ``budgets``: those wanted; by default all that the recording can tell. One point per budget, for all prompts and for
    every regime, with the bootstrap interval over prompts.

    Raises:
        ConfigError: the recording cannot tell (no trees, a budget wider than recorded, no walks).
    """
    walked = [one for one in trace.requests if one.answer and one.answer.extra.get("walks")]
    if method == "walks" or (not method and walked):
        schemes, pairs = _walked(trace, walked, budgets)
        source = f"exact walks, {len(walked)} prompts, {trace.header.engine}"
    else:
        schemes, pairs = _nested(trace, budgets)
        source = f"nested trees of budget {_widest(trace)}, {len(trace.requests)} requests, {trace.header.engine}"
    points = []
    for regime in _regimes(pairs):
        for scheme in schemes:
            found = _point(
                scheme, regime, [rows[scheme] for request, rows in pairs if regime in (ALL, _regime(request))]
            )
            points += [found] if found else []
    return Offline(points=tuple(points), source=source)


Rows = list[tuple[Request, dict[str, tuple[float, float]]]]


def _walked(trace: Trace, walked: list[Request], budgets: Sequence[int]) -> tuple[list[str], Rows]:
    have = [set(one.answer.extra["walks"]) for one in walked if one.answer]
    common = set.intersection(*have) if have else set()
    wanted = [LINEAR, *map(str, budgets)] if budgets else sorted(common, key=_order)
    missing = [scheme for scheme in wanted if scheme not in common]
    if missing or not wanted:
        raise ConfigError(
            f"the recording has no exact walk of {', '.join(missing) or 'any budget'}",
            where=str(trace.path),
            next_step="record again with --budgets, greedy and with its control; or use --method nested",
        )
    rows: Rows = []
    for one in walked:
        walks = one.answer.extra["walks"] if one.answer else {}
        rows.append((one, {scheme: (float(walks[scheme][1]), float(walks[scheme][0])) for scheme in wanted}))
    return wanted, rows


def _nested(trace: Trace, budgets: Sequence[int]) -> tuple[list[str], Rows]:
    widest = _widest(trace)
    wanted = list(budgets) or [budget for budget in DEFAULT_BUDGETS if budget < widest] + [widest]
    if not widest or max(wanted) > widest:
        raise ConfigError(
            f"the trees of this recording have at most {widest} nodes, {max(wanted, default=0)} are wanted",
            where=str(trace.path),
            next_step="trees are nested downwards only: record with a wider budget",
        )
    rows: Rows = []
    for request in trace.requests:
        full = [one for one in request.rounds if _is_full(one, widest)]
        sums = {
            str(budget): (float(sum(sum(node <= budget for node in one.accepted) for one in full)), float(len(full)))
            for budget in wanted
        }
        if full:
            rows.append((request, sums))
    return [str(budget) for budget in wanted], rows


def _is_full(one: object, widest: int) -> bool:
    """Whether a round's tree could be as wide as the widest: lowered budgets and chains would pull the curve down."""
    extra = getattr(one, "extra", {})
    return extra.get("mode", "tree") == "tree" and int(extra.get("budget", widest)) >= widest


def _widest(trace: Trace) -> int:
    return max((len(one.token) - 1 for one in trace.rounds if one.extra.get("mode", "tree") == "tree"), default=0)


def _order(scheme: str) -> int:
    return -1 if scheme == LINEAR else int(scheme)


def _regime(request: Request) -> str:
    return request.announced.regime if request.announced else ""


def _regimes(pairs: Rows) -> list[str]:
    found = {_regime(request) for request, _ in pairs} - {"", ALL}
    return [ALL, *sorted(found)] if len(found) > 1 else [ALL]


def _point(scheme: str, regime: str, pairs: list[tuple[float, float]]) -> OfflinePoint | None:
    interval = ratio_of_sums(pairs, f"offline-{scheme}-{regime}")
    if interval is None:
        return None
    return OfflinePoint(
        budget=None if scheme == LINEAR else int(scheme),
        tokens_per_verify=round(interval.median, 4),
        regime=regime,
        low=round(interval.low, 4),
        high=round(interval.high, 4),
        rounds=int(sum(steps for _, steps in pairs)),
    )
