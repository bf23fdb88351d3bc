"""Acceptance, and commit by compaction: the accepted path moves to the window's front, then all is a chain again.

Slots come from the step's own snapshot of the window. ``req_to_token`` is not read again: once the new lengths are
published, the scheduler may give the row of a finished request to another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..build.accept import Accepted, accept_paths
from ..build.torch_builder import TreeBatch

STOPS = 8
"""Most stop tokens of a request that end a path; a model has one to four."""


@dataclass(frozen=True)
class Outcome:
    """What one verify step decided, all on the device; on a GPU views that hold for two steps."""

    accepted: Accepted
    commit_lens: torch.Tensor  # [bs] int32, accepted drafts + 1
    new_seq_lens: torch.Tensor  # [bs], in the type of the lengths
    moved: torch.Tensor  # [bs] int64, path positions whose node is not in its place already


class Committer:
    """Accepts paths and moves what belongs to them; kernels with buffers on a GPU, torch elsewhere.

    ``stops``: tokens that end each request of the batch, which no path goes beyond (``accept_paths``).
    ``path_width`` = P, the deepest possible path, root included. Raises ``ValueError`` for KV pools that the kernels do
    not cover.
    """

    def __init__(self, pool: Any, max_bs: int, path_width: int, device: torch.device | str) -> None:
        self._pool = pool
        self._path_width = path_width
        self.stops = torch.full((max_bs, STOPS), -1, dtype=torch.int64, device=device)
        self._is_cuda = torch.device(device).type == "cuda"
        if self._is_cuda:
            from ..build import triton_commit

            self._kernels = triton_commit
            self._table = triton_commit.make_kv_table(kv_buffers(pool))
            # Two sets in turn: without overlap scheduling the batch holds on to the lengths of the last step.
            self._slots = [triton_commit.make_accept_buffers(max_bs, path_width, device) for _ in range(2)]
            self._captured = triton_commit.make_accept_buffers(max_bs, path_width, device)

    def accept(self, tree: TreeBatch, target: torch.Tensor, seq_lens: torch.Tensor) -> Outcome:
        """Accept along ``target`` (``[bs, N]`` int64, contiguous: the target's token after each node)."""
        if self._is_cuda:
            self._slots.reverse()
            return self._accept_into(self._slots[0], tree, target, seq_lens)
        accepted = accept_paths(tree, target, self._path_width, self.stops[: target.shape[0]])
        commit_lens = (accepted.accept_len + 1).to(torch.int32)
        steps = torch.arange(self._path_width, device=target.device)
        moved = ((accepted.path != steps) & (steps <= accepted.accept_len[:, None])).sum(dim=1)
        return Outcome(accepted, commit_lens, seq_lens + commit_lens.to(seq_lens.dtype), moved)

    def accept_captured(self, tree: TreeBatch, target: torch.Tensor, seq_lens: torch.Tensor) -> Outcome:
        """Accept into buffers of their own, which captured graphs keep writing."""
        return self._accept_into(self._captured, tree, target, seq_lens)

    def _accept_into(self, out: Any, tree: TreeBatch, target: torch.Tensor, seq_lens: torch.Tensor) -> Outcome:
        bs = int(seq_lens.shape[0])
        accepted = self._kernels.accept_into(tree, target, seq_lens, out, self.stops[:bs])
        return Outcome(accepted, out.commit_lens[:bs], out.new_seq_lens[:bs], out.moved[:bs])

    def compact_kv_by(self, window: torch.Tensor, path: torch.Tensor, accept_len: torch.Tensor) -> None:
        """Move KV on a GPU as far as ``accept_len`` (``[bs]``) says: nothing where it is 0."""
        self._kernels.compact_kv_into(self._table, window, path, accept_len)

    def gather_into(self, rows: torch.Tensor, path: torch.Tensor, width: int, out: torch.Tensor) -> None:
        """Gather per-node rows along the path into ``out`` (``[bs * P, H]``), on a GPU."""
        self._kernels.compact_rows_into(rows, path, width, out)

    def compact_kv(self, window: torch.Tensor, outcome: Outcome) -> bool:
        """Move the accepted nodes' KV of all layers to the first slots of the window (``[bs, N]``).

        Returns whether the host could skip the move; on a GPU the kernel decides by itself, for looking would wait.
        """
        path, accept_len = outcome.accepted.path, outcome.accepted.accept_len
        if self._is_cuda:
            self.compact_kv_by(window, path, accept_len)
            return False
        return _move_one_by_one(self._pool, window, path, accept_len)

    def compact_rows(self, rows: torch.Tensor, path: torch.Tensor, width: int) -> torch.Tensor:
        """Gather per-node rows (``[bs * N, H]``) along the path: ``[bs * P, H]``."""
        bs, path_width = path.shape
        if self._is_cuda:
            out = torch.empty((bs * path_width, rows.shape[1]), dtype=rows.dtype, device=rows.device)
            self.gather_into(rows, path, width, out)
            return out
        offset = torch.arange(bs, device=path.device)[:, None] * width
        return rows.index_select(0, (offset + path).reshape(bs * path_width))


def kv_buffers(pool: Any) -> list[torch.Tensor]:
    """Return all buffers of a KV pool whose rows are slots; raises ``ValueError`` for pools of another make."""
    buffers: list[torch.Tensor] = []
    for name in ("k_buffer", "v_buffer", "kv_buffer"):
        found = getattr(pool, name, None)
        if isinstance(found, (list, tuple)):
            buffers += [buffer for buffer in found if isinstance(buffer, torch.Tensor)]
    extra = [name for name in ("k_scale_buffer", "v_scale_buffer") if getattr(pool, name, None) is not None]
    slots = {int(buffer.shape[0]) for buffer in buffers}
    if len(slots) != 1 or extra or int(pool.size) > min(slots):
        raise ValueError(f"DDTREE does not support in this version a KV pool of type {type(pool).__name__}.")
    return buffers


def _move_one_by_one(pool: Any, window: torch.Tensor, path: torch.Tensor, accept_len: torch.Tensor) -> bool:
    """Move through the pool's own copy, position by position.

    A destination can be the source of an earlier path position, never of a later one (``path[j] >= j``, both
    ascending), so ascending order reads each slot before it is written; the pool's copy gives no order within a call.
    """
    steps = torch.arange(path.shape[1], device=path.device)
    moves = (path != steps) & (steps <= accept_len[:, None])
    if not bool(moves.any()):
        return True
    width = window.shape[1]  # may be narrower than the deepest possible path
    sources = window.gather(1, torch.where(moves, path, steps.clamp(max=width - 1)))
    for j in range(1, min(path.shape[1], width)):
        if bool(moves[:, j].any()):
            pool.move_kv_cache(window[:, j].contiguous(), sources[:, j].contiguous())
    return False
