"""The exact tree builder as one GPU kernel: same inputs and outputs as ``torch_builder.build_trees``, bit for bit.

One program per request runs the pending-child loop with all state in registers. A lane stands for a node and holds that
node's one pending candidate: score, order code and two packed words (node, last child, rank; depth, code bits in use).
A step is one reduction over the lanes, whose result is the new node; siblings' and first children's scores come from
the candidate table, which stays in the L1 cache. The loop ends at the request's own budget, so small budgets cost less.

The same program then writes all that verification needs. Ancestors need no walk: node ``j`` is an ancestor of ``i``
exactly when ``j``'s order code is a prefix of ``i``'s.

The width is data: a captured launch builds trees of every width up to the buffers' own, laid out without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..tree.definition import CODE_BITS, MAX_DEPTH, code_bits_needed
from .shape import DeviceShape
from .torch_builder import TreeBatch

MAX_BUDGET = 256
"""Most nodes per tree, root not counted."""

_CODE_BITS = tl.constexpr(CODE_BITS)
_NEVER = tl.constexpr(-(1 << 62))  # below every sum of scores, floors included
_LAST = tl.constexpr((1 << 63) - 1)


@dataclass(frozen=True)
class BuildBuffers:
    """What the kernel writes, allocated once for ``max_bs`` requests of at most ``N`` nodes.

    Trees of ``n <= N`` nodes lie at the start of each array without gaps, request after request.
    """

    nodes: torch.Tensor  # [9, max_bs, N] int64: the arrays of TreeBatch in the order of _ARRAYS
    mask: torch.Tensor  # [max_bs, N, N] bool
    valid: torch.Tensor  # [max_bs, N] bool
    scratch: torch.Tensor  # [max_bs, 3, N2] int64

    def batch(self, bs: int, width: int | None = None) -> TreeBatch:
        """Return the views of the first ``bs`` requests of ``width`` nodes (N without one)."""
        n = self.valid.shape[1] if width is None else width
        arrays = {name: self.nodes[i].view(-1)[: bs * n].view(bs, n) for i, name in enumerate(_ARRAYS)}
        mask = self.mask.view(-1)[: bs * n * n].view(bs, n, n)
        return TreeBatch(**arrays, mask=mask, valid=self.valid.view(-1)[: bs * n].view(bs, n))


_ARRAYS = (
    "draft_token",
    "parent",
    "depth",
    "positions",
    "retrieve_index",
    "retrieve_next_token",
    "retrieve_next_sibling",
    "score",
    "rank",
)


def make_buffers(max_bs: int, width: int, depths: int, ranks: int, device: torch.device | str) -> BuildBuffers:
    """Allocate; raises ``ValueError`` for trees that the kernel's number formats do not cover."""
    budget = width - 1
    if not 0 <= budget <= MAX_BUDGET:
        raise ValueError(f"a budget of {budget} nodes: 0 to {MAX_BUDGET} are possible")
    if depths > MAX_DEPTH or ranks >= 1 << 9 or code_bits_needed(budget, depths) > CODE_BITS:
        raise ValueError(f"trees of {depths} levels, {ranks} ranks and {budget} nodes do not fit the order code")
    lanes = max(triton.next_power_of_2(max(budget, 1)), 32)  # whole warps: they reduce in one instruction
    return BuildBuffers(
        nodes=torch.empty((len(_ARRAYS), max_bs, width), dtype=torch.int64, device=device),
        mask=torch.empty((max_bs, width, width), dtype=torch.bool, device=device),
        valid=torch.empty((max_bs, width), dtype=torch.bool, device=device),
        scratch=torch.empty((max_bs, 3, lanes), dtype=torch.int64, device=device),
    )


