"""A toy world that decodes without torch: a target and a drafter as functions of the context, and trace files of it.

Every context has fixed logits (seeded by its tokens). ``noise`` shifts all of them a little, as other arithmetic would;
``seed`` makes another target or another drafter.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddtree_ops.baseline.trees import heap, trace, walk

VOCABULARY, DEPTH = 12, 4
Context = tuple[int, ...]
PROMPTS: tuple[Context, ...] = ((1, 2, 3), (4, 5), (6, 7, 8, 9), (2, 2, 11))


@dataclass(frozen=True)
class World:
    """How to decode; two worlds with equal seeds and no noise are the same implementation."""

    budget: int = 6
    tokens: int = 28
    noise: float = 0.0
    noise_seed: int = 0
    target_seed: int = 0
    draft_seed: int = 0
    mode: str = "tree"
    dtype: str = "bfloat16"
    skill: float = 3.0  # how well the drafter knows the target
    depth_limit: bool = True
    ties: dict[Context, float] = field(default_factory=dict)  # context -> the gap of its two best logits

    def _logits(self, context: Context, name: str, seed: int) -> list[float]:
        fixed = random.Random(f"{name}-{seed}-{context}")
        return [fixed.uniform(0, 6) for _ in range(VOCABULARY)]

    def _shaken(self, logits: list[float], context: Context, name: str) -> list[float]:
        shift = random.Random(f"{self.noise_seed}-{name}-{context}")
        return [logit + self.noise * shift.uniform(-1, 1) for logit in logits]

    def target(self, context: Context) -> list[float]:
        """Logits of the target after a context; the best is at least 1 ahead unless the context is a made tie."""
        logits = self._logits(context, "target", self.target_seed)
        order = sorted(range(VOCABULARY), key=lambda token: -logits[token])
        gap = self.ties.get(context)
        if gap is None:
            logits[order[0]] += 1.0
        else:
            first, second = sorted(order[:2])
            top = max(logits) + 1.0
            logits[first], logits[second] = (top, top - gap) if gap >= 0 else (top + gap, top)
        return self._shaken(logits, context, "target")

    def draft(self, context: Context) -> tuple[list[list[int]], list[list[float]]]:
        """Candidates per depth after a context: the target's own continuation is made more likely."""
        ids, log_probs = [], []
        after, untied = context, replace(self, ties={})
        for depth in range(DEPTH):
            truth = best(untied.target(after))
            logits = self._logits((*context, -depth), "draft", self.draft_seed)
            logits[truth] += self.skill * random.Random(f"{after}").uniform(0, 1)
            logits = self._shaken(logits, (*context, -depth), "draft")
            after = (*after, truth)
            total = math.log(sum(map(math.exp, logits)))
            order = sorted(range(VOCABULARY), key=lambda token: (-logits[token], token))[: self.budget]
            ids.append(order if self.mode == "tree" else order[:1])
            row = [trace.bits_float(trace.float_bits(logits[token] - total)) for token in ids[-1]]
            log_probs.append(row)
        return ids, log_probs

    def rounds(self, req: str, prompt: Context) -> list[trace.TraceRound]:
        """All rounds of one prompt."""
        found: list[trace.TraceRound] = []
        context = prompt
        bonus = best(self.target(context))
        while len(context) + 1 - len(prompt) < self.tokens:
            limit = max(0, min(DEPTH, len(prompt) + self.tokens - len(context) - 1)) if self.depth_limit else DEPTH
            budget = limit if self.mode == "linear" else self.budget
            ids, log_probs = self.draft((*context, bonus))
            tree = heap.build_tree(bonus, ids, log_probs, budget, limit)
            logits = [
                self.target((*context, *(tree.token[above] for above in tree.path(node)))) for node in range(len(tree))
            ]
            target = [best(row) for row in logits]
            path, after = walk.accept(tree, target)
            top = [sorted(row, reverse=True)[:2] for row in logits]
            emitted = [*(tree.token[node] for node in path[1:]), after]
            found.append(
                trace.TraceRound(
                    req=req,
                    round=len(found),
                    start=len(context),
                    bonus_in=bonus,
                    ids=ids,
                    lp_bits=[[trace.float_bits(value) for value in row] for row in log_probs],
                    token=list(tree.token),
                    parent=list(tree.parent),
                    depth=list(tree.depth),
                    rank=list(tree.rank),
                    score_q32=trace.score_strings(tree.score),
                    target=target,
                    accepted=list(path),
                    emitted=emitted,
                    bonus_out=after,
                    extra={
                        "mode": self.mode,
                        "budget": budget,
                        "depth_limit": limit,
                        "temperature": 0.0,
                        "gap": [pair[0] - pair[1] for pair in top],
                        "top": [pair[0] for pair in top],
                    },
                )
            )
            context = (*context, bonus, *emitted[:-1])
            bonus = after
        return found

    def records(self, prompts: tuple[Context, ...] = PROMPTS) -> list[Any]:
        """The records of a whole trace."""
        header = trace.TraceHeader("m", "d", "toy", "1", DEPTH + 1, self.budget, dtype=self.dtype)
        found: list[Any] = [header]
        for number, prompt in enumerate(prompts):
            req = f"r{number}"
            found.append(trace.TraceRequest(req, len(prompt), trace.prompt_digest(prompt), id=f"p{number}"))
            found += self.rounds(req, prompt)
        return found

    def write(self, path: Path, doctor: Callable[[list[dict[str, Any]]], None] | None = None) -> Path:
        """Write a trace; ``doctor`` changes its records first."""
        records = [json.loads(trace.to_line(one)) for one in self.records()]
        if doctor is not None:
            doctor(records)
        path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
        return path

    def but(self, **changes: Any) -> World:
        """Another world."""
        return replace(self, **changes)


def best(logits: list[float]) -> int:
    """The best token, of equals the first."""
    return max(range(len(logits)), key=lambda token: (logits[token], -token))


def rounds(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rounds among records."""
    return [one for one in records if one["kind"] == "round"]
