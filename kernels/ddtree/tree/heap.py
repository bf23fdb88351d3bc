"""The exact reference builder: a best-first heap over integer scores.

Every node but the first has one *generator*: its left sibling, or its parent when its rank is 0. The generator precedes
it in canonical order, and the heap holds exactly the nodes whose generator has been popped, so nodes are popped in
canonical order: the first ``budget`` pops are the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from .definition import Tree, quantise, tree_from_tuples


def best_first(scores: Sequence[Sequence[int]], budget: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the first ``budget`` nodes as ``(rank tuple, score)``, in canonical order.

    ``scores[d][r]`` is the quantised log-probability of rank ``r`` at depth ``d + 1``, descending in ``r``.
    Fewer nodes come back when the whole space is smaller than the budget.
    """
    if budget <= 0 or not scores or not scores[0]:
        return []
    depths = len(scores)
    nodes: list[tuple[tuple[int, ...], int]] = []
    heap: list[tuple[int, tuple[int, ...]]] = [(-scores[0][0], (0,))]
    while heap and len(nodes) < budget:
        cost, ranks = heapq.heappop(heap)
        nodes.append((ranks, -cost))
        depth, rank = len(ranks), ranks[-1]
        row = scores[depth - 1]
        if rank + 1 < len(row):
            heapq.heappush(heap, (cost + row[rank] - row[rank + 1], (*ranks[:-1], rank + 1)))
        if depth < depths and scores[depth]:
            heapq.heappush(heap, (cost - scores[depth][0], (*ranks, 0)))
    return nodes


def build_tree(
    root_token: int,
    ids: Sequence[Sequence[int]],
    log_probs: Sequence[Sequence[float]],
    budget: int,
    depth_limit: int | None = None,
) -> Tree:
    """Build the tree of one request from its candidates.

    ``ids`` and ``log_probs`` are ``[D][K]``, each row in the order (logit descending, token id ascending); ``budget``
    counts nodes without the root; ``depth_limit`` cuts the depths that are used.
    """
    limit = len(ids) if depth_limit is None else max(0, min(depth_limit, len(ids)))
    scores = [[quantise(value) for value in row] for row in log_probs[:limit]]
    return tree_from_tuples(root_token, ids, best_first(scores, budget))