def build_trees_into(
    root_token: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    budgets: torch.Tensor,
    end_lens: torch.Tensor,
    shape: DeviceShape,
    out: BuildBuffers,
    full_mask: torch.Tensor | None = None,
    fill_prefix: bool = False,
    square_mask: bool = True,
) -> TreeBatch:
    """Build the trees of ``bs`` requests into ``out``; arguments as ``torch_builder.build_trees``.

    ``shape`` is read on the device: a captured launch follows whatever was written there before a replay. The returned
    views have the width that it has now.

    ``full_mask``: flat bool buffer that takes SGLang's FULL_MASK (request after request, N rows of ``seq_len + N``
    columns, laid out by the device's own ``seq_lens``), at least ``N * (sum(seq_lens) + N * bs)`` long. Its prefix
    columns are written only with ``fill_prefix``: SGLang's Triton backend does not read them. Without ``square_mask``
    the result's ``mask`` is not written. Integer tensors may be int32 or int64. Launches only: no allocation, no host
    synchronisation.
    """
    bs, depths, ranks = ids.shape
    most, width = out.nodes.shape[2], shape.host.width
    if not 1 <= width <= most:
        raise ValueError(f"trees of {width} nodes, the buffers hold {most}")
    if bs > out.nodes.shape[1]:
        raise ValueError(f"{bs} requests, the buffers hold {out.nodes.shape[1]}")
    if not (ids.is_contiguous() and scores.is_contiguous()):
        raise ValueError("ids and scores must be contiguous")
    if not bs:
        return out.batch(0, width)
    lanes = out.scratch.shape[2]
    _build[(bs,)](
        root_token,
        ids,
        scores,
        seq_lens,
        budgets,
        end_lens,
        shape.values,
        out.nodes,
        out.nodes.stride(0),
        out.mask,
        out.valid,
        out.scratch,
        out.mask if full_mask is None else full_mask,
        DEPTHS=depths,
        RANKS=ranks,
        TABLE=triton.next_power_of_2(max(depths * ranks, 1)),
        N=most,
        LANES=lanes,
        ROWS=min(lanes, 16 if lanes <= 64 else 8),
        SQUARE=square_mask,
        FULL=full_mask is not None,
        num_warps=1 if lanes <= 64 else 2 if lanes <= 128 else 4,
    )
    if full_mask is not None and fill_prefix:
        _fill_prefix[(width, bs)](seq_lens, full_mask, N=width, BLOCK=2048, num_warps=4)
    return out.batch(bs, width)


@triton.jit
def _winner(score, code, links, place):
    """Return the best candidate's four values: score descending, then order code ascending.

    Word by word on 32 bits, since that is what a GPU reduces in one instruction.
    """
    high, low = (score >> 32).to(tl.int32), score.to(tl.uint32)
    best_high = tl.max(high, axis=0)
    best_low = tl.max(tl.where(high == best_high, low, 0), axis=0)
    hit = (high == best_high) & (low == best_low)
    high, low = (code >> 32).to(tl.int32), code.to(tl.uint32)
    first_high = tl.min(tl.where(hit, high, 0x7FFFFFFF), axis=0)
    hit = hit & (high == first_high)
    first_low = tl.min(tl.where(hit, low, 0xFFFFFFFF), axis=0)
    hit = hit & (low == first_low)
    best = (best_high.to(tl.int64) << 32) | best_low.to(tl.int64)
    first = (first_high.to(tl.int64) << 32) | first_low.to(tl.int64)
    return best, first, tl.max(tl.where(hit, links, 0), axis=0), tl.max(tl.where(hit, place, 0), axis=0)


