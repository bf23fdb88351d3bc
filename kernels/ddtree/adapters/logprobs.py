"""Log-probabilities of accepted tokens: the target's rows along the accepted path, computed by SGLang's own function.

Its scheduler carries them for every speculative algorithm. What differs between releases is the function's name, and
that 0.5.17's DFLASH worker refuses such batches although prefill and scheduler serve them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import compat

_MODULE = "sglang.srt.layers.logprob_processor"
_WORKER = "sglang.srt.speculative.dflash_worker_v2"
_SEAM = "_validate_phase1_sampling_support"
"""What DFLASH's worker calls right behind its refusal, with the batch."""


def function() -> Callable[..., None] | None:
    """Return SGLang's function for accepted tokens, ``None`` where this release has none that takes a path."""
    for name in ("compute_spec_logprobs", "compute_spec_v2_logprobs"):
        found: Callable[..., None] | None = compat.optional(_MODULE, name)
        if found is not None and "accept_index" in inspect.signature(found).parameters:
            return found
    return None


def served() -> bool:
    """Tell whether requests for log-probabilities can be answered: by DFLASH's prefill, and after verification."""
    return function() is not None and (_worker_serves() or _has_seam())


def _worker_serves() -> bool:
    return compat.optional(_WORKER, "compute_spec_logprobs") is not None


def _has_seam() -> bool:
    return hasattr(compat.optional(_WORKER, "DFlashWorkerV2"), _SEAM)


@contextmanager
def through_prefill(batch: Any) -> Iterator[None]:
    """Let DFLASH's prefill run a batch that wants log-probabilities, where its worker refuses them.

    The refusal is a look at ``batch.return_logprob``; ``restore`` undoes this at the seam right behind it.
    """
    hide = bool(batch.return_logprob) and not _worker_serves()
    if hide:
        batch.return_logprob = False
        batch.ddtree_logprobs = True
    try:
        yield
    finally:
        restore(batch)


def restore(batch: Any) -> None:
    """Give a batch back what ``through_prefill`` has hidden."""
    if getattr(batch, "ddtree_logprobs", False):
        batch.return_logprob = True
        batch.ddtree_logprobs = False


def add(batch: Any, logits_output: Any, target: torch.Tensor, path: torch.Tensor) -> None:
    """Put the log-probabilities of the accepted tokens on ``logits_output``, ``[bs, P]``.

    ``target``: ``[bs, N]``, the token after each node; ``path``: ``[bs, P]``. The rows of ``next_token_logits`` must be
    what tokens were chosen from: penalties and bias applied, temperature not.
    """
    compute = function()
    if compute is None:
        raise RuntimeError("DDTREE: this SGLang release has no log-probabilities for accepted tokens.")
    bs, width = target.shape
    rows = torch.arange(bs, device=path.device)[:, None] * width + path
    extra = compat.accepted(compute, speculative_num_steps=path.shape[1] - 1)
    compute(batch, logits_output, target.reshape(-1), accept_index=rows, **extra)
