"""The tail of the target's pass for greedy batches: best tokens, acceptance, compaction and counters in its CUDA graph.

A step of a small model is bound by launches, so what can be captured is. The captured tail acts on a request only
where ``live`` says so: not on the padding of a graph's batch, and not in a step that has to look at the logits first
(sampling, logit bias); such a step commits after the replay, as batches without a graph do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..build.step import StepBuffers
from ..metrics import DeviceCounters
from . import timing
from .commit import Committer, Outcome
from .draft_tail import DraftTail


@dataclass(frozen=True)
class Committed:
    """What the last replay has decided and moved, for the first requests of its batch."""

    target: torch.Tensor  # [bs, N] int64, the target's best token after each node
    outcome: Outcome
    rows: torch.Tensor  # [bs * P, H], hidden states along the paths


class VerifyTail:
    """Registers itself as a tail hook of the target's model runner; keeps static results by width and batch size."""

    def __init__(
        self, draft: DraftTail, buffers: StepBuffers, committer: Committer, counters: DeviceCounters, max_bs: int
    ) -> None:
        self._draft, self._buffers, self._committer, self._counters = draft, buffers, committer, counters
        self._max_bs = max_bs
        self._captured: dict[tuple[int, int], Committed] = {}  # by width and batch
        self._cut: dict[tuple[int, int], Committed] = {}  # the same for batches between the captured sizes
        self._rows: torch.Tensor | None = None

    def hook(self, runner: Any, out: Any, forward_batch: Any, num_tokens: int) -> None:
        """Run after the target's forward, while its graph for ``num_tokens`` is captured."""
        del runner
        bs = int(forward_batch.batch_size)
        width = num_tokens // bs
        if bs > self._max_bs or out.hidden_states is None:
            return
        timing.passed("verify")
        tree, step = self._draft.static_trees(bs, width), self._buffers.views(bs, width)
        target = torch.argmax(out.next_token_logits[:num_tokens], dim=-1).view(bs, width)
        outcome = self._committer.accept_captured(tree, target, forward_batch.seq_lens[:bs])
        gated = outcome.accepted.accept_len * step.live
        self._committer.compact_kv_by(step.window, outcome.accepted.path, gated)
        hidden = out.hidden_states[:num_tokens]
        path_width = outcome.accepted.path.shape[1]
        if self._rows is None or self._rows.shape[0] < bs * path_width:
            shape = (self._max_bs * path_width, hidden.shape[1])
            self._rows = torch.empty(shape, dtype=hidden.dtype, device=hidden.device)
        rows = self._rows[: bs * path_width]
        self._committer.gather_into(hidden, outcome.accepted.path, width, rows)
        ids = self._draft.static_ids(bs)
        self._counters.count(tree, ids, outcome.accepted, outcome.moved, step.live)
        self._captured[width, bs] = Committed(target, outcome, rows)

    def result(self, bs: int, width: int) -> Committed:
        """Return what the last replay has done for a batch of ``bs``, which it padded to the next captured size."""
        found = self._captured.get((width, bs)) or self._cut.get((width, bs))
        if found is None:
            found = self._captured[min(key for key in self._captured if key[0] == width and key[1] >= bs)]
            outcome, path_width = found.outcome, found.outcome.accepted.path.shape[1]
            accepted = type(outcome.accepted)(**{name: array[:bs] for name, array in vars(outcome.accepted).items()})
            cut = Outcome(accepted, outcome.commit_lens[:bs], outcome.new_seq_lens[:bs], outcome.moved[:bs])
            found = self._cut[width, bs] = Committed(found.target[:bs], cut, found.rows[: bs * path_width])
        return found


_CHANGES = ("acc_linear_penalties", "acc_additive_penalties", "acc_scaling_penalties", "grammar_mask", "logit_bias")


def must_see_logits(info: Any) -> bool:
    """Tell whether a batch's tokens are not simply the best ones: sampling, or anything that changes logits."""
    if info is None:
        return False
    penalizer = getattr(info, "penalizer_orchestrator", None)
    return bool(
        not info.is_all_greedy
        or getattr(info, "has_custom_logit_processor", False)
        or any(getattr(info, name, None) is not None for name in _CHANGES)
        or (penalizer is not None and penalizer.is_required)
    )
