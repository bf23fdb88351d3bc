"""The decoding loop: draft a block, build a tree, verify it in one pass, walk, commit. Batch 1.

Three modes share it. ``tree``: the tree of ``budget`` nodes. ``linear``: the chain of each depth's best token, which is
DFlash. ``ar``: no draft at all, plain decoding, the control. In each the target alone chooses: its best token at
temperature 0, else a token *sampled* from its distribution at every node. A walk takes the child that carries the
chosen token, so the output is the target's own greedy output, or has exactly the target's distribution.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..trees import heap, trace, walk
from .drafter import Context, Drafter
from .target import Target

MODES = ("ar", "linear", "tree")
KEPT_RANKS = 32
"""Candidates recorded per depth, more where the tree uses more: a comparison scores another tree's nodes with them."""


@dataclass(frozen=True)
class Options:
    """How to decode; ``budget`` counts nodes without the root and matters to ``tree`` alone."""

    mode: str = "tree"
    budget: int = 32
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    stop: frozenset[int] = frozenset()


@dataclass
class Answer:
    """What one prompt gave; ``finish`` is ``stop`` or ``length``."""

    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    finish: str = "length"
    seconds: float = 0.0


class Chooser:
    """The target's choice at every row of logits: greedy, or sampled with a seed of its own."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature = temperature
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor) -> list[int]:
        """One token per row of ``logits`` ``[rows, vocabulary]``."""
        if self.temperature <= 0:
            found: list[int] = logits.argmax(-1).tolist()
            return found
        law = (logits.double() / self.temperature).softmax(-1).cpu()
        sampled: list[int] = torch.multinomial(law, 1, generator=self._random)[:, 0].tolist()
        return sampled


def candidates(logits: Tensor, ranks: int) -> tuple[list[list[int]], list[list[float]]]:
    """The best ``ranks`` tokens per row, (logit descending, id ascending), and their float32 log-probabilities."""
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    log_probs = values[..., :ranks] - logits.logsumexp(-1, keepdim=True)
    return order[..., :ranks].tolist(), log_probs.tolist()


def ancestors(parent: tuple[int, ...]) -> Tensor:
    """Which nodes each node sees, ``[nodes, nodes]`` bool: its ancestors and itself."""
    seen = torch.eye(len(parent), dtype=torch.bool)
    for node in range(1, len(parent)):
        seen[node] |= seen[parent[node]]
    return seen


class Decoder:
    """Decodes prompts with a pair of models; ``drafter`` may be None for mode ``ar``."""

    def __init__(self, target: Target, drafter: Drafter | None) -> None:
        self.target, self.drafter = target, drafter
        target.taps = drafter.config.taps if drafter is not None else ()

    def decode(self, req: str, prompt: list[int], options: Options, answer: Answer) -> Iterator[trace.TraceRound]:
        """Yield the rounds of one prompt and fill ``answer`` as they come."""
        began = time.monotonic()
        choose = Chooser(options.temperature, options.seed)
        first = choose(self.target.prefill(prompt)[None])[0]
        context = self._context()
        end = len(prompt) + options.max_tokens
        _emit(answer, [first], options)
        while answer.finish != "stop" and len(answer.ids) < options.max_tokens:
            found = self._round(req, answer.rounds, first, end, context, choose, options)
            answer.rounds += 1
            first = found.bonus_out
            _emit(answer, found.emitted, options)
            answer.seconds = time.monotonic() - began
            yield found
        answer.seconds = time.monotonic() - began

    def draft(self, anchors: list[int], starts: list[int], context: Context, ranks: int) -> Any:
        """Candidates of blocks with these anchor tokens at these positions; each result is ``[rows][depth][ranks]``."""
        assert self.drafter is not None
        with torch.inference_mode():
            ids = self.drafter.block_ids(torch.tensor(anchors, device=self.target.device))
            at = torch.tensor(starts, device=self.target.device)
            return candidates(self.target.logits_of(self.drafter(self.target.embed(ids), at, context)), ranks)

    def _context(self) -> Context | None:
        if self.drafter is None:
            return None
        context = Context(self.drafter)
        self._remember(context)
        return context

    def _remember(self, context: Context | None, rows: list[int] | None = None) -> None:
        """Give the drafter the tapped states of the last pass, or of some rows of it."""
        if context is not None:
            with torch.inference_mode():
                features = self.target.features()
                context.extend(features if rows is None else features[rows])

    def _round(
        self, req: str, number: int, bonus: int, end: int, context: Context | None, choose: Chooser, options: Options
    ) -> trace.TraceRound:
        clock = [time.perf_counter()]
        start = self.target.length
        # The last token of an answer is the target's own, so drafts end one before it (as when serving).
        limit = 0 if self.drafter is None else max(0, min(self.drafter.config.depth, end - start - 2))
        budget = {"ar": 0, "linear": limit, "tree": options.budget}[options.mode]
        ids: list[list[int]] = []
        log_probs: list[list[float]] = []
        if budget and context is not None:
            (ids,), (log_probs,) = self.draft([bonus], [start], context, 1 if options.mode == "linear" else budget)
        clock.append(time.perf_counter())
        tree = heap.build_tree(bonus, ids, log_probs, budget, limit)
        clock.append(time.perf_counter())
        if options.mode == "ar":
            logits = self.target.step(bonus)[None]
        else:
            logits = self.target.verify(list(tree.token), list(tree.depth), ancestors(tree.parent))
        target = choose(logits)
        best = logits.topk(min(2, logits.shape[-1]), -1).values.tolist()
        clock.append(time.perf_counter())
        path, after = walk.accept(tree, target, options.stop)
        if options.mode != "ar":
            self._remember(context, list(path))
            self.target.keep(list(path))
        clock.append(time.perf_counter())
        kept = _kept(tree, len(ids))
        micros = [round(1e6 * (late - early)) for early, late in itertools.pairwise(clock)]
        return trace.TraceRound(
            req=req,
            round=number,
            start=start,
            bonus_in=bonus,
            ids=[row[:size] for row, size in zip(ids, kept, strict=True)],
            lp_bits=[[trace.float_bits(v) for v in row[:size]] for row, size in zip(log_probs, kept, strict=True)],
            token=list(tree.token),
            parent=list(tree.parent),
            depth=list(tree.depth),
            rank=list(tree.rank),
            score_q32=trace.score_strings(tree.score),
            target=target,
            accepted=list(path),
            emitted=[*(tree.token[node] for node in path[1:]), after],
            bonus_out=after,
            extra={
                "mode": options.mode,
                "budget": budget,
                "depth_limit": limit,
                "temperature": options.temperature,
                **({"stopped": True} if after in options.stop else {}),
                "gap": [round(pair[0] - pair[-1], 6) for pair in best],
                "top": [round(pair[0], 6) for pair in best],
                "t_us": dict(zip(("draft", "build", "verify", "commit"), micros, strict=True)),
            },
        )


def _kept(tree: Any, depths: int) -> list[int]:
    """How many candidates of each depth are recorded; those that no node uses cannot change the tree."""
    most = [KEPT_RANKS] * depths
    for node in range(1, len(tree)):
        most[tree.depth[node] - 1] = max(most[tree.depth[node] - 1], tree.rank[node] + 2)
    return most


def _emit(answer: Answer, tokens: list[int], options: Options) -> None:
    """Append tokens up to the limit, and up to the first stop token, which is kept."""
    for token in tokens:
        if len(answer.ids) == options.max_tokens:
            return
        answer.ids.append(token)
        if token in options.stop:
            answer.finish = "stop"
            return
