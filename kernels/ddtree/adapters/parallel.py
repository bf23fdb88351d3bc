"""Tensor parallelism: what ranks must have in common, and how they come to have it.

Every rank runs the same steps on its own shards, and a collective operation waits for all of them. So whatever decides
the shape of a step, or its tokens, has to be the same everywhere:

- **trees** by construction: ranks gather candidates and sums of their vocabulary shards, and compute the same integers
  from the same words (``build.merge``), in the drafter's CUDA graph, by the collective that SGLang itself captures.
- **greedy tokens** by construction: SGLang gathers the logits of all shards, each of which one rank has computed.
- **sampled tokens** by the first rank's word: random numbers come from generators that are seeded alike, but a filter
  may order equal probabilities otherwise on another device. (SGLang 0.5.19 and later do so for their own samples.)
- **choices of the host** (a budget from the control file, a width chosen by measured times) by the first rank's word
  too: a file's change is seen at different times, and no two ranks measure the same.

``DDTREE_COMPARE_RANKS=1`` compares trees and accepted paths after every step and ends the server where they differ.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ..build.merge import Shard
from ..build.torch_builder import TreeBatch
from ..control.choice import AUTO, Choice, Chooser
from .compat import bonus_tokens

logger = logging.getLogger(__name__)

ENV_COMPARE = "DDTREE_COMPARE_RANKS"
AGREE_EVERY = 4
"""Steps between two exchanges of the host's choices; what the first rank wants holds one to two exchanges later."""

_NOTHING = (-1, 0)  # the automatic controller was not asked


class Ranks:
    """The tensor-parallel group of a worker. With one rank every method is the identity and nothing is exchanged."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.size = int(group.world_size)
        self.rank = int(group.rank_in_group)
        self.is_first = self.rank == 0
        self.compares = self.size > 1 and os.environ.get(ENV_COMPARE, "0") not in ("", "0")
        self._agreement = Agreement(group) if self.size > 1 else None
        self._steps = 0
        if self.compares and self.is_first:
            logger.warning("DDTREE compares all %d ranks after every step (%s): slow.", self.size, ENV_COMPARE)

    @classmethod
    def of_tensor_parallel_group(cls) -> Ranks:
        """Return the ranks of SGLang's tensor-parallel group in this process."""
        from sglang.srt.distributed import get_tp_group

        return cls(get_tp_group())

    def as_dict(self) -> dict[str, int]:
        """Return the fields for the beacon."""
        return {"tp_size": self.size, "tp_rank": self.rank}

    def shard(self, head: Any, rows: int) -> Shard | None:
        """Return this rank's part of the vocabulary, ``None`` where nothing is split.

        ``head``: the target's ``lm_head``; ``rows``: its rows that are vocabulary. Raises ``ValueError`` for a head
        that is replicated or split in another way.
        """
        if self.size == 1:
            return None
        indices = getattr(head, "shard_indices", None)
        mine = (-1, -1, -1)
        if indices is not None:
            mine = (int(indices.org_vocab_start_index), rows, int(indices.num_org_elements_padded))
        parts = self._group.all_gather_object(mine)
        at = 0
        for first, count, _ in parts:
            if first != at and count:
                raise ValueError(f"DDTREE: the ranks' shards of the lm_head do not divide the vocabulary: {parts}.")
            at += count
        most = max(padded for _, _, padded in parts)
        return Shard(first=max(mine[0], 0), rows=rows, most_rows=most, vocab=at, ranks=self.size)

    def gather(self, out: torch.Tensor, mine: torch.Tensor) -> None:
        """Fill ``out`` with all ranks' ``mine``, in rank order. Captured in a CUDA graph where SGLang captures one."""
        self._group.all_gather_into_tensor(out, mine)

    def share(self, value: Any) -> Any:
        """Return the first rank's ``value`` (any object that can be pickled). Waits for it: for start-up only."""
        return value if self.size == 1 else self._group.broadcast_object(value, src=0)

    def must_equal(self, what: str, value: Any) -> None:
        """Raise ``RuntimeError`` on every rank when ``value`` is not the same everywhere. For start-up only."""
        values = [value] if self.size == 1 else self._group.all_gather_object(value)
        if any(other != values[0] for other in values):
            raise RuntimeError(f"DDTREE: {what} differs between tensor-parallel ranks: {values}.")

    def same_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Overwrite ``tokens`` with the first rank's, in stream order."""
        if self.size > 1:
            self._group.broadcast(tokens, src=0)
        return tokens

    def same_first_tokens(self, result: Any) -> None:
        """Overwrite the tokens that a prefill sampled, and what the next step starts from, by the first rank's."""
        tokens = getattr(result, "next_token_ids", None)
        if self.size == 1 or not isinstance(tokens, torch.Tensor) or not tokens.numel():
            return
        self._group.broadcast(tokens, src=0)
        bonus = bonus_tokens(result.next_draft_input)
        if bonus.data_ptr() != tokens.data_ptr():
            bonus.copy_(tokens.view_as(bonus))

    def choose(self, chooser: Chooser, batch: int, control: Any, most_requested: int | None) -> Choice:
        """Return ``chooser``'s choice from the first rank's control file and automatic controller."""
        budget, mode = control.budget, control.mode
        if self.size > 1:
            followed = chooser.automatic if isinstance(chooser.automatic, Followed) else None
            is_asked = followed is not None and self.is_first and chooser.wants_automatic(budget, mode)
            wish = (*_encode(budget, mode), *(followed.wish(batch) if followed and is_asked else _NOTHING))
            budget, mode, *automatic = _decode(self.agree(wish))
            if followed and tuple(automatic) != _NOTHING:
                followed.agreed = (automatic[0], automatic[1])
        return chooser.choose(batch, budget, mode, most_requested)

    def agree(self, wish: Sequence[int]) -> tuple[int, ...]:
        """Return the first rank's choice of a few steps ago; call it once in every step, always with as many numbers.

        Never waits in practice: the exchange runs beside the steps between two calls that look at it.
        """
        return tuple(wish) if self._agreement is None else self._agreement.step(wish)

    def compare_step(self, tree: TreeBatch, target: torch.Tensor, outcome: Any) -> None:
        """Compare a step's trees, the target's tokens and the accepted paths, where that was asked for."""
        if self.compares:
            arrays = {name: getattr(tree, name) for name in ("draft_token", "parent", "depth", "score", "valid")}
            self.compare(**arrays, target=target, **vars(outcome.accepted), new_seq_lens=outcome.new_seq_lens)

    def compare(self, **arrays: torch.Tensor) -> None:
        """Raise ``RuntimeError`` on every rank when arrays differ between ranks; waits for the device."""
        self._steps += 1
        mine = {name: _fingerprint(array) for name, array in arrays.items()}
        everyone = self._group.all_gather_object(mine)
        for rank, theirs in enumerate(everyone):
            for name, (digest, shape, _) in everyone[0].items():
                other = theirs.get(name)
                if other is None or other[:2] != (digest, shape):
                    raise RuntimeError(
                        f"DDTREE: rank {rank} and rank 0 differ in {name!r} at step {self._steps}: {other} against "
                        f"{everyone[0][name]}. Ranks that differ once answer nonsense or wait for each other for ever; "
                        f"this server ends here ({ENV_COMPARE}). Please report it with the server's arguments."
                    )


