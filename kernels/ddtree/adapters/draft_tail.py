"""From the drafter's hidden states to trees: the tail of the drafter's pass.

On a GPU it is captured into the drafter's CUDA graph by SGLang's own tail hooks, so that head, selection, tree and mask
cost no launch of their own; elsewhere, and for batches above the captured sizes, it runs after the drafter.
"""

from __future__ import annotations

from typing import Any

import torch

from ..build.merge import ShardedCandidates
from ..build.select import TreeBuilder
from ..build.shape import NO_END, DeviceShape, Shape
from ..build.torch_builder import TreeBatch
from ..settings import Settings
from . import timing


class Found:
    """The candidates of a batch in rank order, each ``[bs, D, K]``."""

    def __init__(self, ids: torch.Tensor, log_probs: torch.Tensor, scores: torch.Tensor) -> None:
        self.ids, self.log_probs, self.scores = ids, log_probs, scores


class DraftTail:
    """Scores the vocabulary at every depth with the target's own head, keeps the best, builds the trees.

    What the trees look like is data in static device tensors, so one captured graph serves all: ``shape`` (width,
    budget, tree or chain; one for the batch) and per request ``budgets`` and ``end_lens`` (int64 ``[max_bs]``, by the
    position in the batch: most nodes, and the length at which the request ends; by default they limit nothing).
    ``most_requested``: the largest budget that a request of the batch asks for, ``None`` as soon as one asks for none.

    ``head_rows``: rows of the head that are vocabulary; ``processor``: the target's logits processor (scale, soft cap);
    ``sharded``: candidates over all ranks' shards, where the head is split.
    """

    def __init__(
        self,
        settings: Settings,
        head: Any,
        head_rows: int,
        processor: Any,
        max_bs: int,
        device: torch.device | str,
        sharded: ShardedCandidates | None = None,
    ) -> None:
        self.settings = settings
        self._head, self._head_rows = head, head_rows
        self._scale = getattr(processor, "logit_scale", None)
        self._softcap = getattr(processor, "final_logit_softcapping", None)
        self.builder = TreeBuilder(max_bs, settings.depth, settings.ranks, settings.width, head_rows, device, sharded)
        long = {"dtype": torch.int64, "device": device}
        self.budgets = torch.full((max_bs,), settings.width, **long)
        self.end_lens = torch.full((max_bs,), NO_END, **long)
        self.shape = DeviceShape(Shape(settings.width, settings.budget), device)
        self.most_requested: int | None = None
        self._captured: dict[int, Found] = {}

    def static_trees(self, bs: int, width: int) -> TreeBatch:
        """Return the views that every build on this GPU fills for its first ``bs`` requests of ``width`` nodes."""
        return self.builder.trees(bs, width)

    def static_ids(self, bs: int) -> torch.Tensor:
        """Return the candidates, ``[bs, D, K]``, that every build on this GPU takes for ``bs`` requests."""
        return self.builder.static_ids(bs)

    def set_shape(self, shape: Shape) -> None:
        """Choose the trees to come, in stream order; nothing is launched when the choice is the last one."""
        self.shape.set(shape)

    def run(
        self, hidden: torch.Tensor, root: torch.Tensor, seq_lens: torch.Tensor, full_mask: torch.Tensor | None
    ) -> tuple[Found, TreeBatch]:
        """Build trees from ``hidden`` ``[bs * B, H]``, the drafter's output; ``full_mask`` as ``TreeBuilder.build``."""
        timing.passed("draft")
        bs = root.shape[0]
        block = self.settings.block_size
        weight = self._head.weight[: self._head_rows]
        states = hidden.view(bs, block, -1)[:, 1:, :].reshape(bs * (block - 1), -1)
        logits = torch.matmul(states.to(weight.dtype), weight.T)
        if self._scale is not None:
            logits = logits.to(torch.float32) * self._scale
        if self._softcap:
            logits = self._softcap * torch.tanh(logits.to(torch.float32) / self._softcap)
        found = Found(*self.builder.candidates(logits.view(bs, block - 1, logits.shape[-1])))
        tree = self.builder.build(
            root.contiguous(), found.ids, found.scores, seq_lens, self.budgets[:bs], self.end_lens[:bs], self.shape,
            full_mask, square_mask=full_mask is None,
        )  # fmt: skip
        return found, tree

    def capture_hook(self, full_mask: torch.Tensor) -> Any:
        """Return a tail hook for the drafter's graph runner; the trees go to the verify mask ``full_mask`` too."""

        def hook(runner: Any, out: Any, forward_batch: Any, num_tokens: int) -> None:
            del runner
            block = self.settings.block_size
            bs = num_tokens // block
            root = forward_batch.input_ids[:num_tokens].view(bs, block)[:, 0]
            self._captured[bs], _ = self.run(out.hidden_states, root, forward_batch.seq_lens[:bs], full_mask)

        return hook

    @property
    def is_captured(self) -> bool:
        """Whether the drafter's graphs build trees."""
        return bool(self._captured)

    def captured(self, bs: int) -> tuple[Found, TreeBatch]:
        """Return the views that the drafter's last replay has filled for its first ``bs`` requests."""
        found = self._captured.get(bs)
        if found is None:
            found = self._captured[min(size for size in self._captured if size >= bs)]
            found = self._captured[bs] = Found(found.ids[:bs], found.log_probs[:bs], found.scores[:bs])
        return found, self.builder.trees(bs, self.shape.host.width)
