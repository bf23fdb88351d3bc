"""Commit by compaction: the accepted path moves to the front of the window, and everything after it is a chain again.

Slots come from the step's own snapshot of the window. ``req_to_token`` is not read again: once the new lengths are
published, the scheduler may give the row of a finished request to another one.
"""

from __future__ import annotations

from typing import Any

import torch


def compact_kv(
    pool: Any, window: torch.Tensor, path: torch.Tensor, accept_len: torch.Tensor
) -> tuple[torch.Tensor, bool]:
    """Move the accepted nodes' KV of all layers to the first slots of the window.

    ``window``: ``[bs, N]`` slots of the verified nodes; ``path``: ``[bs, P]`` node indices, root first, the identity
    after the path; ``accept_len``: ``[bs]``. Returns (slots moved, 0-d int64; whether the move was skipped).

    A destination can be the source of a later path position, never of an earlier one (``path[j] >= j``, both
    ascending), so positions are moved one by one in ascending order: SGLang's copy kernel gives no order within a call.
    On a GPU every position is moved, unmoved ones onto themselves, because looking would cost a synchronisation; on a
    CPU looking is free.
    """
    steps = torch.arange(path.shape[1], device=path.device)
    moves = (path != steps) & (steps <= accept_len[:, None])
    moved = moves.sum()
    look = not path.is_cuda
    if look and not bool(moves.any()):
        return moved, True
    sources = window.gather(1, torch.where(moves, path, steps))
    for j in range(1, path.shape[1]):
        if look and not bool(moves[:, j].any()):
            continue
        pool.move_kv_cache(window[:, j].contiguous(), sources[:, j].contiguous())
    return moved, False


def compact_rows(rows: torch.Tensor, path: torch.Tensor, width: int) -> torch.Tensor:
    """Gather per-node rows (``[bs * N, H]``) along the path: ``[bs * P, H]``."""
    bs, path_width = path.shape
    offset = torch.arange(bs, device=path.device)[:, None] * width
    return rows.index_select(0, (offset + path).reshape(bs * path_width))
