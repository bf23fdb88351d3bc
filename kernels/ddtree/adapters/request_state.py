"""What the requests of a decode batch ask for, on the device: end, budget, seed, penalties.

Looked at in every step, worked on only when the batch's composition changes: then a few numbers travel to the device by
an asynchronous copy. Nothing waits.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..limits import has_penalty, is_seed, request_budget
from . import penalties
from .first_token import FirstTokens
from .penalties import Penalties
from .sampling import Seeds

GREEDY_TOP_K = 1  # how temperature 0 arrives


class RequestState:
    """The demands of the current batch.

    ``tail``: has the builder's tensors ``end_lens`` and ``budgets`` (``[max_bs]`` int64) and ``most_requested``;
    ``budget``: for requests that ask for none; ``context``: the longest sequence; ``vocab``: width of the logits;
    ``stops``: ``[max_bs, S]`` int64, takes the tokens that end each request, -1 behind them.
    """

    def __init__(self, tail: Any, budget: int, context: int, vocab: int, stops: torch.Tensor) -> None:
        self._tail = tail
        self._budget, self._context, self._vocab = budget, context, vocab
        self._device = tail.end_lens.device
        self._stops = stops
        self._reqs: list[Any] = []
        self._stale = False
        self._counted: dict[Any, int] = {}  # requests that the present counts hold, and their rows there
        self._spoken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.seeds: Seeds | None = None
        self.penalties: Penalties | None = None

    def start(self, reqs: Sequence[Any]) -> None:
        """Note that requests are prefilled: from here on their output is what they have now, and one token more.

        (A request that was retracted comes back with its output as part of the prompt; steps that were in flight then
        are dropped, so whatever was counted is void.)
        """
        for req in reqs:
            if has_penalty(req.sampling_params):
                self._spoken[req] = len(req.output_ids)
                self._stale |= self._counted.pop(req, None) is not None

    @contextmanager
    def prefilling(self, batch: Any, first_tokens: FirstTokens) -> Iterator[None]:
        """Surround the prefill of a batch: its first tokens get the requests' seeds and what they have said before."""
        self.start(batch.reqs)
        if batch.sampling_info is not None:
            penalties.give_history(batch.reqs, batch.sampling_info, self._vocab)
            first_tokens.seeds = find_seeds(batch.reqs, self._device)
        try:
            yield
        finally:
            first_tokens.seeds = None

    def advance(self, accepted: Any) -> None:
        """Take the tokens of an acceptance into the counts, where there are any."""
        if self.penalties is not None:
            self.penalties.advance(accepted)

    def update(self, reqs: list[Any], root: torch.Tensor) -> None:
        """Take over the requests of a decode step; ``root``: ``[bs]``, the last token of each."""
        if reqs == self._reqs and not self._stale:
            return
        self._reqs, self._stale = list(reqs), False
        self._limit(reqs)
        self.seeds = find_seeds(reqs, self._device)
        self._count(reqs, root)

    def _limit(self, reqs: Sequence[Any]) -> None:
        """Write ends and budgets; places behind the batch get no nodes.

        A request's last token is the target's own: drafts end one before it.
        """
        ends = [min(len(req.origin_input_ids) + _most_tokens(req), self._context) - 1 for req in reqs]
        asked = [_asked_budget(req) for req in reqs]
        budgets = [self._budget if some is None else min(some, self._budget) for some in asked]
        self._tail.most_requested = None if None in asked else max(budgets)
        rest = [0] * (self._tail.end_lens.shape[0] - len(reqs))
        both = torch.tensor([ends + rest, budgets + rest], dtype=torch.int64, pin_memory=self._device.type == "cuda")
        self._tail.end_lens.copy_(both[0], non_blocking=True)
        self._tail.budgets.copy_(both[1], non_blocking=True)
        most = self._stops.shape[1]
        ends_with = [(stop_tokens(req) + [-1] * most)[:most] for req in reqs]
        rows = torch.tensor(ends_with, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        self._stops[: len(reqs)].copy_(rows, non_blocking=True)

    def _count(self, reqs: Sequence[Any], root: torch.Tensor) -> None:
        if not any(has_penalty(req.sampling_params) for req in reqs):
            self.penalties, self._counted = None, {}
            return
        known = [self._counted.get(req) for req in reqs]
        spoken = [req.output_ids[: self._spoken.get(req, 0)] for req in reqs]
        old = None if self.penalties is None else self.penalties.counts
        counts = penalties.make_counts(reqs, spoken, known, old, root, self._vocab)
        self.penalties = Penalties(penalties.make_rules(reqs, self._device), counts)
        self._counted = {req: row for row, req in enumerate(reqs) if has_penalty(req.sampling_params)}


def find_seeds(reqs: Sequence[Any], device: torch.device | str) -> Seeds | None:
    """Return the requests that sample with a seed, ``None`` where there are none."""
    found = [
        (row, seed)
        for row, req in enumerate(reqs)
        if (seed := getattr(req.sampling_params, "sampling_seed", None)) is not None
        and req.sampling_params.top_k != GREEDY_TOP_K
        and is_seed(seed)
    ]
    if not found:
        return None
    pairs = penalties.send(found, torch.int64, device)
    return Seeds(tuple(row for row, _ in found), pairs[:, 0].contiguous(), pairs[:, 1].contiguous())


def stop_tokens(req: Any) -> list[int]:
    """Return the tokens that end a request, as SGLang's ``Req`` knows them; none with ``ignore_eos``."""
    params = req.sampling_params
    if getattr(params, "ignore_eos", False):
        return []
    tokenizer = getattr(req, "tokenizer", None)
    found = {
        *(getattr(params, "stop_token_ids", None) or ()),
        *(getattr(req, "eos_token_ids", None) or ()),
        *(getattr(tokenizer, "additional_stop_token_ids", None) or ()),
        getattr(tokenizer, "eos_token_id", None),
    }
    return sorted(int(token) for token in found if token is not None)


def _asked_budget(req: Any) -> int | None:
    """Return what a request asks for; refused requests pass through here as well, on their way out."""
    try:
        return request_budget(req.sampling_params)
    except ValueError:
        return None


def _most_tokens(req: Any) -> int:
    most = req.sampling_params.max_new_tokens
    return 1 << 30 if most is None else int(most)
