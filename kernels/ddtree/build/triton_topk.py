"""Per-depth candidates on the GPU: top-k and log-sum-exp over the vocabulary in one reading of the logits.

Two kernels. The first streams the logits once and leaves, per row, the maximum of every group of ``GROUP`` tokens and
the sums of every chunk. The second selects the ``k`` best groups, which must hold the ``k`` best tokens: a token
outside of them has ``k`` group maxima before it. It reads those groups again and orders what is left.

Both selections are exact: the k-th largest key is found by counting, two bits at a time, and ties are cut by index. No
sorting network, no atomics; every sum has one order, which depends on the vocabulary alone, so a row gives the same
bits in any batch. ``topk.candidates`` is the twin on the CPU: same ids; the log-sum-exp may differ in its last bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

GROUP = 64
"""Tokens per group; the second kernel reads ``k`` groups again."""

CHUNK = 8192
"""Tokens per program of the first kernel."""

CHUNK_WARPS = 4
"""Warps per program of the first kernel."""

MAX_RANKS = 256
"""Most candidates per depth."""

MAX_VOCAB = 1 << 18
"""Largest vocabulary: its group maxima are held in registers."""

_SCALE = tl.constexpr(4294967296.0)  # 2**32, as definition.SCORE_SHIFT
_FLOOR = tl.constexpr(-72057594037927936)  # definition.SCORE_FLOOR
_FLOOR_LOG = tl.constexpr(-16777216.0)  # the same as a log-probability
_ROUND = tl.constexpr(
    6755399441055744.0
)  # 1.5 * 2**52: adding it rounds a double below 2**51 to an integer, ties to even


@dataclass(frozen=True)
class TopkBuffers:
    """Everything the kernels write, allocated once; ``R`` rows = requests x depths, rank order."""

    ids: torch.Tensor  # [R, K] int64
    log_probs: torch.Tensor  # [R, K] float32
    scores: torch.Tensor  # [R, K] int64, in 2**-32
    log_z: torch.Tensor  # [R] float32
    group_max: torch.Tensor  # [R, groups] float32, scratch
    chunk_stats: torch.Tensor  # [2, R, chunks] float32, scratch: maximum, sum of exponentials
    slots: torch.Tensor  # [R, K2] int32, scratch: the selected groups
    keys: torch.Tensor  # [R, 2 * K2] int64, scratch: the selected tokens


def make_buffers(rows: int, ranks: int, vocab: int, device: torch.device | str) -> TopkBuffers:
    """Allocate for at most ``rows`` rows; raises ``ValueError`` for what the kernels do not cover."""
    if not 0 < ranks <= min(MAX_RANKS, vocab):
        raise ValueError(f"{ranks} candidates from a vocabulary of {vocab}: 1 to {min(MAX_RANKS, vocab)} are possible")
    if vocab > MAX_VOCAB:
        raise ValueError(f"a vocabulary of {vocab} is above {MAX_VOCAB}")
    chunks = triton.cdiv(vocab, CHUNK)
    padded = triton.next_power_of_2(ranks)
    shape = (rows, ranks)
    return TopkBuffers(
        ids=torch.empty(shape, dtype=torch.int64, device=device),
        log_probs=torch.empty(shape, dtype=torch.float32, device=device),
        scores=torch.empty(shape, dtype=torch.int64, device=device),
        log_z=torch.empty(rows, dtype=torch.float32, device=device),
        group_max=torch.empty((rows, chunks * (CHUNK // GROUP)), dtype=torch.float32, device=device),
        chunk_stats=torch.empty((2, rows, chunks), dtype=torch.float32, device=device),
        slots=torch.empty((rows, padded), dtype=torch.int32, device=device),
        keys=torch.empty((rows, 2 * padded), dtype=torch.int64, device=device),
    )


def candidates_into(logits: torch.Tensor, out: TopkBuffers) -> None:
    """Write the candidates of ``logits`` (``[rows, V]``, float32, bfloat16 or float16, unit column stride, no NaN).

    Only launches: no allocation, no host synchronisation, so it can be captured in a CUDA graph. Rows beyond
    ``logits.shape[0]`` of ``out`` are left alone.
    """
    _launch(logits, out, out.ids, 0, out.ids.shape[1], False)


def pack_into(logits: torch.Tensor, out: TopkBuffers, packed: torch.Tensor, start: int, columns: int) -> None:
    """Write what merging vocabulary shards needs of one shard, instead of ids, log-probabilities and scores.

    ``packed``: ``[rows, columns + chunks]`` int64, contiguous: the sorted keys of the candidates, with token ids
    counted from ``start``, then a word per chunk with its maximum and its sum of exponentials (see ``merge``). Words
    for which this shard has no candidate or chunk are left alone. Otherwise as :func:`candidates_into`.
    """
    if not packed.is_contiguous() or columns < out.ids.shape[1]:
        raise ValueError(f"packed words of strides {packed.stride()} with {columns} columns do not fit the buffers")
    _launch(logits, out, packed, start, columns, True)


def _launch(
    logits: torch.Tensor, out: TopkBuffers, ids: torch.Tensor, start: int, columns: int, is_packed: bool
) -> None:
    rows, vocab = logits.shape
    if not rows:
        return
    if logits.stride(1) != 1 or rows > out.ids.shape[0]:
        raise ValueError(f"logits of shape {tuple(logits.shape)} and strides {logits.stride()} do not fit the buffers")
    ranks = out.ids.shape[1]
    chunks = triton.cdiv(vocab, CHUNK)
    if chunks != out.chunk_stats.shape[2]:
        raise ValueError(f"the buffers were made for another vocabulary than {vocab}")
    maxima, sums = out.chunk_stats
    stride = logits.stride(0)
    _reduce_chunks[(chunks, rows)](
        logits, stride, vocab, out.group_max, maxima, sums, chunks, CHUNK=CHUNK, GROUP=GROUP, num_warps=CHUNK_WARPS
    )
    padded = triton.next_power_of_2(ranks)
    groups = triton.cdiv(vocab, GROUP)
    _select[(rows,)](
        logits,
        stride,
        vocab,
        out.group_max,
        maxima,
        sums,
        out.slots,
        out.keys,
        ids,
        out.log_probs,
        out.scores,
        out.log_z,
        chunks,
        start,
        ids.shape[1],
        RANKS=ranks,
        RANKS2=padded,
        GROUPS2=triton.next_power_of_2(groups),
        CHUNKS2=triton.next_power_of_2(chunks),
        CHUNK_GROUPS=CHUNK // GROUP,
        GROUP=GROUP,
        BITS=key_bits(logits.dtype),
        COLUMNS=columns,
        PACKED=is_packed,
        num_warps=select_warps(groups, ranks),
    )


def key_bits(dtype: torch.dtype) -> int:
    """Bits of an order key that tell the values of a type apart."""
    return 16 if dtype == torch.bfloat16 else 32


def select_warps(groups: int, ranks: int) -> int:
    """Warps of the selection kernel: a function of vocabulary and ranks alone, since it fixes the order of sums."""
    return 16 if max(groups, ranks * GROUP) > 8192 else 8


@triton.jit
def _ordered_key(x, BITS: tl.constexpr):
    """Map float32 to uint32 in the same order (-0.0 = 0.0); never 0 for a number. 16 bits are enough for bfloat16."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.uint32, bitcast=True)
    key = tl.where((bits >> 31) != 0, ~bits, bits | 0x80000000)
    return key >> (32 - BITS)