class Followed:
    """An automatic controller of which only the first rank's is asked: measured times and counters are its own."""

    def __init__(self, controller: Any, chooser: Chooser) -> None:
        self._controller, self._chooser = controller, chooser
        self.agreed = (0, 1)  # a chain of no drafts until the first rank has said something

    def wish(self, batch: int) -> tuple[int, int]:
        """Return what this rank's controller wants for a batch: budget, and 1 for a chain plus 2 for a probe."""
        choice = self._controller.choose(batch)
        return choice.budget, int(choice.chain) + 2 * (choice.reason == "probe")

    def choose(self, batch: int) -> Choice:
        """Return the agreed choice in the width that holds it at this batch."""
        budget, form = self.agreed
        return self._chooser.fixed(batch, budget, bool(form & 1), "probe" if form & 2 else "cost")


class Agreement:
    """The first rank's numbers, passed on by asynchronous broadcasts between host processes."""

    def __init__(self, group: Any) -> None:
        self._source = group.ranks[0]
        # A channel of its own: the scheduler's broadcasts of requests go on beside these.
        self._channel = torch.distributed.new_group(ranks=list(group.ranks), backend="gloo")
        self._values: tuple[int, ...] | None = None
        self._buffer = torch.empty(0)
        self._pending: Any = None
        self._step = 0

    def step(self, wish: Sequence[int]) -> tuple[int, ...]:
        """Take over what the last exchange brought, and start the next one when it is due."""
        if self._step % AGREE_EVERY == 0:
            values = self._receive()
            self._buffer = torch.tensor(list(wish), dtype=torch.int64)
            self._pending = torch.distributed.broadcast(
                self._buffer, src=self._source, group=self._channel, async_op=True
            )
            self._values = self._receive() if values is None else values  # the very first exchange is waited for
        self._step += 1
        assert self._values is not None
        return self._values

    def _receive(self) -> tuple[int, ...] | None:
        if self._pending is None:
            return None
        self._pending.wait()
        self._pending = None
        return tuple(self._buffer.tolist())


def _encode(budget: int | str | None, mode: str) -> tuple[int, int]:
    return -1 if budget is None else -2 if budget == AUTO else int(budget), int(mode == "chain")


def _decode(numbers: Sequence[int]) -> tuple[Any, ...]:
    budget = {-1: None, -2: AUTO}.get(numbers[0], numbers[0])
    return budget, "chain" if numbers[1] else "tree", *numbers[2:]


def _fingerprint(array: torch.Tensor) -> tuple[str, tuple[int, ...], list[int]]:
    """Return digest, shape and the first numbers of an array."""
    numbers = array.detach().to("cpu", torch.int64).contiguous()
    digest = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]
    return digest, tuple(array.shape), numbers.flatten()[:8].tolist()
