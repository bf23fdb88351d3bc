"""From the payload's running counters to ``acceptance.json``: sums of the measured rounds' differences. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .schema import Acceptance, AcceptanceCell, DepthCount, RoundRow

Counters = Mapping[str, Any]


def acceptance(rows: Sequence[RoundRow]) -> Acceptance:
    """One cell per arm, budget, regime, concurrency and temperature that has counters."""
    groups: dict[tuple[Any, ...], list[Counters]] = {}
    for row in rows:
        if row.kind == "measured" and row.counters_delta:
            key = (row.arm, row.budget, row.regime, row.concurrency, row.temperature)
            groups.setdefault(key, []).append(row.counters_delta)
    return Acceptance(cells=tuple(_cell(key, added(found)) for key, found in groups.items()))


def added(deltas: Sequence[Counters]) -> dict[str, Any]:
    """Counter by counter: numbers add, lists add element by element, mappings key by key; others keep the last."""
    total: dict[str, Any] = {}
    for delta in deltas:
        for name, value in delta.items():
            total[name] = _plus(total[name], value) if name in total else value
    return total


def _plus(one: Any, other: Any) -> Any:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
        return [_plus(value, shorter[index]) if index < len(shorter) else value for index, value in enumerate(longer)]
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return added([one, other])
    return other


def _cell(key: tuple[Any, ...], counters: Counters) -> AcceptanceCell:
    arm, budget, regime, concurrency, temperature = key
    lengths = _integers(counters, "accept_length_histogram")
    shapes = _table(counters, "steps_by_shape")
    return AcceptanceCell(
        arm=arm,
        budget=budget,
        regime=regime,
        concurrency=concurrency,
        temperature=temperature,
        verify_steps=int(counters.get("verify_steps") or 0),
        request_steps=int(counters.get("requests") or sum(lengths)),
        by_depth=_by_depth(lengths),
        accept_length=lengths,
        accepted_rank=_integers(counters, "accepted_rank_histogram"),
        first_miss_rank=_integers(counters, "first_miss_rank"),
        first_miss_outside=_integer(counters, "first_miss_outside"),
        nodes_built=_integer(counters, "nodes_built"),
        nodes_padded=_integer(counters, "nodes_padded"),
        nodes_by_depth=_integers(counters, "nodes_by_depth"),
        tree_depth=_integers(counters, "tree_depth_histogram"),
        steps_by_width=_table(counters, "steps_by_width"),
        steps_by_budget=_table(counters, "steps_by_budget"),
        steps_by_reason=_table(counters, "steps_by_reason"),
        chain_steps=shapes.get("chain", 0) if shapes else None,
        fallbacks={name: int(found) for name, found in counters.items() if name.startswith(_FALLBACKS) and found},
        time_us=_times(counters.get("time_split")),
        clock=str(dict(counters.get("time_split") or {}).get("clock") or ""),
        counters=dict(counters),
    )


_FALLBACKS = ("fallback_", "refused_")
_STAGES = ("draft", "build", "verify", "commit")


def _times(split: Any) -> dict[str, float] | None:
    """Mean microseconds of a sampled step by stage; None where nothing was sampled."""
    samples = split.get("samples") if isinstance(split, Mapping) else None
    if not isinstance(samples, int | float) or samples <= 0:
        return None
    return {stage: round(float(split.get(f"{stage}_us") or 0.0) / samples, 2) for stage in _STAGES}


def _by_depth(lengths: Sequence[int]) -> tuple[DepthCount, ...]:
    """A walk of accept length L reached depths 1 .. L + 1 and accepted 1 .. L."""
    return tuple(
        DepthCount(depth=depth, reached=sum(lengths[depth - 1 :]), accepted=sum(lengths[depth:]))
        for depth in range(1, len(lengths))
    )


def _integers(counters: Counters, name: str) -> tuple[int, ...]:
    found = counters.get(name)
    return tuple(int(value) for value in found) if isinstance(found, list | tuple) else ()


def _integer(counters: Counters, name: str) -> int | None:
    found = counters.get(name)
    return int(found) if isinstance(found, int | float) else None


def _table(counters: Counters, name: str) -> dict[str, int]:
    found = counters.get(name)
    return {str(key): int(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
