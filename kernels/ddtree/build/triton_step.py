"""A decode step's inputs on the GPU, in one launch; the twin on a CPU is in ``step.StepBuffers.prepare``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


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
