"""Candidates over a vocabulary that is split between ranks (tensor parallelism), and their torch twin.

Every rank reduces its own shard to a few words per row: the ``K`` best tokens as sorted order keys, and for each chunk
of the shard its maximum and its sum of exponentials. One all-gather of these words, never of logits, gives every rank
the same integers, from which it merges the same candidates: there is nothing left to broadcast.

Guaranteed: all ranks get the same bits (they compute the same function of the same words). Against an unsplit
vocabulary with the same logits: the same ids in the same order (logit descending, token id ascending, also across
shards); log-sum-exp bit for bit where every shard but the last is a whole number of chunks, since the same sums are
then added in the same order, and within one unit in the last place of float32 elsewhere.

A key holds a candidate's logit, as an integer in the order of floats, above its token id counted downwards; so the
larger key is the better candidate, and keys are distinct. -1: no candidate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .topk import ordered_topk, quantise

CHUNK = 8192
"""Tokens whose exponentials are summed into one word, as in the kernels (``triton_topk.CHUNK``)."""

NO_CANDIDATE = -1
_TOP_ID = 0x7FFFFFFF
_NO_CHUNK = torch.tensor([0.0, -torch.inf], dtype=torch.float32).view(torch.int64)[0].item()  # sum 0, maximum -inf

Gather = Callable[[torch.Tensor, torch.Tensor], object]
"""``gather(out, mine)``: fill ``out`` with the ``mine`` of all ranks, in rank order."""


@dataclass(frozen=True)
class Shard:
    """One rank's part of the vocabulary, contiguous, in rank order.

    ``first``: its first token; ``rows``: its tokens (0 where a rank holds nothing but padding); ``most_rows``: the
    tokens that any rank can have, the same on every rank; ``vocab``: the tokens of all ranks; ``ranks``: how many.
    """

    first: int
    rows: int
    most_rows: int
    vocab: int
    ranks: int

    @property
    def chunks(self) -> int:
        """Words of statistics per row and rank."""
        return -(-self.most_rows // CHUNK)


class ShardedCandidates:
    """Top-k and log-probabilities over all shards, in buffers that are allocated once.

    ``count`` = K. On a GPU a call only launches kernels and the gather: it can be captured in a CUDA graph where the
    gather can. Results are views that hold until the next call.
    """

    def __init__(self, shard: Shard, gather: Gather, max_rows: int, count: int, device: torch.device | str) -> None:
        self.shard, self.count = shard, min(count, shard.vocab)
        self._gather = gather
        self._local = min(self.count, shard.rows)
        self._words = self.count + shard.chunks
        self._packed = torch.full((max_rows, self._words), NO_CANDIDATE, dtype=torch.int64, device=device)
        self._packed[:, self.count :] = _NO_CHUNK
        self._gathered = torch.empty(shard.ranks * max_rows * self._words, dtype=torch.int64, device=device)
        self._kernels: Any = None
        if torch.device(device).type == "cuda":
            from . import triton_merge, triton_topk

            self._kernels = triton_topk, triton_merge
            self._buffers = triton_topk.make_buffers(max_rows, self._local, shard.rows, device) if shard.rows else None
            self._out = triton_merge.make_buffers(max_rows, self.count, device)

    @property
    def buffers(self) -> Any:
        """What every call on a GPU fills from the start (``ids``, ...)."""
        return self._out

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ids, log-probabilities and scores, ``[R, K]``, of this shard's logits ``[R, rows]``."""
        rows = logits.shape[0]
        packed = self._packed[:rows]
        if self.shard.rows:
            if self._kernels is None:
                pack(logits, self._local, self.count, self.shard, packed)
            else:
                self._kernels[0].pack_into(logits, self._buffers, packed, self.shard.first, self.count)
        gathered = self._gathered[: self.shard.ranks * packed.numel()]
        self._gather(gathered, packed.view(-1))
        words = gathered.view(self.shard.ranks, rows, self._words)
        if self._kernels is None:
            return merge(words, self.count)[:3]
        bits = self._kernels[0].key_bits(logits.dtype)
        found = self._kernels[1].merge_into(words, self._out, bits)
        return found.ids[:rows], found.log_probs[:rows], found.scores[:rows]


def pack(logits: torch.Tensor, local: int, count: int, shard: Shard, out: torch.Tensor) -> None:
    """Write the words of one shard: ``local`` keys, statistics from ``count`` on; ``triton_topk.pack_into``'s twin."""
    wide = logits.to(torch.float32)
    values, ids = ordered_topk(wide, local)
    bits = (values + 0.0).contiguous().view(torch.int32).to(torch.int64)  # + 0.0 turns -0.0 into 0.0
    ordered = torch.where(bits >= 0, bits, -(bits & _TOP_ID) - 1) + (1 << 31)
    out[:, :local] = (ordered << 31) | (_TOP_ID - ids - shard.first)
    parts = wide.split(CHUNK, dim=-1)
    maxima = torch.stack([part.amax(dim=-1) for part in parts], dim=-1)
    base = torch.where(torch.isinf(maxima), 0.0, maxima)
    sums = torch.stack([torch.exp(part - base[:, c, None]).sum(dim=-1) for c, part in enumerate(parts)], dim=-1)
    out[:, count : count + len(parts)] = torch.stack([sums, maxima], dim=-1).view(torch.int64).squeeze(-1)


def merge(words: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Merge ``[ranks, R, words]`` into ids, log-probabilities, scores ``[R, K]`` and log-sum-exp ``[R]``."""
    shards, rows, _ = words.shape
    by_row = words.transpose(0, 1)
    keys = by_row[:, :, :count].reshape(rows, shards * count)
    best = torch.topk(keys, count, dim=-1).values  # distinct, so their order is defined
    ordered = (best >> 31) - (1 << 31)
    bits = torch.where(ordered >= 0, ordered, -(ordered + 1) - (1 << 31))
    values = bits.to(torch.int32).view(torch.float32)
    statistics = by_row[:, :, count:].reshape(rows, -1, 1).contiguous().view(torch.float32)
    sums, maxima = statistics.unbind(dim=-1)
    top = maxima.amax(dim=-1, keepdim=True)
    base = torch.where(torch.isinf(top), 0.0, top).to(torch.float64)
    total = (sums.to(torch.float64) * torch.exp(maxima.to(torch.float64) - base)).sum(dim=-1, keepdim=True)
    log_z = (base + torch.log(total)).to(torch.float32)
    log_probs = values - log_z
    return _TOP_ID - (best & _TOP_ID), log_probs, quantise(log_probs), log_z.squeeze(-1)
