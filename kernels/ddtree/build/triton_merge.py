"""Merge the candidates of vocabulary shards on the GPU; twin: ``merge.merge``. One launch, no host synchronisation.

Every shard's keys are sorted already, so a key's place in the merged order is its own place plus, for every other
shard, the number of larger keys there: a binary search of a few cached loads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .triton_topk import _log_sum_exp, _write


@dataclass(frozen=True)
class MergeBuffers:
    """What the kernel writes, allocated once; ``R`` rows, rank order."""

    ids: torch.Tensor  # [R, K] int64
    log_probs: torch.Tensor  # [R, K] float32
    scores: torch.Tensor  # [R, K] int64, in 2**-32
    log_z: torch.Tensor  # [R] float32


def make_buffers(rows: int, count: int, device: torch.device | str) -> MergeBuffers:
    """Allocate for at most ``rows`` rows of ``count`` candidates."""
    return MergeBuffers(
        ids=torch.empty((rows, count), dtype=torch.int64, device=device),
        log_probs=torch.empty((rows, count), dtype=torch.float32, device=device),
        scores=torch.empty((rows, count), dtype=torch.int64, device=device),
        log_z=torch.empty(rows, dtype=torch.float32, device=device),
    )


def merge_into(words: torch.Tensor, out: MergeBuffers, key_bits: int) -> MergeBuffers:
    """Merge ``words`` (``[ranks, R, K + chunks]`` int64, contiguous), whose keys hold ``key_bits`` bits of a logit."""
    shards, rows, row_words = words.shape
    count = out.ids.shape[1]
    if not words.is_contiguous() or rows > out.ids.shape[0] or row_words <= count:
        raise ValueError(f"gathered words of shape {tuple(words.shape)} do not fit the buffers")
    chunks = row_words - count
    if rows:
        lanes = triton.next_power_of_2(shards * count)
        _merge[(rows,)](
            words,
            words.stride(0),
            out.ids,
            out.log_probs,
            out.scores,
            out.log_z,
            SHARDS=shards,
            RANKS=count,
            CHUNKS=chunks,
            LANES=lanes,
            CHUNKS2=triton.next_power_of_2(shards * chunks),
            STEPS=count.bit_length(),
            BITS=key_bits,
            num_warps=1 if lanes <= 64 else 4,
        )
    return out


@triton.jit
def _merge(
    words,
    shard_stride,
    ids,
    log_probs,
    scores,
    log_zs,
    SHARDS: tl.constexpr,
    RANKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNKS2: tl.constexpr,
    STEPS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Program (row)."""
    row = tl.program_id(0).to(tl.int64)
    words += row * (RANKS + CHUNKS)
    chunk = tl.arange(0, CHUNKS2)
    is_chunk = chunk < SHARDS * CHUNKS
    where = (chunk // CHUNKS).to(tl.int64) * shard_stride + RANKS + chunk % CHUNKS
    word = tl.load(words + where, mask=is_chunk, other=0)
    maxima = tl.where(is_chunk, (word >> 32).to(tl.int32).to(tl.float32, bitcast=True), -float("inf"))
    sums = word.to(tl.int32).to(tl.float32, bitcast=True).to(tl.float64)
    log_z = _log_sum_exp(maxima, sums)
    tl.store(log_zs + row, log_z)

    lane = tl.arange(0, LANES)
    shard = lane // RANKS
    place = lane % RANKS
    mine = tl.load(words + shard.to(tl.int64) * shard_stride + place, mask=shard < SHARDS, other=-1)
    position = place
    for other in tl.static_range(SHARDS):
        larger = lane * 0
        for step in tl.static_range(STEPS):
            reach = larger + (1 << (STEPS - 1 - step))
            theirs = tl.load(words + other * shard_stride + reach - 1, mask=reach <= RANKS, other=-1)
            larger = tl.where(theirs > mine, reach, larger)
        position += tl.where(shard == other, 0, larger)
    _write(mine, position, (mine >= 0) & (position < RANKS), log_z, ids, log_probs, scores, row, RANKS, BITS)
