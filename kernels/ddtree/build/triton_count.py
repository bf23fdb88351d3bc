"""The counters of a verify step as one kernel; its twin, with the layout, is ``count.add_step``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .accept import Accepted
from .count import LOG2_E, POWER, RANK_BINS, SCALARS, Layout
from .torch_builder import TreeBatch

_BINS = tl.constexpr(RANK_BINS)
_SCALARS = tl.constexpr(len(SCALARS))
_LOG2_E = tl.constexpr(LOG2_E)
_C0, _C1, _C2, _C3, _C4 = (tl.constexpr(value) for value in POWER)
_FRACTION = tl.constexpr((1 << 20) - 1)
_CUT = tl.constexpr(1 << 25)
_ONE_NODE = tl.constexpr(1 << 40)  # number of nodes above, their probabilities below: one sum for both


def count_into(
    counts: torch.Tensor,
    layout: Layout,
    tree: TreeBatch,
    ids: torch.Tensor,
    accepted: Accepted,
    moved: torch.Tensor,
    live: torch.Tensor | None = None,
) -> None:
    """Add one verify step to ``counts`` by atomic additions; arguments as ``count.add_step``.

    One launch, no allocation, no synchronisation: it can be captured. A request that is not ``live`` costs one load.
    """
    bs, width = tree.valid.shape
    ranks = ids.shape[2]
    if ranks > layout.ranks or ids.shape[1] != layout.path_width - 1 or ids.stride(2) != 1:
        raise ValueError(f"candidates of shape {tuple(ids.shape)} do not fit counters of {layout}")
    if not bs:
        return
    lanes = max(triton.next_power_of_2(width), 32)
    _count[(bs,)](
        counts,
        tree.valid,
        tree.depth,
        tree.rank,
        tree.score,
        tree.retrieve_next_token,
        ids,
        accepted.path,
        accepted.accept_len,
        accepted.bonus,
        moved,
        moved if live is None else live,
        tree.valid.stride(0),
        tree.depth.stride(0),
        ids.stride(0),
        ids.stride(1),
        accepted.path.stride(0),
        width,
        GATED=live is not None,
        LANES=lanes,
        P=layout.path_width,
        PATH=triton.next_power_of_2(layout.path_width),
        K=ranks,
        CANDIDATES=triton.next_power_of_2(ranks),
        LENGTHS=layout.at("accept_length_histogram"),
        LEAVES=layout.at("leaf_ends"),
        DEPTHS=layout.at("tree_depth_histogram"),
        NODES=layout.at("nodes_by_depth"),
        EXPECTED=layout.at("expected_by_depth"),
        ACCEPTED=layout.at("accepted_rank_by_depth"),
        MISSES=layout.at("first_miss_rank"),
        num_warps=1 if lanes <= 128 else 4,
    )


@triton.jit
def _probability(score):
    """``count.probability``."""
    log2 = tl.minimum(tl.maximum(-score, 0) >> 12, _CUT) * _LOG2_E >> 20
    fraction = log2 & _FRACTION
    value = _C3 + (_C4 * fraction >> 20)
    value = _C2 + (value * fraction >> 20)
    value = _C1 + (value * fraction >> 20)
    value = _C0 + (value * fraction >> 20)
    return value >> (log2 >> 20)


@triton.jit(do_not_specialize=["valid_stride", "node_stride", "ids_stride", "row_stride", "path_stride", "width"])
def _count(
    counts,
    valid,
    depths,
    ranks,
    scores,
    next_tokens,
    ids,
    paths,
    accept_lens,
    bonuses,
    moved,
    live,
    valid_stride,
    node_stride,
    ids_stride,
    row_stride,
    path_stride,
    width,
    GATED: tl.constexpr,
    LANES: tl.constexpr,
    P: tl.constexpr,
    PATH: tl.constexpr,
    K: tl.constexpr,
    CANDIDATES: tl.constexpr,
    LENGTHS: tl.constexpr,
    LEAVES: tl.constexpr,
    DEPTHS: tl.constexpr,
    NODES: tl.constexpr,
    EXPECTED: tl.constexpr,
    ACCEPTED: tl.constexpr,
    MISSES: tl.constexpr,
):
    """Program (request)."""
    b = tl.program_id(0).to(tl.int64)
    is_live = tl.full((), 1, tl.int64)
    if GATED:
        is_live = tl.load(live + b).to(tl.int64)
    if is_live != 0:
        one = tl.full((), 1, tl.int64)
        length = tl.load(accept_lens + b).to(tl.int64)
        copied = tl.load(moved + b).to(tl.int64)
        row = b * node_stride

        # The path: accepted ranks, and what stood where the walk ended.
        step = tl.arange(0, PATH)
        on_path = (step > 0) & (step <= length) & (step < P)
        node = tl.load(paths + b * path_stride + step, mask=step < P, other=0)
        rank = tl.load(ranks + row + node, mask=on_path, other=0)
        later = tl.sum((on_path & (rank > 0)).to(tl.int64), axis=0)
        places = counts + ACCEPTED + (step - 1) * _BINS + tl.minimum(rank, _BINS - 1)
        tl.atomic_add(places, tl.full((PATH,), 1, tl.int64), mask=on_path, sem="relaxed")
        end = tl.load(paths + b * path_stride + length)
        is_leaf = tl.load(next_tokens + row + end) < 0
        tl.atomic_add(counts + LENGTHS + length, one, sem="relaxed")
        tl.atomic_add(counts + LEAVES + length, one, mask=is_leaf, sem="relaxed")

        # The target's token there: which of the drafter's candidates was it?
        full = length >= P - 1
        lane = tl.arange(0, CANDIDATES)
        candidate = tl.load(
            ids + b * ids_stride + tl.minimum(length, P - 2) * row_stride + lane, mask=lane < K, other=-1
        )
        hit = (candidate == tl.load(bonuses + b)) & (lane < K) & (length < P - 1)
        inside = tl.sum(hit.to(tl.int64), axis=0) > 0
        miss = tl.sum(tl.where(hit, lane, 0), axis=0)
        tl.atomic_add(counts + MISSES + miss, one, mask=inside, sem="relaxed")

        # The tree by depth.
        lane = tl.arange(0, LANES)
        exists = tl.load(valid + b * valid_stride + lane, mask=lane < width, other=0) != 0
        depth = tl.load(depths + row + lane, mask=lane < width, other=0)
        is_node = exists & (depth > 0)
        score = tl.load(scores + row + lane, mask=is_node, other=0)
        packed = tl.where(is_node, _probability(score) + _ONE_NODE, 0)
        nodes = tl.sum(exists.to(tl.int64), axis=0) - 1
        deepest = tl.max(tl.where(is_node, depth, 0), axis=0)
        by_depth = tl.zeros((PATH,), tl.int64)
        for level in tl.static_range(1, P):
            by_depth = tl.where(step == level, tl.sum(tl.where(depth == level, packed, 0), axis=0), by_depth)
        found = by_depth > 0
        tl.atomic_add(counts + NODES + step, by_depth >> 40, mask=found, sem="relaxed")
        tl.atomic_add(counts + EXPECTED + step, by_depth & (_ONE_NODE - 1), mask=found, sem="relaxed")
        tl.atomic_add(counts + DEPTHS + deepest, one, sem="relaxed")

        # The scalars in one instruction, in the order of ``count.SCALARS``.
        at = tl.arange(0, 16)
        value = tl.where(at == 0, one, tl.where(at == 1, length, tl.where(at == 2, (later > 0).to(tl.int64), 0)))
        value = tl.where(at == 3, later, tl.where(at == 4, copied, tl.where(at == 5, nodes, value)))
        value = tl.where(at == 6, width - 1 - nodes, tl.where(at == 7, (copied == 0).to(tl.int64), value))
        outside = ((inside == 0) & (full == 0)).to(tl.int64)
        value = tl.where(at == 8, outside, tl.where(at == 9, full.to(tl.int64), value))
        tl.atomic_add(counts + at, value, mask=(at < _SCALARS) & (value > 0), sem="relaxed")
