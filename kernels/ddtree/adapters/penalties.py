"""Penalties on a tree: every node's logits as plain decoding would have them there.

What a request has said so far is its committed output *and* the tokens on the node's own path. SGLang's penalisers
know neither in a speculative step (they are never told what was accepted), so the counts are kept here: on the device,
one row of the vocabulary per request, advanced in stream order after every acceptance. Only batches with a penalised
request have them.

The order is SGLang's: frequency, presence and minimum length (additive), then repetition (scaling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..limits import has_penalty


@dataclass(frozen=True)
class Rules:
    """The penalties of a batch as device tensors; neutral values where a request has none."""

    frequency: torch.Tensor  # [bs, 1, 1] float32
    presence: torch.Tensor  # [bs, 1, 1] float32
    repetition: torch.Tensor  # [bs, 1, 1] float32
    min_length: torch.Tensor  # [bs, 1] int64, the sequence length from which a request may stop; 0 without
    stops: torch.Tensor  # [bs, S] int64, tokens that end a request, -1 where there are fewer
    additive: bool
    scaling: bool
    least: bool


class Penalties:
    """Counts and rules of one batch. ``counts``: ``[bs, V]`` int32, occurrences in the output, the root included."""

    def __init__(self, rules: Rules, counts: torch.Tensor) -> None:
        self.rules, self.counts = rules, counts

    def adjust(self, logits: torch.Tensor, tree: Any, seq_lens: torch.Tensor, depth: int) -> None:
        """Adjust ``logits`` (``[bs * N, V]``, float) in place; ``depth`` = D, the deepest level a tree can have."""
        bs, width = tree.draft_token.shape
        rows = logits.view(bs, width, -1)
        rules = self.rules
        if rules.additive or rules.scaling:
            nodes, tokens, on_path = _paths(tree, depth)
            first = _first_on_path(tokens, on_path, self.counts).gather(1, nodes.flatten(1)).view_as(nodes) & on_path
        if rules.additive:
            said = self.counts.to(torch.float32)
            rows -= (rules.frequency[:, 0] * said + rules.presence[:, 0] * (said > 0))[:, None, :].to(rows.dtype)
            more = rules.frequency * on_path + rules.presence * first
            rows.scatter_add_(2, tokens, -more.to(rows.dtype))
        if rules.least:
            lengths = seq_lens.to(torch.int64)[:, None] + 1 + tree.depth
            banned = (lengths < rules.min_length)[:, :, None] & (rules.stops >= 0)[:, None, :]
            never = torch.zeros(banned.shape, dtype=rows.dtype, device=rows.device).masked_fill_(banned, -torch.inf)
            rows.scatter_add_(2, rules.stops.clamp(min=0)[:, None, :].expand_as(banned), never)
        if rules.scaling:
            for b in range(bs):  # one request at a time bounds the memory
                _scale_said(rows[b], self.counts[b], rules.repetition[b, 0])
            old = rows.gather(2, tokens)
            step = _scaled(old, rules.repetition.to(rows.dtype)) - old
            rows.scatter_add_(2, tokens, torch.where(first & old.isfinite(), step, 0.0))

    def advance(self, accepted: Any) -> None:
        """Count the tokens of an acceptance: the accepted drafts and the bonus token."""
        steps = torch.arange(accepted.out_tokens.shape[1], device=accepted.out_tokens.device)
        spoken = (steps <= accepted.accept_len[:, None]).to(self.counts.dtype)
        self.counts.scatter_add_(1, accepted.out_tokens, spoken)


def make_rules(reqs: Sequence[Any], device: torch.device | str) -> Rules:
    """Read the penalties of a batch from its requests; small asynchronous copies, no synchronisation."""
    params = [req.sampling_params for req in reqs]
    numbers = [[p.frequency_penalty, p.presence_penalty, p.repetition_penalty] for p in params]
    floats = send(numbers, torch.float32, device)
    stops = [_stops(req) if p.min_new_tokens > 0 else [] for req, p in zip(reqs, params, strict=True)]
    most = max(1, *(len(some) for some in stops))
    rows = [
        [len(req.origin_input_ids) + p.min_new_tokens if p.min_new_tokens > 0 else 0, *some, *[-1] * (most - len(some))]
        for req, p, some in zip(reqs, params, stops, strict=True)
    ]
    whole = send(rows, torch.int64, device)
    return Rules(
        frequency=floats[:, 0].view(-1, 1, 1),
        presence=floats[:, 1].view(-1, 1, 1),
        repetition=floats[:, 2].view(-1, 1, 1),
        min_length=whole[:, :1],
        stops=whole[:, 1:],
        additive=any(f or p for f, p, _ in numbers),
        scaling=any(r != 1.0 for _, _, r in numbers),
        least=any(p.min_new_tokens > 0 for p in params),
    )


def make_counts(
    reqs: Sequence[Any],
    spoken: Sequence[Sequence[int]],
    known: Sequence[int | None],
    old: torch.Tensor | None,
    root: torch.Tensor,
    vocab: int,
) -> torch.Tensor:
    """Return the counts of a batch, ``[bs, V]`` int32.

    ``known[b]``: the row of ``old`` where request ``b`` is counted already, else ``None``; then its count starts with
    ``spoken[b]``, the output before the root, and the root itself (``root``: ``[bs]``, known to the device only).
    """
    device = root.device
    counts = torch.zeros((len(reqs), vocab), dtype=torch.int32, device=device)
    kept = [(b, row) for b, row in enumerate(known) if row is not None]
    if kept and old is not None:
        pairs = send(kept, torch.int64, device)
        counts.index_copy_(0, pairs[:, 0], old.index_select(0, pairs[:, 1]))
    fresh = [b for b, row in enumerate(known) if row is None and has_penalty(reqs[b].sampling_params)]
    if fresh:
        rows = send(fresh, torch.int64, device)
        places = rows * vocab + root.to(torch.int64).index_select(0, rows)
        said = [b * vocab + token for b in fresh for token in spoken[b]]
        if said:
            places = torch.cat([places, send(said, torch.int64, device)])
        counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
    return counts


def give_history(reqs: Sequence[Any], info: Any, vocab: int) -> None:
    """Correct the accumulated penalties of a prefill whose requests have spoken before, that is, were retracted.

    SGLang's start from nothing then. ``info``: the forward's own copy of the sampling info.
    """
    if not any(req.output_ids and has_penalty(req.sampling_params) for req in reqs):
        return
    device = info.temperatures.device
    rules, bs = make_rules(reqs, device), len(reqs)
    places = [b * vocab + token for b, req in enumerate(reqs) for token in req.output_ids]
    counts = torch.zeros(bs * vocab, dtype=torch.int32, device=device)
    index = send(places, torch.int64, device)
    counts = counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.int32)).view(bs, vocab)
    said = counts.to(torch.float32)
    additive = -(rules.frequency[:, 0] * said + rules.presence[:, 0] * (said > 0))
    lengths = send([[len(req.origin_input_ids) + len(req.output_ids)] for req in reqs], torch.int64, device)
    banned = (lengths < rules.min_length) & (rules.stops >= 0)
    never = torch.zeros(banned.shape, dtype=torch.float32, device=device).masked_fill_(banned, -torch.inf)
    info.acc_additive_penalties = additive.scatter_add_(1, rules.stops.clamp(min=0), never)
    info.acc_scaling_penalties = torch.where(counts > 0, rules.repetition[:, 0], 1.0)


def send(values: Any, dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Copy host numbers to the device without waiting (pinned memory is reused only after the copy)."""
    on_gpu = torch.device(device).type == "cuda"
    return torch.tensor(values, dtype=dtype, pin_memory=on_gpu).to(device, non_blocking=True)


