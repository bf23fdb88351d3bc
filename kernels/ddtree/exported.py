"""The Prometheus metrics of DDTREE: names, types, units, labels, meaning, and how each is read from the counters.

Pure data and functions, standard library only; ``prometheus.py`` hands them to SGLang's ``/metrics``, and
``docs/metrics.md`` is compared with this table by a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Values = dict[tuple[str, ...], float]
"""Label values -> value."""
Reading = Callable[[dict[str, Any]], Values]


@dataclass(frozen=True)
class Metric:
    """One metric. ``kind`` is ``counter`` or ``gauge``; ``unit`` what one of it is; names of counters end in _total."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    read: Reading


def _one(name: str) -> Reading:
    return lambda found: {(): found[name]} if found.get(name) is not None else {}


def _numbered(name: str, first: int) -> Reading:
    """A list, labelled by position from ``first`` on."""
    return lambda found: {(str(first + n),): value for n, value in enumerate(found.get(name) or ())}


def _nested(name: str) -> Reading:
    """Accepted ranks: rows are depths from 1 on, columns ranks from 0 on, the last column holds all higher ones."""

    def read(found: dict[str, Any]) -> Values:
        rows = found.get(name) or ()
        return {
            (str(depth), str(rank) if rank + 1 < len(row) else f"{rank}+"): value
            for depth, row in enumerate(rows, 1)
            for rank, value in enumerate(row)
        }

    return read


def _misses(found: dict[str, Any]) -> Values:
    """First-miss ranks in few series: 0 to 3 alone, then 4-7, 8-15, ..."""
    sums: Values = {}
    for rank, value in enumerate(found.get("first_miss_rank") or ()):
        power = 1 << (rank.bit_length() - 1) if rank else 0
        label = str(rank) if rank < 4 else f"{power}-{2 * power - 1}"
        sums[(label,)] = sums.get((label,), 0) + value
    if sums:
        sums[("outside",)] = found["first_miss_outside"]
        sums[("none",)] = found["full_paths"]
    return sums


def _prefixed(prefix: str) -> Reading:
    """Host counters that share a prefix, labelled by the rest of their names."""
    return lambda found: {(name[len(prefix) :],): value for name, value in found.items() if name.startswith(prefix)}


def _kinds(found: dict[str, Any]) -> Values:
    return {tuple(map(str, kind)): steps for kind, steps in dict(found.get("kinds") or {}).items()}


def _stages(found: dict[str, Any]) -> Values:
    split = found.get("time_split") or {}
    stages = ((name[:-3], value) for name, value in split.items() if name.endswith("_us"))
    return {(stage, split["clock"]): value / 1e6 for stage, value in stages}


def _samples(found: dict[str, Any]) -> Values:
    split = found.get("time_split") or {}
    return {(split["clock"],): split["samples"]} if split else {}


def _start(field: str, scale: float) -> Reading:
    """Figures of the start (``start.py``), one per part."""

    def read(found: dict[str, Any]) -> Values:
        part = dict(found.get("start") or {}).get(field) or {}
        return {(name,): value * scale for name, value in part.items() if value is not None}

    return read


def _info(found: dict[str, Any]) -> Values:
    build = found.get("build") or {}
    words = (*(build.get(name) for name in ("build_id", "release_id")), *(found.get(name) for name in _SETTINGS))
    return {tuple("" if word is None else str(word) for word in words): 1}


_SETTINGS = ("sglang", "budget", "block_size")

