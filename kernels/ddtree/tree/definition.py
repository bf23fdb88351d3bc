"""What the draft tree *is*: scores, the canonical order of nodes, and the arrays of a finished tree.

One drafter pass gives, per depth ``d = 1..D``, the ``K`` best tokens in the order (logit descending, token id
ascending); their positions in that order are *ranks*. A node is a tuple of ranks ``(r_1 .. r_d)``: at each depth
take the candidate of that rank. Its score is the sum of the candidates' log-probabilities, as an integer in units
of 2**-32, so that sums are exact and every builder (heap, torch, GPU kernel, any tensor-parallel size) agrees bit
for bit.

Canonical order: **score descending, then rank tuple lexicographically ascending, a prefix before its extension**.
The tree of budget ``B`` is the first ``B`` nodes in this order; the order is also the node order (index 0 is the
root, which is not counted in the budget).

Ties are common with 16-bit logits: with budget 32 more than half of all trees change their node *set* when the tie
rule changes, so the rule is part of the definition. It needs no extra care for prefix closure: a parent precedes its
children (score not smaller, prefix first) and a sibling of lower rank precedes one of higher rank.

Source: the DDTree paper (liranringel.github.io/ddtree), sections 3-4: with independent per-depth marginals the expected
accepted length is the sum of node probabilities, so the best tree of a budget is the set of most probable prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SCORE_SHIFT = 32
"""Scores are log-probabilities in units of ``2 ** -SCORE_SHIFT``."""

SCORE_FLOOR = -(1 << 56)
"""Score of an impossible candidate (log-probability -inf). ``MAX_DEPTH`` of them still fit into an int64."""

MAX_DEPTH = 63
"""Deepest tree whose floor scores cannot overflow an int64."""

CODE_BITS = 63
"""Order codes are left-aligned in this many bits, so that they are non-negative int64 values."""

NO_NODE = -1
"""Fill value of the link arrays, as in SGLang's verify kernels."""


def quantise(log_prob: float) -> int:
    """Return ``log_prob`` (natural logarithm, not above 0) in units of 2**-32, ties to even, clamped at the floor."""
    if log_prob != log_prob:
        raise ValueError("log-probability is NaN")
    if log_prob <= SCORE_FLOOR / (1 << SCORE_SHIFT):
        return SCORE_FLOOR
    return round(log_prob * (1 << SCORE_SHIFT))


def rank_code(rank: int) -> tuple[int, int]:
    """Return ``(bits, length)`` of one rank in the order-preserving prefix code.

    With ``n = floor(log2(rank + 1))``: a marker 1, n ones, a zero, then the n low bits of ``rank + 1``. The marker
    makes a prefix smaller than its extensions, because unused low bits of a code are zero.
    """
    n = (rank + 1).bit_length() - 1
    return ((((1 << (n + 1)) - 1) << 1) << n) | ((rank + 1) - (1 << n)), 2 * n + 2


def append_code(code: int, used: int, rank: int) -> tuple[int, int]:
    """Append one rank to a left-aligned code; returns the new code and the number of bits in use.

    Comparing codes as integers is comparing rank tuples lexicographically, prefix first.
    """
    bits, length = rank_code(rank)
    if used + length > CODE_BITS:
        raise OverflowError(f"order code needs {used + length} bits, {CODE_BITS} are available")
    return code | (bits << (CODE_BITS - used - length)), used + length


def code_bits_needed(budget: int, depth: int) -> int:
    """Upper bound on the bits of any order code that a tree of ``budget`` nodes and ``depth`` levels needs.

    A node ``r`` of the tree has ``prod(r_i + 1) <= budget`` (all tuples below it are in the tree too); a pending
    candidate is at most twice that, and a rank ``r`` takes ``2 + 2 * floor(log2(r + 1))`` bits.
    """
    return 2 * depth + 2 * max(2 * budget, 1).bit_length()


@dataclass(frozen=True)
class Tree:
    """A finished tree; index 0 is the root (the token already emitted), nodes follow in canonical order.

    ``token``, ``parent``, ``depth``, ``rank`` and ``score`` have one entry per node, root included: the root has
    parent 0, depth 0, rank -1 and score 0.
    """

    token: tuple[int, ...]
    parent: tuple[int, ...]
    depth: tuple[int, ...]
    rank: tuple[int, ...]
    score: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.token)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root to ``node``, both included."""
        found = [node]
        while node:
            node = self.parent[node]
            found.append(node)
        return tuple(reversed(found))

    def children(self, node: int) -> tuple[int, ...]:
        """Return the children of ``node`` in rank order (which is index order)."""
        return tuple(i for i in range(1, len(self)) if self.parent[i] == node)


def tree_from_tuples(
    root_token: int, ids: Sequence[Sequence[int]], nodes: Sequence[tuple[tuple[int, ...], int]]
) -> Tree:
    """Make a :class:`Tree` of ``(rank tuple, score)`` pairs in canonical order.

    ``ids[d][r]`` is the token of rank ``r`` at depth ``d + 1``. Raises ``ValueError`` when the nodes are not
    prefix-closed in this order.
    """
    index: dict[tuple[int, ...], int] = {(): 0}
    token, parent, depth, rank, score = [root_token], [0], [0], [-1], [0]
    for ranks, value in nodes:
        above = index.get(ranks[:-1])
        if above is None:
            raise ValueError(f"node {ranks} comes before its parent")
        index[ranks] = len(token)
        token.append(ids[len(ranks) - 1][ranks[-1]])
        parent.append(above)
        depth.append(len(ranks))
        rank.append(ranks[-1])
        score.append(value)
    return Tree(tuple(token), tuple(parent), tuple(depth), tuple(rank), tuple(score))
