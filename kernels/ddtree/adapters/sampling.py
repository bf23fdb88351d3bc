"""The target's token after every node of a tree: its best one, or a sample of its distribution there.

Sampling at *every* node and then walking the tree is lossless: the walk reads one node per position, and what it reads
was drawn from the target's distribution after exactly the tokens accepted so far. No rejection step is needed, and the
drafter's probabilities play no part. Filters follow SGLang's sampler: temperature, then top-k and top-p on the sorted
probabilities ("joint": both on the unfiltered ones), then min-p.
"""

from __future__ import annotations

from typing import Any

import torch

MAX_CHUNK = 1 << 26
"""Most probabilities that are filtered at once: bounds the memory of a sort to about a gibibyte."""


def target_tokens(logits: torch.Tensor, info: Any, width: int) -> torch.Tensor:
    """Return the target's token after each node, ``[bs, N]`` int64, contiguous.

    ``logits``: ``[bs * N, V]``; ``info``: SGLang's sampling info of the batch (``None`` is greedy), N = ``width``.
    No host synchronisation.
    """
    best = torch.argmax(logits, dim=-1).view(-1, width)
    if info is None or info.is_all_greedy:
        return best
    sampled = sample_nodes(logits, info, width)
    return torch.where(info.top_ks.view(-1, 1) == 1, best, sampled)  # temperature 0 arrives as top-k 1


def sample_nodes(logits: torch.Tensor, info: Any, width: int) -> torch.Tensor:
    """Sample one token per row of ``logits`` (``[bs * N, V]``), each by its request's parameters; ``[bs, N]`` int64."""
    bs = logits.shape[0] // width
    rows = max(1, MAX_CHUNK // max(1, width * logits.shape[1]))
    parts = []
    for start in range(0, bs, rows):
        end = min(start + rows, bs)
        part = slice(start, end)
        chosen = logits[start * width : end * width].view(end - start, width, -1)
        probs = torch.softmax(chosen.to(torch.float32) / info.temperatures[part].view(-1, 1, 1), dim=-1)
        parts.append(_sample(probs, info, part))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _sample(probs: torch.Tensor, info: Any, part: slice) -> torch.Tensor:
    """Filter and draw; ``probs``: ``[b, N, V]``."""
    if not (info.need_top_p_sampling or info.need_top_k_sampling or info.need_min_p_sampling):
        return _draw(probs)
    ordered, ids = probs.sort(dim=-1, descending=True)
    before = torch.cumsum(ordered, dim=-1) - ordered
    rank = torch.arange(ordered.shape[-1], device=probs.device)
    dropped = (rank >= info.top_ks[part].view(-1, 1, 1)) | (before > info.top_ps[part].view(-1, 1, 1))
    if info.need_min_p_sampling:
        dropped |= ordered < ordered[..., :1] * info.min_ps[part].view(-1, 1, 1)
    return ids.gather(-1, _draw(ordered.masked_fill(dropped, 0.0))[..., None]).squeeze(-1)


def _draw(weights: torch.Tensor) -> torch.Tensor:
    """Draw an index by weight: the least of independent exponential clocks (``torch.multinomial`` synchronises)."""
    clocks = torch.empty_like(weights).exponential_()
    return torch.argmax(weights / clocks, dim=-1)