@triton.jit
def _log2(x):
    """floor(log2(x)) of a positive int32 below 2**24, by a float's exponent."""
    return (x.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _rank_code(rank):
    """``definition.rank_code``: bits as int64, length as int32."""
    n = _log2(rank + 1)
    power = (rank * 0 + 1) << n
    return ((2 * power - 1) * (2 * power) + rank + 1 - power).to(tl.int64), 2 * n + 2


@triton.jit
def _shift(used):
    """Bits below a code of ``used`` bits."""
    return tl.maximum(_CODE_BITS - used, 0).to(tl.int64)


@triton.jit
def _full_offset(seq_lens, b, n):
    """Where request ``b`` starts in a FULL_MASK."""
    total = tl.zeros((), tl.int64)
    for start in range(0, b, 128):
        before = start + tl.arange(0, 128)
        total += tl.sum(tl.load(seq_lens + before, mask=before < b, other=0).to(tl.int64), axis=0)
    return n * (total + b * n)


@triton.jit
def _mask_rows(
    codes,
    node_code,
    span,
    count,
    square,
    flat,
    flat_stride,
    n,
    start,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARE: tl.constexpr,
    FULL: tl.constexpr,
):
    """Write the mask rows of ``ROWS`` nodes: column 0 is the root, the others are the lanes."""
    lane = tl.arange(0, LANES)
    line = start + tl.arange(0, ROWS)
    in_rows = line < n - 1
    line_code = tl.load(codes + line, mask=line < count, other=-2)
    sees = ((line_code[:, None] ^ node_code[None, :]) & span[None, :]) == 0
    sees = sees | (line[:, None] == lane[None, :])
    cells = in_rows[:, None] & (lane < n - 1)[None, :]
    if SQUARE:
        row = square + (line + 1) * n
        tl.store(row, 1, mask=in_rows)
        tl.store(row[:, None] + 1 + lane[None, :], sees, mask=cells)
    if FULL:
        row = flat + (line + 1) * flat_stride
        tl.store(row, 1, mask=in_rows)
        tl.store(row[:, None] + 1 + lane[None, :], sees, mask=cells)


@triton.jit(do_not_specialize=["array_stride"])
def _build(
    root_token,
    ids,
    scores,
    seq_lens,
    budgets,
    end_lens,
    shape,
    nodes,
    array_stride,
    mask,
    valid,
    scratch,
    full_mask,
    DEPTHS: tl.constexpr,
    RANKS: tl.constexpr,
    TABLE: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARE: tl.constexpr,
    FULL: tl.constexpr,
):
    """Program (request): the pending-child loop. A lane is a node from 0 on; the last node needs none."""
    b = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    table = scores + b * (DEPTHS * RANKS)
    scratch += b * (3 * LANES)
    seq_len = tl.load(seq_lens + b).to(tl.int64)
    n = tl.minimum(tl.load(shape), N)
    budget = tl.minimum(tl.load(budgets + b), tl.minimum(tl.load(shape + 1), n - 1)).to(tl.int32)
    usable = tl.minimum(tl.load(shape + 2), RANKS)
    room = tl.load(end_lens + b).to(tl.int64) - seq_len - 1
    deepest = tl.minimum(tl.maximum(room, 0), DEPTHS).to(tl.int32)

    # Touch the whole table, so that the loop's loads hit the L1 cache. The store never happens: no score is above 0.
    entry = tl.arange(0, TABLE)
    touched = tl.max(tl.load(table + entry, mask=entry < DEPTHS * RANKS, other=0).to(tl.uint32), axis=0)
    root = tl.load(table, mask=deepest > 0, other=_NEVER)
    tl.store(scratch, touched.to(tl.int64), mask=root > 0)

    one = tl.full((), 1, tl.int64)
    score = tl.where(lane == 0, root, tl.full((LANES,), _NEVER, tl.int64))
    code = tl.where(lane == 0, one << 62, _LAST)
    links = lane * 0  # node, last child << 10, rank << 20
    place = tl.where(lane == 0, 1, 0)  # depth, bits in use << 8
    count = 0
    for i in range(1, budget + 1):
        best, first, link, at = _winner(score, code, links, place)
        exists = best > _NEVER
        parent, rank = link & 1023, link >> 20
        depth, used = at & 255, at >> 8

        has_sibling = exists & (rank + 1 < usable)
        has_child = exists & (depth < deepest)
        cell = table + ((depth - 1) * RANKS + rank)
        here = tl.load(cell, mask=exists, other=0)
        beside = tl.load(cell + 1, mask=has_sibling, other=0)
        below = tl.load(table + depth * RANKS, mask=has_child, other=0)

        # The sibling's code has the last rank's bits replaced; the first child's has those of rank 0 ("10") appended.
        bits, length = _rank_code(rank)
        longer = used + length
        next_bits, next_length = _rank_code(rank + 1)
        sibling_code = first - (bits << _shift(longer)) + (next_bits << _shift(used + next_length))
        child_code = first + (one << _shift(longer + 1))
        sibling_links = (link & 1023) + i * 1024 + (rank + 1) * 1048576
        child_place = depth + 1 + longer * 256

        at_parent = exists & (lane == parent)
        at_new = exists & (lane == i)
        score = tl.where(at_parent, tl.where(has_sibling, best - here + beside, _NEVER), score)
        score = tl.where(at_new, tl.where(has_child, best + below, _NEVER), score)
        code = tl.where(at_parent, sibling_code, tl.where(at_new, child_code, code))
        links = tl.where(at_parent, sibling_links, tl.where(at_new, i, links))
        place = tl.where(at_new, child_place, place)

        kept = scratch + (i - 1)
        tl.store(kept, best, mask=exists)
        tl.store(kept + LANES, first, mask=exists)
        tl.store(kept + 2 * LANES, (at.to(tl.int64) << 32) | link.to(tl.int64), mask=exists)
        count += exists.to(tl.int32)
    tl.debug_barrier()
    _write_tree(
        root_token, ids, seq_lens, seq_len, nodes, array_stride, mask, valid, scratch, full_mask, b, n, count,
        DEPTHS, RANKS, N, LANES, ROWS, SQUARE, FULL,
    )  # fmt: skip


@triton.jit
def _write_tree(
    root_token,
    ids,
    seq_lens,
    seq_len,
    nodes,
    array_stride,
    mask,
    valid,
    scratch,
    full_mask,
    b,
    n,
    count,
    DEPTHS: tl.constexpr,
    RANKS: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARE: tl.constexpr,
    FULL: tl.constexpr,
):
    """Write request ``b``: ``count`` nodes in canonical order, padded to ``n - 1``. A lane is a node from 1 on.

    ``scratch``, three rows of ``LANES``: score; order code; (depth | bits before the last rank << 8) << 32 | (parent |
    left sibling << 10 | rank << 20).
    """
    lane = tl.arange(0, LANES)
    is_node = lane < count
    inside = lane < n - 1
    node_score = tl.load(scratch + lane, mask=is_node, other=0)
    node_code = tl.load(scratch + LANES + lane, mask=is_node, other=-1)
    word = tl.load(scratch + 2 * LANES + lane, mask=is_node, other=0)
    link, at = word.to(tl.int32), (word >> 32).to(tl.int32)
    parent, older, rank = link & 1023, (link >> 10) & 1023, link >> 20
    depth, used = at & 255, at >> 8
    token = tl.load(ids + b * (DEPTHS * RANKS) + (depth - 1) * RANKS + rank, mask=is_node, other=0).to(tl.int64)

    row = nodes + b * n
    tl.store(row, tl.load(root_token + b).to(tl.int64))
    tl.store(row + array_stride, 0)
    tl.store(row + 2 * array_stride, 0)
    tl.store(row + 3 * array_stride, seq_len)
    tl.store(row + 4 * array_stride, b * n)
    tl.store(row + 5 * array_stride, tl.where(count > 0, 1, -1))
    tl.store(row + 6 * array_stride, -1)
    tl.store(row + 7 * array_stride, 0)
    tl.store(row + 8 * array_stride, -1)
    tl.store(valid + b * n, 1)
    to = row + 1 + lane
    tl.store(to, token, mask=inside)
    tl.store(to + array_stride, parent.to(tl.int64), mask=inside)
    tl.store(to + 2 * array_stride, depth.to(tl.int64), mask=inside)
    tl.store(to + 3 * array_stride, seq_len + depth, mask=inside)
    tl.store(to + 4 * array_stride, b * n + 1 + lane, mask=inside)
    tl.store(to + 5 * array_stride, tl.full((LANES,), -1, tl.int64), mask=inside)
    tl.store(to + 6 * array_stride, tl.full((LANES,), -1, tl.int64), mask=inside)
    tl.store(to + 7 * array_stride, node_score, mask=inside)
    tl.store(to + 8 * array_stride, tl.where(is_node, rank, -1).to(tl.int64), mask=inside)
    tl.store(valid + b * n + 1 + lane, is_node, mask=inside)
    tl.debug_barrier()
    number = (lane + 1).to(tl.int64)
    tl.store(row + 5 * array_stride + parent, number, mask=is_node & (older == 0) & (parent > 0))
    tl.store(row + 6 * array_stride + older, number, mask=is_node & (older > 0))

    # Ancestor masks, a block of rows at a time. Padding gets codes that match nothing, in rows and in columns.
    _, length = _rank_code(rank)
    span = tl.where(is_node, tl.full((), -1, tl.int64) << _shift(used + length), -1)
    square = mask + b * (n * n)
    flat = full_mask
    flat_stride = seq_len + n
    if FULL:
        flat += _full_offset(seq_lens, b, n) + seq_len
        tl.store(flat, 1)
        tl.store(flat + 1 + lane, 0, mask=inside)
    if SQUARE:
        tl.store(square, 1)
        tl.store(square + 1 + lane, 0, mask=inside)
    if LANES <= 64:  # unrolled: offsets within a block are constants
        for start in tl.static_range(0, N - 1, ROWS):
            if start < n - 1:
                _mask_rows(
                    scratch + LANES,
                    node_code,
                    span,
                    count,
                    square,
                    flat,
                    flat_stride,
                    n,
                    start,
                    LANES,
                    ROWS,
                    SQUARE,
                    FULL,
                )
    else:
        for start in range(0, n - 1, ROWS):
            _mask_rows(
                scratch + LANES, node_code, span, count, square, flat, flat_stride, n, start, LANES, ROWS, SQUARE, FULL
            )


@triton.jit
def _fill_prefix(seq_lens, full_mask, N: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, request): let the row see the whole past."""
    b = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens + b).to(tl.int64)
    to = full_mask + _full_offset(seq_lens, b, N) + tl.program_id(0) * (seq_len + N)
    for start in range(0, seq_len, BLOCK):
        column = start + tl.arange(0, BLOCK)
        tl.store(to + column, 1, mask=column < seq_len)
