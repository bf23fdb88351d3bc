"""The exact tree builder without a loop over nodes: one selection from the static universe of ``tree.universe``.

One program per request. The universe is a table that is made once per (budget, levels); a tuple's score is the score of
the rank-0 chain of its length plus, for its few ranks above 0 (at most log2 of the budget), the difference that each
makes. Then the best nodes are selected by score and, among equals, by the tuple's place in the table, which is the
canonical tie rule: a threshold is found by counting keys, two bits at a time, from the highest bit that differs.
The epilogue is the pending-child loop's own (``triton_builder``), and so are inputs, outputs and limits: bit for bit.

It pays for small budgets, or not at all: the table grows fast. ``select`` decides by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..tree import universe
from .shape import DeviceShape
from .torch_builder import TreeBatch
from .triton_builder import BuildBuffers, _write_tree

MAX_TUPLES = 1 << 13
"""Largest universe: its scores are held in registers."""

_OFFSET = tl.constexpr((1 << 62) - 1)  # makes every possible score a positive key of 62 bits


@dataclass(frozen=True)
class StaticTables:
    """The universe of one (budget, levels) on the device, and scratch for ``max_bs`` requests."""

    budget: int
    depths: int
    tuples: int
    limits: torch.Tensor  # [U] int32: depth | highest rank << 8
    cells: torch.Tensor  # [C, U] int32: (level << 9 | rank) of each rank above 0, -1 for none
    links: torch.Tensor  # [3, U] int32: parent, left sibling, (depth | bits in use << 8 | rank << 16)
    codes: torch.Tensor  # [U] int64
    sums: torch.Tensor  # [max_bs, 64 + D * K] int64, scratch: chain scores by depth, differences by cell
    chosen: torch.Tensor  # [max_bs, LANES] int64, scratch: keys
    places: torch.Tensor  # [max_bs, LANES + U] int32, scratch: tuples of the chosen, then node numbers by tuple


def covers(budget: int, depths: int) -> bool:
    """Whether trees of this size can be built here."""
    return depths > 0 and budget > 0 and universe.size(budget, depths) <= MAX_TUPLES


def make_tables(max_bs: int, out: BuildBuffers, depths: int, ranks: int, device: torch.device | str) -> StaticTables:
    """Make the tables for the trees that ``out`` holds; raises ``ValueError`` for universes that are too large."""
    budget = out.valid.shape[1] - 1
    if not covers(budget, depths):
        raise ValueError(f"trees of {budget} nodes and {depths} levels have too large a universe")
    table = universe.make(budget, depths)
    count = len(table)
    above = [[(d, rank) for d, rank in enumerate(r) if rank] for r in table.ranks]
    columns = max(1, *(len(pairs) for pairs in above)) if above else 1
    cells = torch.full((columns, count), -1, dtype=torch.int32)
    for i, pairs in enumerate(above):
        for c, (level, rank) in enumerate(pairs):
            cells[c, i] = level << 9 | rank
    limits = [len(r) | max(r) << 8 for r in table.ranks]
    places = [len(r) | used << 8 | r[-1] << 16 for r, used in zip(table.ranks, table.used, strict=True)]
    whole = {"dtype": torch.int32, "device": device}
    lanes = out.scratch.shape[2]
    return StaticTables(
        budget=budget,
        depths=depths,
        tuples=count,
        limits=torch.tensor(limits, **whole),
        cells=cells.to(device),
        links=torch.tensor([table.parent, table.left, places], **whole),
        codes=torch.tensor(table.code, dtype=torch.int64, device=device),
        sums=torch.zeros((max_bs, 64 + depths * ranks), dtype=torch.int64, device=device),
        chosen=torch.zeros((max_bs, lanes), dtype=torch.int64, device=device),
        places=torch.zeros((max_bs, lanes + count), **whole),
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
    tables: StaticTables,
    full_mask: torch.Tensor | None = None,
    square_mask: bool = True,
    num_warps: int | None = None,
) -> TreeBatch:
    """Build trees as ``triton_builder.build_trees_into`` does, by selection; ``tables`` were made for ``out``.

    ``num_warps``: instead of the default of ``warps``.
    """
    bs, depths, ranks = ids.shape
    most, width = out.valid.shape[1], shape.host.width
    if (most - 1, depths) != (tables.budget, tables.depths) or tables.sums.shape[1] != 64 + depths * ranks:
        raise ValueError(
            f"tables for {tables.budget} nodes of {tables.depths} levels, asked for {most - 1} of {depths}"
        )
    if not 1 <= width <= most or bs > min(out.nodes.shape[1], tables.sums.shape[0]):
        raise ValueError(f"{bs} requests of {width} nodes do not fit the buffers")
    if not (ids.is_contiguous() and scores.is_contiguous()):
        raise ValueError("ids and scores must be contiguous")
    if not bs:
        return out.batch(0, width)
    lanes = out.scratch.shape[2]
    tuples = triton.next_power_of_2(tables.tuples)
    _select_nodes[(bs,)](
        root_token,
        ids,
        scores,
        seq_lens,
        budgets,
        end_lens,
        shape.values,
        tables.limits,
        tables.cells,
        tables.links,
        tables.codes,
        tables.sums,
        tables.chosen,
        tables.places,
        out.nodes,
        out.nodes.stride(0),
        out.mask,
        out.valid,
        out.scratch,
        out.mask if full_mask is None else full_mask,
        DEPTHS=depths,
        RANKS=ranks,
        TABLE=triton.next_power_of_2(depths * ranks),
        TUPLES=tables.tuples,
        TUPLES2=tuples,
        COLUMNS=tables.cells.shape[0],
        N=most,
        LANES=lanes,
        ROWS=min(lanes, 16 if lanes <= 64 else 8),
        SQUARE=square_mask,
        FULL=full_mask is not None,
        num_warps=num_warps or warps(tuples),
    )
    return out.batch(bs, width)


def warps(tuples: int) -> int:
    """Warps of a program: about sixteen tuples per thread."""
    return max(1, min(8, tuples // 512))


@triton.jit
def _bits_above(x):
    """Return how many bits a non-negative int64 has, or one more: by the exponent of its float."""
    exponent = x.to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return tl.maximum(exponent - 126, 0)


@triton.jit
def _threshold(key, rank):
    """Return the largest t that at least ``rank`` positive keys reach, or the smallest key where there are fewer."""
    high = tl.max(key, axis=0)
    low = tl.min(tl.where(key > 0, key, high), axis=0)
    rounds = tl.minimum((_bits_above(high ^ low) + 1) // 2, 31)
    one = tl.full((), 1, tl.int64)
    found = (high >> (2 * rounds)) << (2 * rounds)
    for i in range(rounds):
        unit = one << (2 * (rounds - 1 - i))
        first = (key >= (found | unit)).to(tl.int64)
        second = (key >= (found | (unit << 1))).to(tl.int64)
        third = (key >= (found | (unit << 1) | unit)).to(tl.int64)
        counts = tl.sum(first | (second << 16) | (third << 32), axis=0)
        reached = ((counts & 0xFFFF) >= rank).to(tl.int64) + (((counts >> 16) & 0xFFFF) >= rank).to(tl.int64)
        found = found | ((reached + ((counts >> 32) >= rank).to(tl.int64)) * unit)
    return tl.maximum(found, 1)  # no key is 0 but those of tuples that cannot be


@triton.jit(do_not_specialize=["array_stride"])
def _select_nodes(
    root_token,
    ids,
    scores,
    seq_lens,
    budgets,
    end_lens,
    shape,
    limits,
    cells,
    tuple_links,
    codes,
    sums,
    chosen,
    places,
    nodes,
    array_stride,
    mask,
    valid,
    scratch,
    full_mask,
    DEPTHS: tl.constexpr,
    RANKS: tl.constexpr,
    TABLE: tl.constexpr,
    TUPLES: tl.constexpr,
    TUPLES2: tl.constexpr,
    COLUMNS: tl.constexpr,
    N: tl.constexpr,
    LANES: tl.constexpr,
    ROWS: tl.constexpr,
    SQUARE: tl.constexpr,
    FULL: tl.constexpr,
):
    """Program (request)."""
    b = tl.program_id(0).to(tl.int64)
    table = scores + b * (DEPTHS * RANKS)
    sums += b * (64 + DEPTHS * RANKS)
    chosen += b * LANES
    places += b * (LANES + TUPLES)
    scratch += b * (3 * LANES)
    seq_len = tl.load(seq_lens + b).to(tl.int64)
    n = tl.minimum(tl.load(shape), N)
    budget = tl.minimum(tl.load(budgets + b), tl.minimum(tl.load(shape + 1), n - 1)).to(tl.int32)
    usable = tl.minimum(tl.load(shape + 2), RANKS)
    room = tl.load(end_lens + b).to(tl.int64) - seq_len - 1
    deepest = tl.minimum(tl.maximum(room, 0), DEPTHS).to(tl.int32)

    level = tl.arange(0, 64)
    chain = tl.cumsum(tl.load(table + level * RANKS, mask=level < DEPTHS, other=0), axis=0)
    tl.store(sums + level, chain)
    entry = tl.arange(0, TABLE)
    here = tl.load(table + entry, mask=entry < DEPTHS * RANKS, other=0)
    first = tl.load(table + (entry // RANKS) * RANKS, mask=entry < DEPTHS * RANKS, other=0)
    tl.store(sums + 64 + entry, here - first, mask=entry < DEPTHS * RANKS)
    tl.debug_barrier()

    place = tl.arange(0, TUPLES2)
    bound = tl.load(limits + place, mask=place < TUPLES, other=255)
    depth = bound & 255
    possible = (depth <= deepest) & ((bound >> 8) < usable)
    score = tl.load(sums + depth - 1, mask=possible, other=0)
    for c in tl.static_range(COLUMNS):
        cell = tl.load(cells + c * TUPLES + place, mask=possible, other=-1)
        score += tl.load(sums + 64 + (cell >> 9) * RANKS + (cell & 511), mask=possible & (cell >= 0), other=0)
    key = tl.where(possible, score + _OFFSET, 0)

    threshold = _threshold(key, budget)
    above = (key > threshold).to(tl.int32)
    tied = (key == threshold).to(tl.int32)
    before = tl.cumsum(above | (tied << 16), axis=0)
    missing = budget - tl.sum(above, axis=0)
    equals = before >> 16
    kept = (above > 0) | ((tied > 0) & (equals <= missing))
    slot = (before & 0xFFFF) + tl.maximum(tl.minimum(equals, missing), 0) - 1
    tl.store(chosen + slot, key, mask=kept)
    tl.store(places + slot, place, mask=kept)
    count = tl.sum(kept.to(tl.int32), axis=0)
    tl.debug_barrier()

    # Into canonical order: chosen tuples are in lexicographic order already, so ties stay as they are.
    lane = tl.arange(0, LANES)
    is_node = lane < count
    mine = tl.load(chosen + lane, mask=is_node, other=0)
    tuple_of = tl.load(places + lane, mask=is_node, other=0)
    number = lane * 0
    BLOCK: tl.constexpr = 32
    for start in range(0, LANES, BLOCK):
        other = start + tl.arange(0, BLOCK)
        theirs = tl.load(chosen + other, mask=other < count, other=0)
        larger = theirs[None, :] > mine[:, None]
        earlier = (theirs[None, :] == mine[:, None]) & (other[None, :] < lane[:, None])
        number += tl.sum((larger | earlier).to(tl.int32), axis=1)
    tl.store(places + LANES + tuple_of, number + 1, mask=is_node)
    tl.debug_barrier()

    above_tuple = tl.load(tuple_links + tuple_of, mask=is_node, other=-1)
    left_tuple = tl.load(tuple_links + TUPLES + tuple_of, mask=is_node, other=-1)
    packed = tl.load(tuple_links + 2 * TUPLES + tuple_of, mask=is_node, other=0)
    parent = tl.load(places + LANES + above_tuple, mask=above_tuple >= 0, other=0)
    older = tl.load(places + LANES + left_tuple, mask=left_tuple >= 0, other=0)
    link = parent + older * 1024 + (packed >> 16) * 1048576
    to = scratch + number
    tl.store(to, mine - _OFFSET, mask=is_node)
    tl.store(to + LANES, tl.load(codes + tuple_of, mask=is_node, other=0), mask=is_node)
    tl.store(to + 2 * LANES, ((packed & 0xFFFF).to(tl.int64) << 32) | link.to(tl.int64), mask=is_node)
    tl.debug_barrier()
    _write_tree(
        root_token, ids, seq_lens, seq_len, nodes, array_stride, mask, valid, scratch, full_mask, b, n, count,
        DEPTHS, RANKS, N, LANES, ROWS, SQUARE, FULL,
    )  # fmt: skip
