"""The clocks of seeded requests on the GPU, in one pass; the law is in ``coins``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


def clocks_into(
    seeds: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor | None, out: torch.Tensor
) -> torch.Tensor:
    """Fill ``out`` (float32 ``[r, N, V]``, contiguous); arguments as ``coins.clocks``. A launch, no synchronisation."""
    rows, width, vocab = out.shape
    positions = positions.contiguous()
    if ids is not None and not ids.is_contiguous():
        raise ValueError("ids must be contiguous")
    if out.numel():
        grid = (rows * width, triton.cdiv(vocab, _BLOCK))
        _clocks[grid](
            seeds, positions, out if ids is None else ids, out, width, vocab, IDS=ids is not None, BLOCK=_BLOCK,
            num_warps=4,
        )  # fmt: skip
    return out


@triton.jit
def _rotate(x, BY: tl.constexpr):
    return (x << BY) | (x >> (32 - BY))


@triton.jit
def _scramble(key):
    return _rotate(key * 0xCC9E2D51, 15) * 0x1B873593


@triton.jit
def _mix(state, key):
    return _rotate(state ^ _scramble(key), 13) * 5 + 0xE6546B64


@triton.jit
def _clocks(seeds, positions, ids, out, width, vocab, IDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program (request and node, block of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < vocab
    seed = tl.load(seeds + row // width).to(tl.uint64, bitcast=True)
    position = tl.load(positions + row).to(tl.uint32)
    token = column.to(tl.uint32)
    if IDS:
        token = tl.load(ids + row * vocab + column, mask=inside, other=0).to(tl.uint32)
    state = _mix(tl.zeros((BLOCK,), tl.uint32), (seed & 0xFFFFFFFF).to(tl.uint32))
    state = _mix(state, (seed >> 32).to(tl.uint32))
    state = _mix(state, position)
    h = _mix(state, token) ^ 16
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    h = h ^ (h >> 16)
    v = ((0xFFFFFFFF - h).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    v = tl.minimum(v, 0.99999994)
    # -log(1 - v): near 0 the difference rounds away, and the least clocks are the ones that win
    near = v * (1.0 + v * (0.5 + v * 0.33333333))
    tl.store(out + row * vocab + column, tl.where(v < 0.0078125, near, -tl.log(1.0 - v)), mask=inside)
