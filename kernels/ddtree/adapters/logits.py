"""What changes a target's logits before tokens are chosen: penalties, grammar, bias, in SGLang's order."""

from __future__ import annotations

from typing import Any

import torch

from .penalties import Penalties


def adjust(
    logits: torch.Tensor,
    tree: Any,
    seq_lens: torch.Tensor,
    depth: int,
    info: Any,
    penalties: Penalties | None,
    grammar_mask: Any = None,
) -> None:
    """Adjust ``logits`` (``[bs * N, V]``) in place, each node's row as plain decoding would have it there.

    ``info``: SGLang's sampling info. Its accumulated penalties are left alone: no speculative step updates them.
    """
    if penalties is not None:
        penalties.adjust(logits, tree, seq_lens, depth)
    if grammar_mask is not None:
        grammar_mask.apply(logits)
    bias = None if info is None else info.logit_bias
    if bias is not None:
        logits.view(bias.shape[0], -1, logits.shape[-1]).add_(bias[:, None, :])
