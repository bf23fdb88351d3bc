"""The exact tree builder as one GPU kernel: same inputs and outputs as ``torch_builder.build_trees``, bit for bit.

One program per request runs the pending-child loop with all state in registers. A lane stands for a node and holds that
node's one pending candidate: score, order code and a packed word (node, last child, rank, depth, code bits in use). A
step is one reduction over the lanes, whose result is the new node; siblings' and first children's scores come from the
candidate table, which stays in the L1 cache. The loop ends at the request's own budget, so small budgets cost less.

The same program then writes all that verification needs. Ancestors need no walk: node ``j`` is an ancestor of ``i``
exactly when ``j``'s order code is a prefix of ``i``'s.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..tree.definition import CODE_BITS, MAX_DEPTH, code_bits_needed
from .torch_builder import TreeBatch

MAX_BUDGET = 256
"""Most nodes per tree, root not counted."""

_CODE_BITS = tl.constexpr(CODE_BITS)
_NEVER = tl.constexpr(-(1 << 62))  # below every sum of scores, floors included
_LAST = tl.constexpr((1 << 63) - 1)

# The packed word of a candidate: ten bits each.
_FIELD = tl.constexpr(1023)
_CHILD, _RANK, _DEPTH, _USED = tl.constexpr(10), tl.constexpr(20), tl.constexpr(30), tl.constexpr(40)


@dataclass(frozen=True)
class BuildBuffers:
    """What the kernel writes, allocated once for ``max_bs`` requests of ``N`` nodes."""

    nodes: torch.Tensor  # [9, max_bs, N] int64: the arrays of TreeBatch in the order of _ARRAYS
    mask: torch.Tensor  # [max_bs, N, N] bool
    valid: torch.Tensor  # [max_bs, N] bool
    codes: torch.Tensor  # [max_bs, 2, N2] int64, scratch

    def batch(self, bs: int) -> TreeBatch:
        """Return the views of the first ``bs`` requests."""
        arrays = {name: self.nodes[i, :bs] for i, name in enumerate(_ARRAYS)}
        return TreeBatch(**arrays, mask=self.mask[:bs], valid=self.valid[:bs])


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
    lanes = triton.next_power_of_2(max(budget, 2))
    return BuildBuffers(
        nodes=torch.empty((len(_ARRAYS), max_bs, width), dtype=torch.int64, device=device),
        mask=torch.empty((max_bs, width, width), dtype=torch.bool, device=device),
        valid=torch.empty((max_bs, width), dtype=torch.bool, device=device),
        codes=torch.empty((max_bs, 2, lanes), dtype=torch.int64, device=device),
    )


def build_trees_into(
    root_token: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    budgets: torch.Tensor,
    depth_limits: torch.Tensor,
    out: BuildBuffers,
    full_mask: torch.Tensor | None = None,
    fill_prefix: bool = False,
    fused: bool = True,
) -> TreeBatch:
    """Build the trees of ``bs`` requests into ``out``; arguments as ``torch_builder.build_trees``.

    ``full_mask``: flat bool buffer that takes SGLang's FULL_MASK (request after request, N rows of ``seq_len + N``
    columns, laid out by the device's own ``seq_lens``), at least ``N * (sum(seq_lens) + N * bs)`` long. Its prefix
    columns are written only with ``fill_prefix``: SGLang's Triton backend does not read them. Integer tensors may be
    int32 or int64. Launches only: no allocation, no host synchronisation. ``fused`` picks one of two equal reductions.
    """
    bs, depths, ranks = ids.shape
    width = out.nodes.shape[2]
    if bs > out.nodes.shape[1]:
        raise ValueError(f"{bs} requests, the buffers hold {out.nodes.shape[1]}")
    if not (ids.is_contiguous() and scores.is_contiguous()):
        raise ValueError("ids and scores must be contiguous")
    if not bs:
        return out.batch(0)
    lanes = out.codes.shape[2]
    _build[(bs,)](
        root_token,
        ids,
        scores,
        seq_lens,
        budgets,
        depth_limits,
        out.nodes,
        out.nodes.stride(0),
        out.mask,
        out.valid,
        out.codes,
        out.mask if full_mask is None else full_mask,
        DEPTHS=depths,
        RANKS=ranks,
        TABLE=triton.next_power_of_2(max(depths * ranks, 1)),
        N=width,
        LANES=lanes,
        ROWS=min(lanes, 16 if lanes <= 64 else 8),
        FULL=full_mask is not None,
        FUSED=fused,
        num_warps=1 if lanes <= 64 else 2 if lanes <= 128 else 4,
    )
    if full_mask is not None and fill_prefix:
        _fill_prefix[(width, bs)](seq_lens, full_mask, N=width, BLOCK=2048, num_warps=4)
    return out.batch(bs)


@triton.jit
def _best(score_a, code_a, word_a, score_b, code_b, word_b):
    """The better of two candidates in canonical order."""
    first = (score_a > score_b) | ((score_a == score_b) & (code_a < code_b))
    return (
        tl.where(first, score_a, score_b),
        tl.where(first, code_a, code_b),
        tl.where(first, word_a, word_b),
    )


@triton.jit
def _log2(x):
    """floor(log2(x)) of a positive integer below 2**24, by a float's exponent."""
    return ((x.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127).to(tl.int64)


@triton.jit
def _append(code, used, rank):
    """``definition.append_code``: returns the longer code and its bits in use."""
    one = tl.full((), 1, tl.int64)
    n = _log2(rank + 1)
    bits = (((one << (n + 1)) - 1) << (n + 1)) | ((rank + 1) - (one << n))
    longer = used + 2 * n + 2
    return code | (bits << tl.maximum(_CODE_BITS - longer, 0)), longer


@triton.jit
def _full_offset(seq_lens, b, N: tl.constexpr):
    """Where request ``b`` starts in a FULL_MASK."""
    total = tl.zeros((), tl.int64)
    for start in range(0, b, 128):
        before = start + tl.arange(0, 128)
        total += tl.sum(tl.load(seq_lens + before, mask=before < b, other=0).to(tl.int64), axis=0)
    return N * (total + b * N)


@triton.jit(do_not_specialize=["array_stride"])
def _build(
    root_token,
    ids,
    scores,
    seq_lens,
    budgets,
    depth_limits,
    nodes,
    array_stride,
    mask,
    valid,
    codes,
    full_mask,
    DEPTHS: tl.constexpr,
    RANKS: tl.constexpr,
    TABLE: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    FULL: tl.constexpr,
    FUSED: tl.constexpr,
):
    """Program (request). Candidate lanes are nodes 0.. (the last node needs none), output lanes are nodes 1.. ."""
    b = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    table = scores + b * (DEPTHS * RANKS)
    seq_len = tl.load(seq_lens + b).to(tl.int64)
    budget = tl.minimum(tl.load(budgets + b).to(tl.int32), N - 1)
    deepest = tl.minimum(tl.load(depth_limits + b).to(tl.int32), DEPTHS)

    # Touch the whole table, so that the loop's loads hit the L1 cache. The store never happens: scores are not above 0.
    entry = tl.arange(0, TABLE)
    touched = tl.max(tl.load(table + entry, mask=entry < DEPTHS * RANKS, other=_NEVER), axis=0)
    tl.store(codes + b * (2 * LANES), touched, mask=touched > 0)

    root = tl.load(table, mask=deepest > 0, other=_NEVER)
    score = tl.where(lane == 0, root, tl.full((LANES,), _NEVER, tl.int64))
    code = tl.where(lane == 0, tl.full((LANES,), 1 << 62, tl.int64), _LAST)
    word = tl.where(lane == 0, tl.full((LANES,), 1 << 30, tl.int64), 0)
    node_score = tl.zeros((LANES,), tl.int64)
    node_code = tl.zeros((LANES,), tl.int64)
    node_word = tl.zeros((LANES,), tl.int64)
    next_token = tl.full((LANES,), -1, tl.int32)
    next_sibling = tl.full((LANES,), -1, tl.int32)

    for i in range(1, budget + 1):
        if FUSED:
            best, best_code, best_word = tl.reduce((score, code, word), 0, _best)
        else:
            best = tl.max(score, axis=0)
            best_code = tl.min(tl.where(score == best, code, _LAST), axis=0)
            best_word = tl.max(tl.where((score == best) & (code == best_code), word, 0), axis=0)
        exists = best > _NEVER
        parent = (best_word & _FIELD).to(tl.int32)
        older = ((best_word >> _CHILD) & _FIELD).to(tl.int32)
        rank = (best_word >> _RANK) & _FIELD
        depth = (best_word >> _DEPTH) & _FIELD
        used = (best_word >> _USED) & _FIELD

        has_sibling = exists & (rank + 1 < RANKS)
        has_child = exists & (depth < deepest)
        cell = table + (depth - 1) * RANKS + rank
        here = tl.load(cell, mask=exists, other=0)
        beside = tl.load(cell + 1, mask=has_sibling, other=0)
        below = tl.load(table + depth * RANKS, mask=has_child, other=0)

        above_code = (best_code >> (_CODE_BITS - used)) << (_CODE_BITS - used)
        sibling_code, _ = _append(above_code, used, rank + 1)
        longer = used + 2 * _log2(rank + 1) + 2
        child_code, _ = _append(best_code, longer, rank * 0)
        sibling_word = (best_word & ~(1023 * 1024)) + (tl.full((), 1, tl.int64) << _RANK) + i * 1024
        child_word = i + ((depth + 1) << _DEPTH) + (longer << _USED)

        at_parent = exists & (lane == parent)
        at_new = exists & (lane == i)
        score = tl.where(at_parent, tl.where(has_sibling, best - here + beside, _NEVER), score)
        score = tl.where(at_new, tl.where(has_child, best + below, _NEVER), score)
        code = tl.where(at_parent, sibling_code, tl.where(at_new, child_code, code))
        word = tl.where(at_parent, sibling_word, tl.where(at_new, child_word, word))

        written = exists & (lane == i - 1)
        node_score = tl.where(written, best, node_score)
        node_code = tl.where(written, best_code, node_code)
        node_word = tl.where(written, best_word, node_word)
        next_token = tl.where(exists & (rank == 0) & (lane == parent - 1), i, next_token)
        next_sibling = tl.where(exists & (rank > 0) & (lane == older - 1), i, next_sibling)

    depth = (node_word >> _DEPTH) & _FIELD
    rank = (node_word >> _RANK) & _FIELD
    is_node = depth > 0
    inside = lane < N - 1
    cell = b * (DEPTHS * RANKS) + (depth - 1) * RANKS + rank
    token = tl.load(ids + cell, mask=is_node, other=0).to(tl.int64)
    used = tl.where(is_node, ((node_word >> _USED) & _FIELD) + 2 * _log2(rank + 1) + 2, 0)

    row = nodes + b * N
    size = tl.sum(is_node.to(tl.int64), axis=0)
    tl.store(row, tl.load(root_token + b).to(tl.int64))
    tl.store(row + array_stride, 0)
    tl.store(row + 2 * array_stride, 0)
    tl.store(row + 3 * array_stride, seq_len)
    tl.store(row + 4 * array_stride, b * N)
    tl.store(row + 5 * array_stride, tl.where(size > 0, 1, -1))
    tl.store(row + 6 * array_stride, -1)
    tl.store(row + 7 * array_stride, 0)
    tl.store(row + 8 * array_stride, -1)
    tl.store(valid + b * N, 1)
    row += 1 + lane
    tl.store(row, token, mask=inside)
    tl.store(row + array_stride, node_word & _FIELD, mask=inside)
    tl.store(row + 2 * array_stride, depth, mask=inside)
    tl.store(row + 3 * array_stride, seq_len + depth, mask=inside)
    tl.store(row + 4 * array_stride, b * N + 1 + lane, mask=inside)
    tl.store(row + 5 * array_stride, next_token.to(tl.int64), mask=inside)
    tl.store(row + 6 * array_stride, next_sibling.to(tl.int64), mask=inside)
    tl.store(row + 7 * array_stride, node_score, mask=inside)
    tl.store(row + 8 * array_stride, tl.where(is_node, rank, -1), mask=inside)
    tl.store(valid + b * N + 1 + lane, is_node, mask=inside)

    # Ancestor masks, a block of rows at a time: the rows' codes come back through scratch, the columns' stay in lanes.
    codes += b * (2 * LANES)
    tl.store(codes + lane, node_code)
    tl.store(codes + LANES + lane, is_node.to(tl.int64))
    tl.debug_barrier()
    square = mask + b * (N * N)
    if FULL:
        flat = full_mask + _full_offset(seq_lens, b, N) + seq_len
        flat_stride = seq_len + N
        tl.store(flat, 1)
        tl.store(flat + 1 + lane, 0, mask=inside)
    tl.store(square, 1)
    tl.store(square + 1 + lane, 0, mask=inside)
    shift = _CODE_BITS - used
    for start in range(0, N - 1, ROWS):
        at = start + tl.arange(0, ROWS)
        in_rows = at < N - 1
        row_code = tl.load(codes + at, mask=in_rows, other=0)
        row_node = tl.load(codes + LANES + at, mask=in_rows, other=0) > 0
        prefix = ((row_code[:, None] ^ node_code[None, :]) >> shift[None, :]) == 0
        sees = (prefix & is_node[None, :] & row_node[:, None]) | (at[:, None] == lane[None, :])
        cells = in_rows[:, None] & inside[None, :]
        to = square + (at + 1) * N
        tl.store(to, 1, mask=in_rows)
        tl.store(to[:, None] + 1 + lane[None, :], sees, mask=cells)
        if FULL:
            to = flat + (at + 1) * flat_stride
            tl.store(to, 1, mask=in_rows)
            tl.store(to[:, None] + 1 + lane[None, :], sees, mask=cells)


@triton.jit
def _fill_prefix(seq_lens, full_mask, N: tl.constexpr, BLOCK: tl.constexpr):
    """Program (row, request): let the row see the whole past."""
    b = tl.program_id(1).to(tl.int64)
    seq_len = tl.load(seq_lens + b).to(tl.int64)
    to = full_mask + _full_offset(seq_lens, b, N) + tl.program_id(0) * (seq_len + N)
    for start in range(0, seq_len, BLOCK):
        column = start + tl.arange(0, BLOCK)
        tl.store(to + column, 1, mask=column < seq_len)
