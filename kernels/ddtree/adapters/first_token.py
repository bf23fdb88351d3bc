"""The first token of a seeded request, which SGLang's sampler draws in prefill: drawn again with the request's coins.

SGLang honours seeds in deterministic mode only; without this the first token would be random, and all that follows
with it. The sampler is a torch module, so its own hooks are the seam: one keeps the logits before the sampler works on
them in place, one puts the tokens in.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from .sampling import Seeds, sample_nodes


class FirstTokens:
    """Hooks on the target's sampler; idle unless ``seeds`` is set."""

    def __init__(self, sampler: torch.nn.Module) -> None:
        self.seeds: Seeds | None = None
        self._logits: torch.Tensor | None = None
        sampler.register_forward_pre_hook(self._before)
        sampler.register_forward_hook(self._after)

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        del module
        if self.seeds is not None:
            self._logits = args[0].next_token_logits.index_select(0, self.seeds.index)

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], tokens: torch.Tensor) -> torch.Tensor:
        del module
        seeds, logits = self.seeds, self._logits
        if seeds is None or logits is None:
            return tokens
        self._logits = None
        output, info, wants_logprob, *_, positions = args
        some = SimpleNamespace(
            temperatures=info.temperatures[seeds.index],
            top_ks=info.top_ks[seeds.index],
            top_ps=info.top_ps[seeds.index],
            min_ps=info.min_ps[seeds.index],
            need_top_k_sampling=info.need_top_k_sampling,
            need_top_p_sampling=info.need_top_p_sampling,
            need_min_p_sampling=info.need_min_p_sampling,
        )
        count = len(seeds.rows)
        every = Seeds(tuple(range(count)), torch.arange(count, device=logits.device), seeds.values)
        drawn = sample_nodes(logits, some, 1, every, positions[seeds.index].view(-1, 1))
        if wants_logprob and output.next_token_logprobs is not None:
            from sglang.srt.layers.sampler import SGLANG_RETURN_ORIGINAL_LOGPROB

            scaled = logits.float() if SGLANG_RETURN_ORIGINAL_LOGPROB else logits.float() / some.temperatures
            values = torch.log_softmax(scaled, dim=-1).gather(1, drawn).view(-1)
            output.next_token_logprobs[seeds.index] = values.to(output.next_token_logprobs.dtype)
        return tokens.index_copy(0, seeds.index, drawn.view(-1).to(tokens.dtype))
