"""What one verify step adds to the counters: their layout, and the additions in torch.

One small int64 tensor holds all of them, so that a GPU kernel (``triton_count``) can add a step with a few atomic
operations inside a captured graph. This is its twin, and the whole implementation on a CPU: same integers, bit for bit;
even the drafter's own probabilities are summed as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from .accept import Accepted
from .torch_builder import TreeBatch

RANK_BINS = 8
"""Accepted ranks 0 .. RANK_BINS - 2 are counted one by one, the last bin holds all higher ones."""

SCALARS = (
    "requests",
    "accepted_drafts",
    "branch_paths",
    "non_first_accepted",
    "moved_slots",
    "nodes_built",
    "nodes_padded",
    "prefix_paths",
    "first_miss_outside",
    "full_paths",
)
"""Counters of one number, in this order."""

EXPECTED_BITS = 20
"""Probabilities are counted in units of ``2 ** -EXPECTED_BITS``."""

# 2 ** -f for f in [0, 1): a polynomial, coefficients in 2 ** -20, largest error 2.4e-6.
LOG2_E = 1512775
POWER = (1048576, -726739, 251131, -55864, 7184)


@dataclass(frozen=True)
class Layout:
    """Where what stands: ``path_width`` = P = deepest possible path with its root, ``ranks`` = K candidates a depth."""

    path_width: int
    ranks: int

    @cached_property
    def places(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Offset and shape of every array after the scalars."""
        paths, depths = self.path_width, self.path_width - 1
        shapes: dict[str, tuple[int, ...]] = {
            "accept_length_histogram": (paths,),  # index: accepted drafts
            "leaf_ends": (paths,),  # index: depth of a leaf at which the walk ended
            "tree_depth_histogram": (paths,),  # index: deepest node
            "nodes_by_depth": (paths,),
            "expected_by_depth": (paths,),  # sums of the drafter's path probabilities
            "accepted_rank_by_depth": (depths, RANK_BINS),  # row: depth - 1
            "first_miss_rank": (self.ranks,),
        }
        found, offset = {}, len(SCALARS)
        for name, shape in shapes.items():
            found[name] = (offset, shape)
            offset += torch.Size(shape).numel()
        return found

    def at(self, name: str) -> int:
        """Return the offset of an array."""
        return self.places[name][0]

    @property
    def size(self) -> int:
        """Return the length of the whole tensor."""
        offset, shape = list(self.places.values())[-1]
        return offset + torch.Size(shape).numel()


def add_step(
    counts: torch.Tensor,
    layout: Layout,
    tree: TreeBatch,
    ids: torch.Tensor,
    accepted: Accepted,
    moved: torch.Tensor,
    live: torch.Tensor | None = None,
) -> None:
    """Add one verify step of ``bs`` requests.

    ``ids``: ``[bs, D, K']`` int64, the candidates in rank order, K' <= K; ``moved``: ``[bs]`` int64, KV slots that were
    copied; ``live``: ``[bs]``, requests that are 0 there are not counted. No host synchronisation.
    """
    bs, width = tree.valid.shape
    device, paths = counts.device, layout.path_width
    weight = torch.ones(bs, dtype=torch.int64, device=device) if live is None else live.to(torch.int64)
    length = accepted.accept_len
    steps = torch.arange(paths, device=device)
    on_path = (steps > 0) & (steps <= length[:, None])
    ranks = tree.rank.gather(1, accepted.path)
    later = on_path & (ranks > 0)
    nodes = tree.valid.sum(dim=1) - 1

    depths = ids.shape[1]
    row = ids.gather(1, length.clamp(max=depths - 1)[:, None, None].expand(-1, -1, ids.shape[2])).squeeze(1)
    hit = (row == accepted.bonus[:, None]) & (length < depths)[:, None]
    inside = hit.any(dim=1)
    full = length >= depths

    values = [torch.ones_like(nodes), length, later.any(1), later.sum(1), moved, nodes, width - 1 - nodes, moved == 0]
    values += [~inside & ~full, full]
    counts[: len(SCALARS)] += (torch.stack([value.to(torch.int64) for value in values]) * weight).sum(dim=1)

    def histogram(name: str, index: torch.Tensor, amount: torch.Tensor) -> None:
        """Scatter ``amount`` (of requests that count) to ``index``; ``bincount`` would synchronise on a GPU."""
        weighed = amount.to(torch.int64) * weight.view(bs, *[1] * (amount.dim() - 1))
        start, shape = layout.places[name]
        into = counts[start : start + torch.Size(shape).numel()]
        into.scatter_add_(0, index.clamp(max=into.shape[0] - 1).flatten(), weighed.flatten())

    end = accepted.path.gather(1, length[:, None])
    is_leaf = tree.retrieve_next_token.gather(1, end).squeeze(1) < 0
    histogram("accept_length_histogram", length, torch.ones_like(length))
    histogram("leaf_ends", length, is_leaf)
    histogram("tree_depth_histogram", tree.depth.amax(dim=1), torch.ones_like(length))
    is_node = tree.valid & (tree.depth > 0)
    histogram("nodes_by_depth", tree.depth, is_node)
    histogram("expected_by_depth", tree.depth, torch.where(is_node, probability(tree.score), 0))
    bins = (steps - 1).clamp(min=0) * RANK_BINS + ranks.clamp(0, RANK_BINS - 1)
    histogram("accepted_rank_by_depth", bins, on_path)
    histogram("first_miss_rank", hit.to(torch.int64).argmax(dim=1), inside)


def probability(score: torch.Tensor) -> torch.Tensor:
    """Return ``exp`` of scores (log-probabilities in ``2 ** -32``, int64) in units of ``2 ** -20``, by integers alone.

    Right to about 4e-6. Integers, because a float's last bit would depend on the device and on the order of the sum.
    """
    nats = ((-score).clamp(min=0) >> 12).clamp(max=1 << 25)
    log2 = nats * LOG2_E >> EXPECTED_BITS
    fraction = log2 & ((1 << EXPECTED_BITS) - 1)
    value = torch.full_like(score, POWER[-1])
    for coefficient in POWER[-2::-1]:
        value = coefficient + (value * fraction >> EXPECTED_BITS)
    return value >> (log2 >> EXPECTED_BITS)
