"""What a decode step starts from: KV slots of the window, and the draft block, in buffers that are allocated once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Step:
    """Inputs of one step for ``bs`` requests; views of the buffers, valid until the next step."""

    window: torch.Tensor  # [bs, N] int64, KV slots of the verified nodes
    front: torch.Tensor  # [bs, B] int64, the first B of them: the draft block, and the accepted path after compaction
    block_ids: torch.Tensor  # [bs, B] int64, the root token, then mask tokens
    positions: torch.Tensor  # [bs, B] int64, seq_len + 0 .. B - 1
    live: torch.Tensor  # [bs] int64, 1 where a captured tail may commit, 0 elsewhere


class StepBuffers:
    """Buffers for at most ``max_bs`` requests; N = ``width`` >= B = ``block``.

    ``live`` is kept for the first ``graph_bs`` requests, the largest batch of a captured graph: 0 on its padding.
    """

    graph_bs = 0

    def __init__(self, max_bs: int, width: int, block: int, device: torch.device | str) -> None:
        shapes = {"window": width, "front": block, "block_ids": block, "positions": block}
        self._arrays = {
            name: torch.zeros((max_bs, columns), dtype=torch.int64, device=device) for name, columns in shapes.items()
        }
        self._arrays["live"] = torch.zeros(max_bs, dtype=torch.int64, device=device)
        self._views: dict[int, Step] = {}
        self._offsets = torch.arange(width, dtype=torch.int64, device=device)
        self._is_cuda = torch.device(device).type == "cuda"

    def views(self, bs: int) -> Step:
        """Return the buffers of ``bs`` requests."""
        step = self._views.get(bs)
        if step is None:
            step = self._views[bs] = Step(**{name: array[:bs] for name, array in self._arrays.items()})
        return step

    def prepare(
        self,
        root: torch.Tensor,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        req_to_token: torch.Tensor,
        mask_token: int,
        live: bool = False,
    ) -> Step:
        """Fill the buffers for the requests of a batch (``root``, ``seq_lens``, ``req_pool_indices``: ``[bs]``)."""
        bs = int(seq_lens.shape[0])
        step = self.views(bs)
        if self._is_cuda:
            from .triton_step import prepare_into

            flags = self._arrays["live"][: max(bs, self.graph_bs)]
            prepare_into(
                root, seq_lens, req_pool_indices, req_to_token, mask_token, live, **{**vars(step), "live": flags}
            )
            return step
        step.live.fill_(int(live))
        block = step.front.shape[1]
        positions = seq_lens.to(torch.int64)[:, None] + self._offsets
        rows = req_pool_indices.to(torch.int64)[:, None].expand_as(positions)
        step.window.copy_(req_to_token[rows, positions])
        step.front.copy_(step.window[:, :block])
        step.block_ids.fill_(mask_token)
        step.block_ids[:, 0] = root
        step.positions.copy_(positions[:, :block])
        return step