def _stops(req: Any) -> list[int]:
    """Tokens that end a request: its own, the model's and the tokenizer's."""
    tokenizer = getattr(req, "tokenizer", None)
    found = set(req.sampling_params.stop_token_ids or ())
    found |= set(getattr(req, "eos_token_ids", None) or ())
    found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    found.add(getattr(tokenizer, "eos_token_id", None))
    return sorted(int(token) for token in found if token is not None)


def _paths(tree: Any, depth: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return nodes, tokens and validity of every node's path, itself first and the root left out: ``[bs, N, D]``."""
    bs, width = tree.parent.shape
    node = torch.arange(width, device=tree.parent.device).expand(bs, width)
    nodes = []
    for _ in range(max(depth, 1)):
        nodes.append(node)
        node = tree.parent.gather(1, node)  # the root's parent is the root, a padding node's too
    found = torch.stack(nodes, dim=-1)
    tokens = tree.draft_token.gather(1, found.flatten(1)).view_as(found)
    return found, tokens, (found > 0) & tree.valid[:, :, None]


def _first_on_path(tokens: torch.Tensor, on_path: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Tell for every node (``[bs, N]``) whether its token is new: not said yet, nor on the path above it."""
    again = ((tokens[..., 1:] == tokens[..., :1]) & on_path[..., 1:]).any(dim=-1)
    return ~again & (counts.gather(1, tokens[..., 0]) == 0)


def _scaled(values: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    return torch.where(values < 0, values * by, values / by)


def _scale_said(rows: torch.Tensor, counts: torch.Tensor, by: torch.Tensor) -> None:
    rows.copy_(_scaled(rows, torch.where(counts > 0, by, 1.0).to(rows.dtype)))
