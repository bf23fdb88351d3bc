"""What the decoding process counts, in a few lines for people; ``--json`` has all of it. docs/metrics.md defines it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

Row = tuple[str, Text]
_DEPTHS = 6
"""Depths that are shown one by one."""


def rows(beacons: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Lines about the first rank of the decoding processes; none before it has reported."""
    for beacon in sorted(beacons, key=lambda one: "requests" not in (one.get("counters") or {})):
        counters, settings = beacon.get("counters") or {}, beacon.get("settings") or {}
        if counters.get("verify_steps") is None or settings.get("tp_rank"):
            continue
        found = [*_speculation(counters), *_trees(counters), *_step(counters.get("time_split") or {})]
        return [*found, *_beside(counters), *_start(settings.get("start") or {})]
    return []


def _speculation(counters: Mapping[str, Any]) -> list[Row]:
    steps = int(counters.get("requests") or 0)
    if not steps:
        return [("decoding", Text("no step yet"))]
    accepted = int(counters.get("accepted_drafts") or 0)
    text = f"{1 + accepted / steps:.2f} tokens per verify step ({steps:,} request steps)"
    branches = _share(counters.get("branch_paths"), steps)
    found = [("decoding", Text(f"{text}; {branches} of paths leave the best candidates"))]
    pairs = zip(counters.get("accepted_by_depth") or (), counters.get("reached_by_depth") or (), strict=False)
    shares = [_share(taken, reached) for taken, reached in list(pairs)[:_DEPTHS] if reached]
    if shares:
        found.append(("by depth", Text(f"{', '.join(shares)} accepted at depths 1 to {len(shares)}, once reached")))
    if any(counters.get("first_miss_rank") or ()):
        found.append(("first miss", Text(_misses(counters))))
    if counters.get("poor_drafter"):
        text = "hardly any draft is accepted: is the drafter made for this target?"
        found.append(("warning", Text(text, style="yellow")))
    return found


def _misses(counters: Mapping[str, Any]) -> str:
    ranks: Sequence[int] = counters["first_miss_rank"]
    outside = int(counters.get("first_miss_outside") or 0)
    total = sum(ranks) + outside
    parts = [f"rank 0 {_share(ranks[0], total)}"]
    parts += [f"ranks {low} to {high} {_share(sum(ranks[low : high + 1]), total)}" for low, high in ((1, 3), (4, 15))]
    return ", ".join([*parts, f"outside of the candidates {_share(outside, total)}"])


def _trees(counters: Mapping[str, Any]) -> list[Row]:
    steps = int(counters.get("requests") or 0)
    if not steps:
        return []
    depths = counters.get("tree_depth_histogram") or ()
    deep = sum(depth * trees for depth, trees in enumerate(depths)) / steps
    built, padded = int(counters.get("nodes_built") or 0), int(counters.get("nodes_padded") or 0)
    text = f"{built / steps:.1f} nodes, {deep:.1f} deep, {_share(padded, built + padded)} padding"
    chosen = []
    for name, label in (("steps_by_width", "width"), ("steps_by_shape", ""), ("steps_by_reason", "")):
        table: Mapping[str, int] = counters.get(name) or {}
        total = sum(table.values())
        ordered = sorted(table.items(), key=lambda item: -item[1])
        chosen.append(", ".join(f"{label} {key} {_share(value, total)}".strip() for key, value in ordered))
    return [("trees", Text("; ".join([text, *filter(None, chosen)])))]


def _step(split: Mapping[str, Any]) -> list[Row]:
    samples = int(split.get("samples") or 0)
    if not samples:
        return []
    stages = ("draft", "build", "verify", "commit")
    means = {stage: float(split.get(f"{stage}_us") or 0.0) / samples / 1000 for stage in stages}
    shown = " + ".join(f"{stage} {mean:.2f}" for stage, mean in means.items())
    clock = "GPU" if split.get("clock") == "gpu" else str(split.get("clock"))
    return [("a step", Text(f"{shown} = {sum(means.values()):.2f} ms ({clock} clock, {samples:,} samples)"))]


def _beside(counters: Mapping[str, Any]) -> list[Row]:
    """Fallbacks and refusals, where there are any."""
    found: list[Row] = []
    for prefix, label in (("fallback_", "fallbacks"), ("refused_", "refused")):
        hits = [
            f"{name[len(prefix) :].replace('_', ' ')} {value:,}"
            for name, value in sorted(counters.items())
            if name.startswith(prefix) and value
        ]
        if hits:
            found.append((label, Text(", ".join(hits))))
    return found


def _start(start: Mapping[str, Any]) -> list[Row]:
    seconds, memory = start.get("seconds") or {}, start.get("memory_gb") or {}
    if not seconds.get("process"):
        return []
    graphs = sum(float(seconds.get(part) or 0) for part in ("target_graphs", "ladder_graphs", "draft_graphs"))
    text = f"{seconds['process']:.0f} s until its graphs were captured, {graphs:.1f} s of them for the capture"
    if memory.get("device_used"):
        text += f"; {memory['device_used']:.1f} of {memory['device']:.1f} GB of the GPU in use"
    return [("start", Text(text))]


def _share(part: Any, whole: Any) -> str:
    return f"{100 * float(part or 0) / float(whole):.0f} %" if whole else "-"
