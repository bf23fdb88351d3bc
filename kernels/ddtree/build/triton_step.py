"""The small kernels around a decode step on the GPU: its inputs in one launch, its counters in another.

Twins on the CPU: ``step.prepare`` and ``metrics.DeviceCounters.add``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .torch_builder import TreeBatch


def prepare_into(
    root: torch.Tensor,
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    mask_token: int,
    is_live: bool,
    window: torch.Tensor,
    front: torch.Tensor,
    block_ids: torch.Tensor,
    positions: torch.Tensor,
    live: torch.Tensor,
    widest: int = 0,
) -> None:
    """Write a step's KV slots (``window [bs, N]``, ``front [bs, B]``) and draft block (``block_ids``, ``positions``).

    ``live`` (``[bs or more]``): ``is_live`` for the requests of the batch, 0 for those beyond. ``widest``: the largest
    N to come, so that one compiled kernel serves all.

    The only reading of ``req_to_token`` (2-d, unit column stride) by this worker in a step. Outputs int64, contiguous.
    """
    bs, width = window.shape
    block = front.shape[1]
    if bs:
        _prepare[(live.shape[0],)](
            root,
            seq_lens,
            req_pool_indices,
            req_to_token,
            req_to_token.stride(0),
            req_to_token.shape[1],
            mask_token,
            bs,
            int(is_live),
            live,
            window,
            front,
            block_ids,
            positions,
            width,
            LANES=triton.next_power_of_2(max(width, block, widest)),
            B=block,
            num_warps=1,
        )


def count_into(
    counts: torch.Tensor,
    tree: TreeBatch,
    path: torch.Tensor,
    accept_len: torch.Tensor,
    moved: torch.Tensor,
    scalars: int,
    rank_bins: int,
    live: torch.Tensor | None = None,
) -> None:
    """Add one verify step to ``counts`` (int64, laid out as ``metrics.DeviceCounters``) by atomic additions.

    With ``live`` (``[bs]``, 0 or 1) requests that are 0 there are not counted.
    """
    bs, width = tree.valid.shape
    path_width = path.shape[1]
    if bs:
        _count[(bs,)](
            counts,
            tree.valid,
            tree.rank,
            path,
            accept_len,
            moved,
            moved if live is None else live,
            GATED=live is not None,
            N=width,
            LANES=triton.next_power_of_2(width),
            P=path_width,
            PATH=triton.next_power_of_2(path_width),
            SCALARS=scalars,
            BINS=rank_bins,
            num_warps=1,
        )


@triton.jit(do_not_specialize=["mask_token", "bs", "is_live", "width"])
def _prepare(
    roots,
    seq_lens,
    pool_indices,
    table,
    table_stride,
    table_width,
    mask_token,
    bs,
    is_live,
    live,
    window,
    front,
    block_ids,
    positions,
    width,
    LANES: tl.constexpr,
    B: tl.constexpr,
):
    """Program (request)."""
    b = tl.program_id(0).to(tl.int64)
    tl.store(live + b, tl.where(b < bs, is_live, 0).to(tl.int64))
    if b < bs:
        lane = tl.arange(0, LANES)
        max_lane = tl.maximum(width, B)
        position = tl.load(seq_lens + b).to(tl.int64) + lane
        row = table + tl.load(pool_indices + b).to(tl.int64) * table_stride
        slot = tl.load(row + position, mask=(lane < max_lane) & (position < table_width), other=0).to(tl.int64)
        token = tl.where(lane == 0, tl.load(roots + b).to(tl.int64), mask_token)
        tl.store(window + b * width + lane, slot, mask=lane < width)
        tl.store(front + b * B + lane, slot, mask=lane < B)
        tl.store(block_ids + b * B + lane, token, mask=lane < B)
        tl.store(positions + b * B + lane, position, mask=lane < B)


@triton.jit
def _count(
    counts,
    valid,
    ranks,
    paths,
    accept_lens,
    moved,
    live,
    GATED: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    P: tl.constexpr,
    PATH: tl.constexpr,
    SCALARS: tl.constexpr,
    BINS: tl.constexpr,
):
    """Program (request)."""
    b = tl.program_id(0).to(tl.int64)
    one = tl.full((), 1, tl.int64)
    if GATED:
        one = tl.load(live + b)
    lane = tl.arange(0, LANES)
    nodes = tl.sum(tl.load(valid + b * N + lane, mask=lane < N, other=0).to(tl.int64), axis=0) - 1
    accepted = tl.load(accept_lens + b).to(tl.int64) * one
    step = tl.arange(0, PATH)
    on_path = (step > 0) & (step <= accepted) & (step < P)
    node = tl.load(paths + b * P + step, mask=step < P, other=0)
    rank = tl.load(ranks + b * N + node, mask=on_path, other=0)
    later = tl.sum((on_path & (rank > 0)).to(tl.int64), axis=0)
    tl.atomic_add(counts, one)
    tl.atomic_add(counts + 1, accepted)
    tl.atomic_add(counts + 2, (later > 0).to(tl.int64))
    tl.atomic_add(counts + 3, later)
    tl.atomic_add(counts + 4, tl.load(moved + b).to(tl.int64) * one)
    tl.atomic_add(counts + 5, nodes * one)
    tl.atomic_add(counts + SCALARS + accepted, one)
    bin_of = tl.minimum(rank, BINS - 1)
    tl.atomic_add(counts + SCALARS + P + bin_of, tl.full((PATH,), 1, tl.int64), mask=on_path)
