"""Acceptance and commit on the GPU: the accepted path of each tree, and its KV and hidden rows moved to the front.

Three kernels with fixed launch shapes and no host synchronisation; whether anything has to move is decided on the
device. Twins on the CPU: ``accept.accept_paths``, ``adapters.commit.compact_kv`` and ``compact_rows``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .accept import Accepted
from .torch_builder import TreeBatch

_WORDS = 256
"""Eight-byte words of a row that one program of the KV kernel moves."""


@dataclass(frozen=True)
class AcceptBuffers:
    """What acceptance writes, allocated once; ``P`` = deepest possible path, root included."""

    path: torch.Tensor  # [max_bs, P] int64
    out_tokens: torch.Tensor  # [max_bs, P] int64
    accept_len: torch.Tensor  # [max_bs] int64
    bonus: torch.Tensor  # [max_bs] int64
    commit_lens: torch.Tensor  # [max_bs] int32, accept_len + 1
    new_seq_lens: torch.Tensor  # [max_bs] int64, seq_len + accept_len + 1
    moved: torch.Tensor  # [max_bs] int64, path positions whose node is not in its place already

    def accepted(self, bs: int) -> Accepted:
        """Return the views of the first ``bs`` requests."""
        return Accepted(self.path[:bs], self.accept_len[:bs], self.bonus[:bs], self.out_tokens[:bs])


def make_accept_buffers(max_bs: int, path_width: int, device: torch.device | str) -> AcceptBuffers:
    """Allocate for ``max_bs`` requests and paths of ``path_width`` nodes."""
    rows = torch.empty((2, max_bs, path_width), dtype=torch.int64, device=device)
    single = torch.empty((4, max_bs), dtype=torch.int64, device=device)
    return AcceptBuffers(
        path=rows[0],
        out_tokens=rows[1],
        accept_len=single[0],
        bonus=single[1],
        commit_lens=torch.empty(max_bs, dtype=torch.int32, device=device),
        new_seq_lens=single[2],
        moved=single[3],
    )


def accept_into(
    tree: TreeBatch,
    target: torch.Tensor,
    seq_lens: torch.Tensor,
    out: AcceptBuffers,
    stops: torch.Tensor | None = None,
) -> Accepted:
    """Walk every tree along the target's tokens; arguments and result as ``accept.accept_paths``.

    ``target``: ``[bs, N]`` integers, the token the target puts after each node, contiguous. ``stops``: ``[bs, S]``,
    contiguous.
    """
    bs, width = tree.draft_token.shape
    if bs > out.path.shape[0] or not target.is_contiguous():
        raise ValueError(f"{bs} requests and a target of strides {target.stride()} do not fit the buffers")
    if bs:
        path_width = out.path.shape[1]
        _accept[(bs,)](
            tree.draft_token,
            tree.parent,
            tree.valid,
            target,
            seq_lens,
            seq_lens if stops is None else stops,
            out.path,
            out.out_tokens,
            out.accept_len,
            out.bonus,
            out.commit_lens,
            out.new_seq_lens,
            out.moved,
            width,
            LANES=triton.next_power_of_2(width),
            P=path_width,
            PATH=triton.next_power_of_2(path_width),
            STOPS=0 if stops is None else stops.shape[1],
            num_warps=1,
        )
    return out.accepted(bs)


@dataclass(frozen=True)
class KvTable:
    """Addresses of all KV buffers of a pool: ``slots`` rows each, of ``row_bytes`` contiguous bytes."""

    addresses: torch.Tensor  # [L] int64
    row_bytes: torch.Tensor  # [L] int64
    widest: int  # largest of row_bytes


def make_kv_table(buffers: Sequence[torch.Tensor]) -> KvTable:
    """Make the table of buffers whose first dimension is the slot (K, V, scales of every layer).

    Buffers that appear twice (layers that share KV) are moved once. Raises ``ValueError`` where a slot is not one
    contiguous run of a multiple of 8 bytes. The buffers must outlive the table and stay where they are.
    """
    unique = {buffer.data_ptr(): buffer for buffer in buffers}
    if not unique:
        raise ValueError("a KV table needs at least one buffer")
    sizes = []
    for buffer in unique.values():
        size = buffer[0].numel() * buffer.element_size()
        if not buffer.is_contiguous() or size % 8 or buffer.data_ptr() % 8:
            raise ValueError(f"a KV buffer of shape {tuple(buffer.shape)} is not made of contiguous 8-byte words")
        sizes.append(size)
    device = next(iter(unique.values())).device
    return KvTable(
        addresses=torch.tensor(list(unique), dtype=torch.int64, device=device),
        row_bytes=torch.tensor(sizes, dtype=torch.int64, device=device),
        widest=max(sizes),
    )


def compact_kv_into(table: KvTable, window: torch.Tensor, path: torch.Tensor, accept_len: torch.Tensor) -> None:
    """Move the accepted nodes' KV of all buffers to the first slots of each request's window, in one launch.

    ``window``: ``[bs, N]`` slots, contiguous, all different; ``path``: ``[bs, P]``; ``accept_len``: ``[bs]``.

    Free of races: a slot of one request belongs to no other, a program owns a range of bytes of one request in one
    buffer, and it reads all rows of the path before it writes any (a destination can be the source of an earlier path
    position, since ``path[j] >= j``).
    """
    bs, width = window.shape
    if not (window.is_contiguous() and path.is_contiguous()):
        raise ValueError("window and path must be contiguous")
    if bs:
        grid = (triton.cdiv(table.widest, 8 * _WORDS), table.addresses.shape[0], bs)
        _compact_kv[grid](
            table.addresses,
            table.row_bytes,
            window,
            path,
            accept_len,
            width,
            P=path.shape[1],
            PATH=triton.next_power_of_2(path.shape[1]),
            WORDS=_WORDS,
            num_warps=4,
        )


def compact_rows_into(rows: torch.Tensor, path: torch.Tensor, width: int, out: torch.Tensor) -> None:
    """Gather per-node rows (``[bs * N, H]``) along the path into ``out`` (``[bs * P, H]``); both with unit stride."""
    bs, path_width = path.shape
    if rows.stride(1) != 1 or not out.is_contiguous() or not path.is_contiguous():
        raise ValueError("rows, path and out must have contiguous rows")
    if bs:
        hidden = rows.shape[1]
        block = min(1024, triton.next_power_of_2(hidden))
        grid = (triton.cdiv(hidden, block), bs * path_width)
        _gather_rows[grid](rows, path, out, hidden, rows.stride(0), width, P=path_width, BLOCK=block, num_warps=4)


@triton.jit(do_not_specialize=["n"])
def _accept(
    draft_token,
    parent,
    valid,
    target,
    seq_lens,
    stops,
    paths,
    out_tokens,
    accept_lens,
    bonuses,
    commit_lens,
    new_seq_lens,
    moved,
    n,
    LANES: tl.constexpr,
    P: tl.constexpr,
    PATH: tl.constexpr,
    STOPS: tl.constexpr,
):
    """Program (request): one reduction per accepted node."""
    b = tl.program_id(0).to(tl.int64)
    target += b * n
    lane = tl.arange(0, LANES)
    inside = lane < n
    above = tl.load(parent + b * n + lane, mask=inside, other=0).to(tl.int32)
    token = tl.load(draft_token + b * n + lane, mask=inside, other=0)
    real = tl.load(valid + b * n + lane, mask=inside, other=0).to(tl.int1)
    wanted = tl.load(target + above, mask=inside, other=0).to(tl.int64)
    for s in tl.static_range(STOPS):
        real = real & (token != tl.load(stops + b * STOPS + s))
    # A child that carries what the target wants after its parent: at most one per parent. Others point nowhere.
    from_node = tl.where(real & (lane > 0) & (token == wanted), above, -1)

    step = tl.arange(0, PATH)
    path = tl.where(step < P, tl.minimum(step, n - 1), 0)
    count = 0
    child = tl.max(tl.where(from_node == 0, lane, 0), axis=0)
    while (child > 0) & (count < P - 1):
        count += 1
        path = tl.where(step == count, child, path)
        child = tl.max(tl.where(from_node == child, lane, 0), axis=0)

    follows = tl.load(target + path, mask=step <= count, other=0).to(tl.int64)
    tl.store(paths + b * P + step, path.to(tl.int64), mask=step < P)
    tl.store(out_tokens + b * P + step, follows, mask=step < P)
    tl.store(bonuses + b, tl.sum(tl.where(step == count, follows, 0), axis=0))
    tl.store(accept_lens + b, count)
    tl.store(commit_lens + b, count + 1)
    tl.store(new_seq_lens + b, tl.load(seq_lens + b).to(tl.int64) + count + 1)
    tl.store(moved + b, tl.sum(((path != step) & (step <= count)).to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["n"])
def _compact_kv(
    addresses,
    row_bytes,
    window,
    paths,
    accept_lens,
    n,
    P: tl.constexpr,
    PATH: tl.constexpr,
    WORDS: tl.constexpr,
):
    """Program (range of bytes, buffer, request)."""
    buffer = tl.program_id(1)
    b = tl.program_id(2).to(tl.int64)
    step = tl.arange(0, PATH)
    count = tl.load(accept_lens + b)
    path = tl.load(paths + b * P + step, mask=step < P, other=0)
    moves = (step < P) & (step <= count) & (path != step)
    if tl.sum(moves.to(tl.int32), axis=0) > 0:
        row_words = tl.load(row_bytes + buffer) // 8
        base = tl.load(addresses + buffer).to(tl.pointer_type(tl.int64))
        source = tl.load(window + b * n + path, mask=moves, other=0).to(tl.int64)
        target = tl.load(window + b * n + step, mask=moves, other=0).to(tl.int64)
        word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
        cells = moves[:, None] & (word < row_words)[None, :]
        data = tl.load(base + source[:, None] * row_words + word[None, :], mask=cells, other=0)
        tl.debug_barrier()
        tl.store(base + target[:, None] * row_words + word[None, :], data, mask=cells)


@triton.jit(do_not_specialize=["n"])
def _gather_rows(rows, paths, out, hidden, row_stride, n, P: tl.constexpr, BLOCK: tl.constexpr):
    """Program (block of columns, request and path position)."""
    at = tl.program_id(1).to(tl.int64)
    node = (at // P) * n + tl.load(paths + at)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = column < hidden
    tl.store(out + at * hidden + column, tl.load(rows + node * row_stride + column, mask=kept), mask=kept)