METRICS: tuple[Metric, ...] = (
    Metric(
        "ddtree_build_info", "gauge", "1", ("build_id", "release_id", *_SETTINGS),
        "What runs: the payload's build, SGLang's version, the budget and block size it was started with.", _info,
    ),
    Metric(
        "ddtree_steps_total", "counter", "steps", ("width", "budget", "shape", "reason"),
        "Verify steps, by nodes verified per request, most draft nodes, tree or chain, and why this budget.", _kinds,
    ),
    Metric(
        "ddtree_request_steps_total", "counter", "steps x requests", (),
        "Verify steps summed over the requests of each: what all counters below are per.", _one("requests"),
    ),
    Metric(
        "ddtree_accepted_drafts_total", "counter", "tokens", (),
        "Draft tokens that the target accepted; each request step gives one token more.", _one("accepted_drafts"),
    ),
    Metric(
        "ddtree_accept_length_total", "counter", "steps x requests", ("tokens",),
        "Request steps by the number of tokens they gave, the target's own one included.",
        _numbered("accept_length_histogram", 1),
    ),
    Metric(
        "ddtree_depth_reached_total", "counter", "steps x requests", ("depth",),
        "Request steps whose accepted path reached the depth above: a token of this depth was needed.",
        _numbered("reached_by_depth", 1),
    ),
    Metric(
        "ddtree_depth_accepted_total", "counter", "tokens", ("depth",),
        "Draft tokens accepted at this depth.", _numbered("accepted_by_depth", 1),
    ),
    Metric(
        "ddtree_depth_expected_total", "counter", "tokens", ("depth",),
        "What the drafter expected to be accepted at this depth: its path probabilities, summed over the tree.",
        _numbered("expected_by_depth", 1),
    ),
    Metric(
        "ddtree_depth_nodes_total", "counter", "nodes", ("depth",),
        "Draft nodes built at this depth.", _numbered("nodes_by_depth", 1),
    ),
    Metric(
        "ddtree_leaf_ends_total", "counter", "steps x requests", ("depth",),
        "Request steps whose path ended at a leaf of this depth: the tree offered nothing more there.",
        _numbered("leaf_ends", 0),
    ),
    Metric(
        "ddtree_tree_depth_total", "counter", "steps x requests", ("depth",),
        "Trees by their deepest node, which is also how far their spine (rank 0 at every depth) goes.",
        _numbered("tree_depth_histogram", 0),
    ),
    Metric(
        "ddtree_accepted_rank_total", "counter", "tokens", ("depth", "rank"),
        "Accepted draft tokens by depth and by their rank among the drafter's candidates (0: its best).",
        _nested("accepted_rank_by_depth"),
    ),
    Metric(
        "ddtree_first_miss_rank_total", "counter", "steps x requests", ("rank",),
        "Rank of the target's token among the candidates where the path ended; none: the path used every depth.",
        _misses,
    ),
    Metric(
        "ddtree_nodes_built_total", "counter", "nodes", (),
        "Draft nodes of all trees.", _one("nodes_built"),
    ),
    Metric(
        "ddtree_nodes_padded_total", "counter", "nodes", (),
        "Nodes verified for nothing: the trees were smaller than the width.", _one("nodes_padded"),
    ),
    Metric(
        "ddtree_branch_paths_total", "counter", "steps x requests", (),
        "Request steps whose accepted path left the drafter's best candidates: a chain would have ended there.",
        _one("branch_paths"),
    ),
    Metric(
        "ddtree_prefix_paths_total", "counter", "steps x requests", (),
        "Request steps whose path already lay at the window's front: nothing was moved.", _one("prefix_paths"),
    ),
    Metric(
        "ddtree_moved_slots_total", "counter", "slots", (),
        "KV slots that were moved to the window's front.", _one("moved_slots"),
    ),
    Metric(
        "ddtree_fallback_steps_total", "counter", "steps", ("reason",),
        "Steps that did not take the fast path: run or committed outside of captured graphs.", _prefixed("fallback_"),
    ),
    Metric(
        "ddtree_refused_requests_total", "counter", "requests", ("reason",),
        "Requests answered with an error because DDTREE does not serve what they ask for.", _prefixed("refused_"),
    ),
    Metric(
        "ddtree_stage_seconds_total", "counter", "seconds", ("stage", "clock"),
        "Time of sampled steps, by stage; divide by the samples.", _stages,
    ),
    Metric(
        "ddtree_stage_samples_total", "counter", "steps", ("clock",),
        "Steps that were timed; clock: gpu, or host where there is none.", _samples,
    ),
    Metric(
        "ddtree_poor_drafter", "gauge", "1", (),
        "1 when hardly any draft is accepted: the drafter looks like one of another target.", _one("poor_drafter"),
    ),
    Metric(
        "ddtree_start_seconds", "gauge", "seconds", ("part",),
        "How long the start took, by part.", _start("seconds", 1.0),
    ),
    Metric(
        "ddtree_memory_bytes", "gauge", "bytes", ("part",),
        "GPU memory at the end of the start, by part.", _start("memory_gb", float(1 << 30)),
    ),
)  # fmt: skip


def read_all(found: dict[str, Any]) -> Iterable[tuple[Metric, Values]]:
    """Return every metric with its values in a reading (``metrics.snapshot()`` and what ``prometheus`` adds)."""
    return ((metric, metric.read(found)) for metric in METRICS)
