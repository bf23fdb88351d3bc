"""What one causal pass over a finished greedy answer tells: whether it is the target's, and what any budget would do.

Both start from the same pass over prompt and answer. Its logits are the control: at every position the target's best
token must be the answer's. Its tapped states give the drafter's candidates at *every* position, so a budget's walk can
be taken exactly, step by step, without decoding again (greedy output does not depend on the budget).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..trees import heap
from .decode import Decoder
from .drafter import Context

_ROWS = 32  # blocks drafted at a time
LINEAR = "linear"


def control(decoder: Decoder, prompt: list[int], ids: list[int]) -> tuple[dict[str, Any], Context | None]:
    """Compare an answer with the target's best tokens; returns the verdict and the drafter's context of the pass.

    ``first`` is the index of the first other token (None: none), ``distance`` how far apart the two logits are there,
    ``top`` the better one; ``others`` counts all such positions.
    """
    target = decoder.target
    logits = target.whole(prompt + ids[:-1])[len(prompt) - 1 :]
    best = logits.argmax(-1).tolist()
    others = [index for index, (ours, theirs) in enumerate(zip(ids, best, strict=True)) if ours != theirs]
    found: dict[str, Any] = {"tokens": len(ids), "others": len(others), "first": None}
    if others:
        at = others[0]
        top, mine = float(logits[at, best[at]]), float(logits[at, ids[at]])
        found.update(first=at, target=best[at], distance=round(top - mine, 6), top=round(top, 6))
    if decoder.drafter is None:
        return found, None
    context = Context(decoder.drafter)
    with torch.inference_mode():
        context.extend(target.features())
    return found, context


def walks(
    decoder: Decoder, prompt: list[int], ids: list[int], context: Context, budgets: Sequence[int], max_tokens: int
) -> dict[str, list[int]]:
    """``[verify steps, tokens]`` of the linear block and of every budget; the prefill's token is not counted."""
    reach = _reach(decoder, prompt, ids, context, budgets, max_tokens)
    found: dict[str, list[int]] = {}
    for scheme, depths in reach.items():
        at = steps = 0
        while at < len(ids) - 1:
            at += min(depths[at] + 1, len(ids) - 1 - at)
            steps += 1
        found[scheme] = [steps, at]
    return found


def _reach(
    decoder: Decoder, prompt: list[int], ids: list[int], context: Context, budgets: Sequence[int], max_tokens: int
) -> dict[str, list[int]]:
    """Per scheme and position of the answer, how many of the tokens that follow were drafted on one path."""
    assert decoder.drafter is not None
    depth, widest = decoder.drafter.config.depth, max(budgets)
    found: dict[str, list[int]] = {LINEAR: [], **{str(budget): [] for budget in budgets}}
    for begin in range(0, len(ids) - 1, _ROWS):
        rows = range(begin, min(begin + _ROWS, len(ids) - 1))
        tokens, log_probs = decoder.draft([ids[i] for i in rows], [len(prompt) + i for i in rows], context, widest)
        for i, row_ids, row_lp in zip(rows, tokens, log_probs, strict=True):
            truth = ids[i + 1 : i + 1 + depth]
            limit = max(0, min(depth, max_tokens - 2 - i))
            chain = next((d for d, token in enumerate(truth) if row_ids[d][0] != token), len(truth))
            found[LINEAR].append(min(chain, limit))
            nodes = _path(heap.build_tree(ids[i], row_ids, row_lp, widest, limit), truth)
            for budget in budgets:
                found[str(budget)].append(sum(node <= budget for node in nodes))
    return found


def _path(tree: Any, truth: list[int]) -> list[int]:
    """The nodes along the true continuation. Trees are nested: the first ``b`` nodes are the tree of budget ``b``."""
    children = {(tree.parent[node], tree.token[node]): node for node in range(1, len(tree))}
    nodes: list[int] = []
    here = 0
    for token in truth:
        if (here, token) not in children:
            break
        here = children[here, token]
        nodes.append(here)
    return nodes
