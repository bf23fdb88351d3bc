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
    """Buffers for at most ``max_bs`` requests and windows of at most ``width`` nodes (>= ``block`` = B).

    A step of N <= ``width`` nodes uses the start of the window's array, without gaps: captured graphs of a width find
    it at the same place. The drafter writes the first B slots, so N >= B; a smaller N is widened for ``front``.

    ``live`` is kept for the first ``graph_bs`` requests, the largest batch of a captured graph: 0 on its padding.
    """

    graph_bs = 0

    def __init__(self, max_bs: int, width: int, block: int, device: torch.device | str) -> None:
        shapes = {"window": width, "front": block, "block_ids": block, "positions": block}
        self._arrays = {
            name: torch.zeros((max_bs, columns), dtype=torch.int64, device=device) for name, columns in shapes.items()
        }
        self._arrays["live"] = torch.zeros(max_bs, dtype=torch.int64, device=device)
        self._views: dict[tuple[int, int], Step] = {}
        self._width = width
        self._offsets = torch.arange(width, dtype=torch.int64, device=device)
        self._is_cuda = torch.device(device).type == "cuda"

    def views(self, bs: int, width: int | None = None) -> Step:
        """Return the buffers of ``bs`` requests whose windows have ``width`` nodes (the widest without one)."""
        n = self._width if width is None else width
        step = self._views.get((bs, n))
        if step is None:
            arrays = {name: array[:bs] for name, array in self._arrays.items()}
            arrays["window"] = self._arrays["window"].view(-1)[: bs * n].view(bs, n)
            step = self._views[bs, n] = Step(**arrays)
        return step

    def prepare(
        self,
        root: torch.Tensor,
        seq_lens: torch.Tensor,
        req_pool_indices: torch.Tensor,
        req_to_token: torch.Tensor,
        mask_token: int,
        live: bool = False,
        width: int | None = None,
    ) -> Step:
        """Fill the buffers for the requests of a batch (``root``, ``seq_lens``, ``req_pool_indices``: ``[bs]``)."""
        bs = int(seq_lens.shape[0])
        step = self.views(bs, width)
        if self._is_cuda:
            from .triton_step import prepare_into

            flags = self._arrays["live"][: max(bs, self.graph_bs)]
            prepare_into(
                root, seq_lens, req_pool_indices, req_to_token, mask_token, live,
                **{**vars(step), "live": flags}, widest=self._width,
            )  # fmt: skip
            return step
        step.live.fill_(int(live))
        n, block = step.window.shape[1], step.front.shape[1]
        positions = seq_lens.to(torch.int64)[:, None] + self._offsets[: max(n, block)]
        rows = req_pool_indices.to(torch.int64)[:, None].expand_as(positions)
        slots = req_to_token[rows, positions]
        step.window.copy_(slots[:, :n])
        step.front.copy_(slots[:, :block])
        step.block_ids.fill_(mask_token)
        step.block_ids[:, 0] = root
        step.positions.copy_(positions[:, :block])
        return step
