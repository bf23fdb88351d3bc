"""Per-depth candidates: exact, deterministic top-k and log-probabilities."""

from __future__ import annotations

import torch

from ..tree.definition import SCORE_FLOOR, SCORE_SHIFT


def ordered_topk(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ``k`` best of each row in the order (logit descending, token id ascending).

    ``logits`` is float32 ``[..., V]``, free of NaN; returns values float32 and ids int64, both ``[..., k]``.
    ``torch.topk`` promises no order among equal values, and not even which of them it returns, so ties at the boundary
    are collected by a second pass over ids. No host synchronisation, no int64 copy of the logits.
    """
    vocab = logits.shape[-1]
    if not 0 < k <= vocab:
        raise ValueError(f"top-k of {k} from a vocabulary of {vocab}")
    values, ids = torch.topk(logits, k, dim=-1)
    boundary = values[..., -1:]
    # Of the tokens that equal the boundary value, the k smallest ids: int32 keys, 0 for all others.
    position = torch.arange(vocab, 0, -1, dtype=torch.int32, device=logits.device)
    tied_key = torch.topk(torch.where(logits == boundary, position, 0), k, dim=-1).values
    tied_ids = vocab - tied_key.to(torch.int64)
    # Strictly better tokens are all in the first pass; order the union by one integer key per candidate.
    better = values > boundary
    keys = torch.cat(
        [
            torch.where(better, _sort_key(values, ids, vocab), -1),
            torch.where(tied_key > 0, _sort_key(boundary.expand_as(values), tied_ids, vocab), -1),
        ],
        dim=-1,
    )
    chosen = torch.topk(keys, k, dim=-1).indices
    all_values = torch.cat([values, boundary.expand_as(values)], dim=-1)
    all_ids = torch.cat([ids, tied_ids], dim=-1)
    return all_values.gather(-1, chosen), all_ids.gather(-1, chosen)


def candidates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids int64, log-probabilities float32 and scores int64 (units of 2**-32), all ``[..., k]``.

    The log-probability is fp32(logit) - fp32(log-sum-exp), as in the published algorithm; with such operands the
    conversion to 2**-32 is exact unless both are below 2**-9 in magnitude.
    """
    wide = logits.to(torch.float32)
    log_z = torch.logsumexp(wide, dim=-1, keepdim=True)
    values, ids = ordered_topk(wide, k)
    log_prob = values - log_z
    return ids, log_prob, quantise(log_prob)


def quantise(log_prob: torch.Tensor) -> torch.Tensor:
    """Tensor form of :func:`ddtree.tree.definition.quantise`: int64, ties to even, clamped at the floor."""
    scaled = torch.round(log_prob.to(torch.float64) * float(1 << SCORE_SHIFT))
    return scaled.clamp(min=float(SCORE_FLOOR)).to(torch.int64)


def _sort_key(values: torch.Tensor, ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """Map (value, id) to a non-negative int64 that is larger for a larger value, then for a smaller id."""
    bits = (values + 0.0).contiguous().view(torch.int32).to(torch.int64)  # + 0.0 turns -0.0 into 0.0
    ordered = torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF) - 1) + (1 << 31)
    return (ordered << 31) | (vocab - 1 - ids)
