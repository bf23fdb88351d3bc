"""The target's token after every node of a tree: its best one, or a sample of its distribution there.

Sampling at *every* node and then walking the tree is lossless: the walk reads one node per position, and what it reads
was drawn from the target's distribution after exactly the tokens accepted so far. No rejection step is needed, and the
drafter's probabilities play no part. Filters follow SGLang's sampler: temperature, then top-k and top-p on the sorted
probabilities ("joint": both on the unfiltered ones), then min-p.

Requests with a seed draw with the coins of ``build.coins``, which depend on (seed, position, token) alone: their
answers are the same twice, alone or in a batch, under any budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..build import coins

MAX_CHUNK = 1 << 26
"""Most probabilities that are filtered at once: bounds the memory of a sort to about a gibibyte."""


@dataclass(frozen=True)
class Seeds:
    """The requests of a batch that sample with a seed."""

    rows: tuple[int, ...]  # their places in the batch, ascending; on the host
    index: torch.Tensor  # [k] int64, the same on the device
    values: torch.Tensor  # [k] int64

    def within(self, start: int, end: int) -> Seeds | None:
        """Return those of a part of the batch, with places counted from its start."""
        if start == 0 and end > self.rows[-1]:
            return self
        chosen = [i for i, row in enumerate(self.rows) if start <= row < end]
        if not chosen:
            return None
        part = slice(chosen[0], chosen[-1] + 1)
        return Seeds(tuple(row - start for row in self.rows[part]), self.index[part] - start, self.values[part])


def target_tokens(
    logits: torch.Tensor,
    info: Any,
    width: int,
    seeds: Seeds | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the target's token after each node, ``[bs, N]`` int64, contiguous.

    ``logits``: ``[bs * N, V]``; ``info``: SGLang's sampling info of the batch (``None`` is greedy), N = ``width``;
    ``positions``: ``[bs, N]``, of the nodes themselves, needed with ``seeds``. No host synchronisation.
    """
    best = torch.argmax(logits, dim=-1).view(-1, width)
    if info is None or info.is_all_greedy:
        return best
    sampled = sample_nodes(logits, info, width, seeds, positions)
    return torch.where(info.top_ks.view(-1, 1) == 1, best, sampled)  # temperature 0 arrives as top-k 1


def sample_nodes(
    logits: torch.Tensor,
    info: Any,
    width: int,
    seeds: Seeds | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sample one token per row of ``logits`` (``[bs * N, V]``), each by its request's parameters; ``[bs, N]`` int64."""
    bs = logits.shape[0] // width
    rows = max(1, MAX_CHUNK // max(1, width * logits.shape[1]))
    parts = []
    for start in range(0, bs, rows):
        end = min(start + rows, bs)
        part = slice(start, end)
        chosen = logits[start * width : end * width].view(end - start, width, -1)
        probs = torch.softmax(chosen.to(torch.float32) / info.temperatures[part].view(-1, 1, 1), dim=-1)
        seeded = None if seeds is None else seeds.within(start, end)
        parts.append(_sample(probs, info, part, seeded, None if positions is None else positions[part]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sample(
    probs: torch.Tensor, info: Any, part: slice, seeds: Seeds | None, positions: torch.Tensor | None
) -> torch.Tensor:
    """Filter and draw; ``probs``: ``[b, N, V]``."""
    if not (info.need_top_p_sampling or info.need_top_k_sampling or info.need_min_p_sampling):
        return _draw(probs, None, seeds, positions)
    ordered, ids = probs.sort(dim=-1, descending=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    rank = torch.arange(ordered.shape[-1], device=probs.device)
    dropped = (rank >= info.top_ks[part].view(-1, 1, 1)) | (before > info.top_ps[part].view(-1, 1, 1))
    if info.need_min_p_sampling:
        dropped |= ordered < ordered[..., :1] * info.min_ps[part].view(-1, 1, 1)
    chosen = _draw(ordered.masked_fill(dropped, 0.0), ids, seeds, positions)
    return ids.gather(-1, chosen[..., None]).squeeze(-1)


def _draw(
    weights: torch.Tensor, ids: torch.Tensor | None, seeds: Seeds | None, positions: torch.Tensor | None
) -> torch.Tensor:
    """Draw an index by weight: the least of independent exponential clocks (``torch.multinomial`` synchronises).

    ``ids``: the token of each index (``None``: the index itself), which a seeded request's clock belongs to.
    """
    clocks = torch.empty_like(weights)
    if seeds is None or len(seeds.rows) < weights.shape[0]:
        clocks.exponential_()
    if seeds is not None:
        if positions is None:
            raise ValueError("seeded sampling needs positions")
        some = None if ids is None else ids.index_select(0, seeds.index)
        own = coins.clocks(seeds.values, positions.index_select(0, seeds.index), weights.shape[-1], some)
        clocks.index_copy_(0, seeds.index, own)
    return torch.argmax(weights / clocks, dim=-1)
