"""Two kernels that read the GPU's own clock: stamps within a step, and their differences added up at its end.

Stamps are data in stream order, so that a captured graph can write them and nothing on the host has to ask when an
event has passed; events would be overwritten by the next replay before they can be read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_MARKS = tl.constexpr(5)


def stamp(stamps: torch.Tensor, place: int, fake: torch.Tensor | None = None) -> None:
    """Write the time, in ns, to ``stamps[place]`` (int64). ``fake``: a tensor to take it from instead, for tests."""
    _stamp[(1,)](stamps, place, stamps if fake is None else fake, FAKE=fake is not None, num_warps=1)


def collect(stamps: torch.Tensor, sums: torch.Tensor, row: int, fake: torch.Tensor | None = None) -> None:
    """Add the four differences between ``stamps[0 .. 3]`` and now, and 1, to ``sums[row]`` (``[rows, 5]``, int64).

    Nothing is added when a stamp is missing or left over from an earlier step. Clears the stamps.
    """
    _collect[(1,)](stamps, sums, row, stamps if fake is None else fake, FAKE=fake is not None, num_warps=1)


@triton.jit
def _now(fake, FAKE: tl.constexpr):
    if FAKE:
        return tl.load(fake)
    return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["place"])
def _stamp(stamps, place, fake, FAKE: tl.constexpr):
    """One program."""
    tl.store(stamps + place, _now(fake, FAKE))


@triton.jit(do_not_specialize=["row"])
def _collect(stamps, sums, row, fake, FAKE: tl.constexpr):
    """One program; lane 4 counts the sample."""
    now = _now(fake, FAKE)
    lane = tl.arange(0, 8)
    start = tl.load(stamps + lane, mask=lane < _MARKS - 1, other=0)
    end = tl.where(lane == _MARKS - 2, now, tl.load(stamps + lane + 1, mask=lane < _MARKS - 2, other=0))
    wrong = ((start == 0) | (end < start)) & (lane < _MARKS - 1)
    is_whole = tl.sum(wrong.to(tl.int32), axis=0) == 0
    value = tl.where(lane == _MARKS - 1, 1, end - start)
    to = sums + row * _MARKS + lane
    old = tl.load(to, mask=lane < _MARKS, other=0)
    tl.store(to, old + tl.where(is_whole, value, 0), mask=lane < _MARKS)
    tl.debug_barrier()
    tl.store(stamps + lane, tl.zeros((8,), tl.int64), mask=lane < _MARKS - 1)
