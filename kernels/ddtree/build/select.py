"""Which implementation serves a device: the Triton kernels on a GPU, their torch twins elsewhere.

All give the same trees and paths bit for bit from the same candidates; a caller sees one interface. On a GPU there are
two builders: the pending-child loop (``triton_builder``, every size) and the selection from the static universe
(``triton_static``, small ones). ``STATIC_IS_FASTER`` says where the second one is taken, by measurement.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from . import accept, topk, torch_builder
from .accept import Accepted
from .merge import ShardedCandidates
from .shape import DeviceShape
from .torch_builder import TreeBatch

ENV_BUILDER = "DDTREE_BUILDER"
"""``loop`` or ``static``: this builder wherever it covers the size, instead of the measured choice."""

STATIC_IS_FASTER: frozenset[tuple[int, int]] = frozenset()
"""(levels, largest budget) for which ``benchmarks/kernels/bench_build.py`` found the selection faster than the loop.

Empty: on an H200 the loop won at every size, batches of 1, 8 and 32 alike. In microseconds that a call adds to a
running graph, at 8 requests and 15 levels: 4.0 against 6.9 at 8 nodes, 5.8 against 10.3 at 16 (best number of warps),
9.7 against 24.3 at 32; with 7 levels 21.5 against 41.3 at 64. Source:
``benchmarks/results/2026-11-30-kernels-h200-builders.json``.
"""


def takes_static(depth: int, budget: int) -> bool:
    """Whether trees of at most ``budget`` nodes and ``depth`` levels are built from the static universe."""
    from . import triton_static

    asked = os.environ.get(ENV_BUILDER, "")
    if asked not in ("", "loop", "static"):
        raise ValueError(f"DDTREE: {ENV_BUILDER}={asked!r} is neither loop nor static.")
    is_wanted = asked == "static" or (not asked and (depth, budget) in STATIC_IS_FASTER)
    return is_wanted and triton_static.covers(budget, depth)


class TreeBuilder:
    """Candidates, trees and acceptance for at most ``max_bs`` requests, in buffers that are allocated once.

    Results are views of these buffers: they hold until the next call for the same kind. On a GPU no call allocates or
    synchronises, so all of them can be captured in a CUDA graph (call each once before, to compile). ``depth`` = D,
    ``ranks`` = K, ``width`` = N, of the widest trees; ``sharded``: where logits are those of one rank's shard of the
    vocabulary. Raises ``ValueError`` for sizes that the kernels do not cover.
    """

    def __init__(
        self,
        max_bs: int,
        depth: int,
        ranks: int,
        width: int,
        vocab: int,
        device: torch.device | str,
        sharded: ShardedCandidates | None = None,
    ) -> None:
        self.depth, self.width = depth, width
        self.ranks = min(ranks, vocab) if sharded is None else sharded.count
        self._sharded = sharded
        self.triton: Any = None
        if torch.device(device).type == "cuda":
            from . import triton_builder, triton_commit, triton_topk

            self.triton = triton_topk, triton_builder, triton_commit
            if sharded is None:
                self._candidates = triton_topk.make_buffers(max_bs * depth, self.ranks, vocab, device)
            self._trees = triton_builder.make_buffers(max_bs, width, depth, self.ranks, device)
            self._tables: Any = None
            if takes_static(depth, width - 1):
                from . import triton_static

                self._tables = triton_static.make_tables(max_bs, self._trees, depth, self.ranks, device)
            for array in vars(self._trees).values():
                array.zero_()  # a graph can be captured before the first build: its indices must be in range
            self._accepted = triton_commit.make_accept_buffers(max_bs, depth + 1, device)
        self._views: dict[tuple[int, int], TreeBatch] = {}

    def candidates(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids, log-probabilities and scores, ``[bs, D, K]``, of logits ``[bs, D, V]`` (any float type)."""
        bs = logits.shape[0]
        shape = (bs, self.depth, self.ranks)
        if self._sharded is not None:
            ids, log_probs, scores = self._sharded(logits.reshape(bs * self.depth, logits.shape[-1]))
            return ids.view(shape), log_probs.view(shape), scores.view(shape)
        if self.triton is None:
            return topk.candidates(logits, self.ranks)
        self.triton[0].candidates_into(logits.reshape(bs * self.depth, -1), self._candidates)
        found = self._candidates
        return tuple(array[: bs * self.depth].view(shape) for array in (found.ids, found.log_probs, found.scores))

    def build(
        self,
        root_token: torch.Tensor,
        ids: torch.Tensor,
        scores: torch.Tensor,
        seq_lens: torch.Tensor,
        budgets: torch.Tensor,
        end_lens: torch.Tensor,
        shape: DeviceShape,
        full_mask: torch.Tensor | None = None,
        square_mask: bool = True,
    ) -> TreeBatch:
        """Build trees of ``shape``; on a GPU also the tree columns of ``full_mask`` (SGLang's FULL_MASK), if given.

        Without ``square_mask`` a GPU leaves the result's ``mask`` unwritten.
        """
        if self.triton is None:
            return torch_builder.build_trees(root_token, ids, scores, seq_lens, budgets, end_lens, shape.host)
        if self._tables is not None:
            from . import triton_static

            return triton_static.build_trees_into(
                root_token, ids, scores, seq_lens, budgets, end_lens, shape, self._trees, self._tables, full_mask,
                square_mask=square_mask,
            )  # fmt: skip
        return self.triton[1].build_trees_into(
            root_token, ids, scores, seq_lens, budgets, end_lens, shape, self._trees, full_mask, square_mask=square_mask
        )

    def trees(self, bs: int, width: int) -> TreeBatch:
        """Return the views that ``build`` fills on a GPU for ``bs`` requests and ``width`` nodes."""
        found = self._views.get((bs, width))
        if found is None:
            found = self._views[bs, width] = self._trees.batch(bs, width)
        return found

    def static_ids(self, bs: int) -> torch.Tensor:
        """Return the view that ``candidates`` fills on a GPU for ``bs`` requests, ``[bs, D, K]``."""
        found = self._candidates if self._sharded is None else self._sharded.buffers
        return found.ids[: bs * self.depth].view(bs, self.depth, self.ranks)

    def accept(self, tree: TreeBatch, target: torch.Tensor, seq_lens: torch.Tensor) -> Accepted:
        """Return the accepted paths, ``D + 1`` wide."""
        if self.triton is None:
            return accept.accept_paths(tree, target, self.depth + 1)
        return self.triton[2].accept_into(tree, target, seq_lens, self._accepted)