@triton.jit
def _key_value(key, BITS: tl.constexpr):
    """Undo :func:`_ordered_key`."""
    wide = key << (32 - BITS)
    negative = ~(wide | ((1 << (32 - BITS)) - 1))
    return tl.where((wide >> 31) != 0, wide & 0x7FFFFFFF, negative).to(tl.float32, bitcast=True)


@triton.jit
def _kth_largest(key, rank, BITS: tl.constexpr):
    """Return the largest t that at least ``rank`` keys reach; 0 when fewer keys than that are above 0.

    Two bits at a time: one packed sum counts the keys that reach each of three candidate values.
    """
    found = tl.full((), 0, tl.uint32)
    one = tl.full((), 1 << (BITS - 2), tl.uint32)
    for _ in range(BITS // 2):
        first = (key >= (found | one)).to(tl.int64)
        second = (key >= (found | (one << 1))).to(tl.int64)
        third = (key >= (found | (one << 1) | one)).to(tl.int64)
        counts = tl.sum(first | (second << 16) | (third << 32), axis=0)
        reached = ((counts & 0xFFFF) >= rank).to(tl.uint32)
        reached += (((counts >> 16) & 0xFFFF) >= rank).to(tl.uint32)
        reached += ((counts >> 32) >= rank).to(tl.uint32)
        found = found | (reached * one)
        one = one >> 2
    return found


@triton.jit
def _first_by_key(key, threshold, rank):
    """Flag the ``rank`` best: all keys above the threshold, and of those equal to it the first by index."""
    above = key > threshold
    tied = (key == threshold) & (key > 0)
    missing = rank - tl.sum(above.to(tl.int32), axis=0)
    return above | (tied & (tl.cumsum(tied.to(tl.int32), axis=0) <= missing))


@triton.jit
def _quantise(log_prob):
    """``definition.quantise``: int64 units of 2**-32, ties to even, clamped at the floor (NaN too)."""
    scaled = log_prob.to(tl.float64) * _SCALE
    small = tl.abs(scaled) < 2251799813685248.0  # 2**51; above it a float32 times 2**32 is an integer already
    rounded = tl.where(small, (scaled + _ROUND) - _ROUND, scaled)
    kept = log_prob > _FLOOR_LOG
    return tl.where(kept, tl.where(kept, rounded, 0.0).to(tl.int64), _FLOOR)


@triton.jit(do_not_specialize=["chunks"])
def _reduce_chunks(
    logits, row_stride, vocab, group_max, chunk_max, chunk_sum, chunks, CHUNK: tl.constexpr, GROUP: tl.constexpr
):
    """Program (chunk, row): maxima of the chunk's groups, and the chunk's maximum and sum of exponentials."""
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    GROUPS: tl.constexpr = CHUNK // GROUP
    group = tl.arange(0, GROUPS)
    token = chunk * CHUNK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    logits += row * row_stride
    if (chunk + 1) * CHUNK <= vocab:  # all but the last: no comparison per token
        x = tl.load(logits + token).to(tl.float32)
    else:
        x = tl.load(logits + token, mask=token < vocab, other=-float("inf")).to(tl.float32)
    best = tl.max(x, axis=1)
    base = tl.where(best == -float("inf"), 0.0, best)  # per group: no exponential waits for the whole chunk's maximum
    sums = tl.sum(tl.exp(x - base[:, None]), axis=1)
    top = tl.max(best, axis=0)
    total = tl.sum(sums * tl.exp(best - tl.where(top == -float("inf"), 0.0, top)), axis=0)
    tl.store(group_max + (row * chunks + chunk) * GROUPS + group, best)
    tl.store(chunk_max + row * chunks + chunk, top)
    tl.store(chunk_sum + row * chunks + chunk, total)


@triton.jit
def _log_sum_exp(maxima, sums):
    """Log-sum-exp (float32) of all chunks, from their maxima (float32) and sums (float64)."""
    top = tl.max(maxima, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(sums * tl.exp((maxima - base).to(tl.float64)), axis=0)
    return (base.to(tl.float64) + tl.log(total)).to(tl.float32)


@triton.jit(do_not_specialize=["chunks", "first_token", "row_words"])
def _select(
    logits,
    row_stride,
    vocab,
    group_max,
    chunk_max,
    chunk_sum,
    slots,
    keys,
    ids,
    log_probs,
    scores,
    log_zs,
    chunks,
    first_token,
    row_words,
    RANKS: tl.constexpr,
    RANKS2: tl.constexpr,
    GROUPS2: tl.constexpr,
    CHUNKS2: tl.constexpr,
    CHUNK_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Program (row): log-sum-exp from the chunks, best groups, best tokens of these groups, ordered.

    With ``PACKED`` only keys and the chunks' statistics leave, in ``ids``, rows of ``row_words``.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    slots += row * RANKS2
    keys += row * (2 * RANKS2)

    chunk = tl.arange(0, CHUNKS2)
    maxima = tl.load(chunk_max + row * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
    sums = tl.load(chunk_sum + row * chunks + chunk, mask=chunk < chunks, other=0.0)
    if PACKED:
        ids += row * row_words
        word = (maxima.to(tl.int32, bitcast=True).to(tl.int64) << 32) | sums.to(tl.uint32, bitcast=True).to(tl.int64)
        tl.store(ids + COLUMNS + chunk, word, mask=chunk < chunks)
    else:
        log_z = _log_sum_exp(maxima, sums.to(tl.float64))
        tl.store(log_zs + row, log_z)

    group = tl.arange(0, GROUPS2)
    is_group = group * GROUP < vocab
    best = tl.load(group_max + row * chunks * CHUNK_GROUPS + group, mask=is_group, other=0.0)
    group_key = tl.where(is_group, _ordered_key(best, BITS), 0)
    threshold = _kth_largest(group_key, RANKS, BITS)
    chosen = _first_by_key(group_key, threshold, RANKS).to(tl.int32)
    tl.store(slots + tl.cumsum(chosen, axis=0) - 1, group, mask=chosen > 0)
    filled = tl.sum(chosen, axis=0)
    tl.debug_barrier()

    # The groups' tokens, ascending. Whatever reaches the k-th group maximum is a candidate: as a rule k and a few.
    lane = tl.arange(0, RANKS2 * GROUP)
    slot = lane // GROUP
    token = tl.load(slots + slot, mask=slot < filled, other=0) * GROUP + lane % GROUP
    real = (slot < filled) & (token < vocab)
    x = tl.load(logits + token, mask=real, other=0.0).to(tl.float32)
    key = tl.where(real, _ordered_key(x, BITS), 0)
    kept = (real & (key >= threshold)).to(tl.int32)
    if tl.sum(kept, axis=0) > 2 * RANKS2:  # many ties or a small vocabulary
        kept = _first_by_key(key, _kth_largest(key, RANKS, BITS), RANKS).to(tl.int32)
    count = tl.sum(kept, axis=0)
    order = (key.to(tl.int64) << 31) | (0x7FFFFFFF - token).to(tl.int64)
    tl.store(keys + tl.cumsum(kept, axis=0) - 1, order, mask=kept > 0)
    tl.debug_barrier()

    # Keys are distinct: the position of each in the order is the number of larger ones.
    entry = tl.arange(0, 2 * RANKS2)
    mine = tl.load(keys + entry, mask=entry < count, other=-1)
    position = tl.zeros((2 * RANKS2,), tl.int32)
    BLOCK: tl.constexpr = 32 if RANKS2 >= 16 else 2 * RANKS2
    for start in range(0, 2 * RANKS2, BLOCK):
        other = start + tl.arange(0, BLOCK)
        theirs = tl.load(keys + other, mask=other < count, other=-1)
        position += tl.sum((theirs[None, :] > mine[:, None]).to(tl.int32), axis=1)
    written = (entry < count) & (position < RANKS)
    if PACKED:
        tl.store(ids + position, mine - first_token, mask=written)
    else:
        _write(mine, position, written, log_z, ids, log_probs, scores, row, RANKS, BITS)


@triton.jit
def _write(key, position, written, log_z, ids, log_probs, scores, row, RANKS: tl.constexpr, BITS: tl.constexpr):
    """Write candidates, given as order keys, to their positions."""
    value = _key_value((key >> 31).to(tl.uint32), BITS)
    log_prob = value - log_z
    out = row * RANKS + position
    tl.store(ids + out, 0x7FFFFFFF - (key & 0x7FFFFFFF), mask=written)
    tl.store(log_probs + out, log_prob, mask=written)
    tl.store(scores + out, _quantise(log_prob), mask=written)
