"""The exact tree builder in torch: batched, fixed shapes, no host synchronisation.

Pending-child loop: every node keeps *one* candidate, its next unused child. A step takes the best candidate of each
request, that is (score descending, order code ascending), appends it, and advances two candidates: the parent's and
the new node's. ``width - 1`` steps of reductions over ``width`` lanes give exactly the heap's pops, because the best
pending candidate of all nodes is the next node in canonical order.

A GPU kernel can replace this function one for one: same inputs, same outputs, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..tree.definition import CODE_BITS, NO_NODE, rank_code
from .shape import Shape

_NEVER = torch.iinfo(torch.int64).min
_LAST = torch.iinfo(torch.int64).max


@dataclass
class TreeBatch:
    """The trees of a batch, everything that verification needs; ``bs`` requests, ``N`` nodes (root = 0) each.

    Nodes beyond a request's tree are padding: token 0, parent 0, depth 0, rank -1, no links to or from them, and they
    see only the root and themselves, so nothing can reach them and no attention row is empty.
    """

    draft_token: torch.Tensor  # [bs, N] int64
    parent: torch.Tensor  # [bs, N] int64, root and padding 0
    depth: torch.Tensor  # [bs, N] int64
    positions: torch.Tensor  # [bs, N] int64, seq_len + depth
    retrieve_index: torch.Tensor  # [bs, N] int64, b * N + i
    retrieve_next_token: torch.Tensor  # [bs, N] int64, first child or -1
    retrieve_next_sibling: torch.Tensor  # [bs, N] int64, or -1
    mask: torch.Tensor  # [bs, N, N] bool, row i sees its ancestors and itself
    score: torch.Tensor  # [bs, N] int64, log-probability in 2**-32, root and padding 0
    rank: torch.Tensor  # [bs, N] int64, root and padding -1
    valid: torch.Tensor  # [bs, N] bool, root and tree nodes


def build_trees(
    root_token: torch.Tensor,
    ids: torch.Tensor,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    budgets: torch.Tensor,
    end_lens: torch.Tensor,
    shape: Shape,
) -> TreeBatch:
    """Build the first ``budgets[b]`` nodes of every request's tree in canonical order, as far as ``shape`` allows.

    ``root_token``, ``seq_lens``, ``budgets``, ``end_lens``: ``[bs]`` integers on the device; ``ids`` and ``scores``:
    ``[bs, D, K]`` int64, rank order; ``shape.width`` = N. ``end_lens``: the
    length at which a request ends, so a tree has at most ``end_len - seq_len - 1`` levels (the root is one token more
    than ``seq_len``; none when that is negative, all D when it is more).
    """
    bs, depths, ranks = ids.shape
    width, usable = shape.width, min(ranks, shape.ranks)
    device = ids.device
    code_bits, code_length = _code_tables(ranks, device)
    cells = (bs, width)
    long = {"dtype": torch.int64, "device": device}

    token = torch.zeros(cells, **long)
    token[:, 0] = root_token
    parent = torch.zeros(cells, **long)
    depth = torch.zeros(cells, **long)
    rank = torch.full(cells, -1, **long)
    score = torch.zeros(cells, **long)
    valid = torch.zeros(cells, dtype=torch.bool, device=device)
    valid[:, 0] = True
    next_token = torch.full(cells, NO_NODE, **long)
    next_sibling = torch.full((bs, width + 1), NO_NODE, **long)  # last column: where no link is written
    mask = torch.eye(width, dtype=torch.bool, device=device).repeat(bs, 1, 1)
    mask[:, :, 0] = True

    # Per node: rank of its pending child, that child's score and order code, the node's own code and its length.
    pending_rank = torch.zeros(cells, **long)
    pending_score = torch.full(cells, _NEVER, **long)
    pending_code = torch.full(cells, _LAST, **long)
    code = torch.zeros(cells, **long)
    used = torch.zeros(cells, **long)
    last_child = torch.full(cells, NO_NODE, **long)

    limits = (end_lens.to(torch.int64) - seq_lens.to(torch.int64) - 1).clamp(0, depths)
    budgets = budgets.to(torch.int64).clamp(max=shape.budget)
    request = torch.arange(bs, device=device)

    def refresh(node: torch.Tensor) -> None:
        """Recompute the pending child of one node per request (``node``: [bs])."""
        at = (request, node)
        level, child = depth[at], pending_rank[at]
        possible = (level < limits) & (child < usable)
        level, child = level.clamp(max=depths - 1), child.clamp(max=ranks - 1)
        shift = (CODE_BITS - used[at] - code_length[child]).clamp(min=0)
        pending_score[at] = torch.where(possible, score[at] + scores[request, level, child], _NEVER)
        pending_code[at] = torch.where(possible, code[at] | (code_bits[child] << shift), _LAST)

    if depths and ranks:
        refresh(torch.zeros(bs, **long))
        for i in range(1, width):
            best = pending_score.max(dim=1).values
            winner = torch.where(pending_score == best[:, None], pending_code, _LAST).argmin(dim=1)
            exists = (best > _NEVER) & (budgets >= i)
            at = (request, winner)
            level, child = depth[at].clamp(max=depths - 1), pending_rank[at].clamp(max=ranks - 1)

            token[:, i] = torch.where(exists, ids[request, level, child], 0)
            parent[:, i] = torch.where(exists, winner, 0)
            depth[:, i] = torch.where(exists, level + 1, 0)
            rank[:, i] = torch.where(exists, child, -1)
            score[:, i] = torch.where(exists, best, 0)
            valid[:, i] = exists
            mask[:, i] |= mask[at] & exists[:, None]
            code[:, i] = pending_code[at]
            used[:, i] = used[at] + code_length[child]

            older = last_child[at]
            next_token[at] = torch.where(exists & (older < 0), i, next_token[at])
            link = torch.where(exists & (older >= 0), older, width)
            next_sibling.scatter_(1, link[:, None], i)  # an indexed assignment would copy its number from the host
            last_child[at] = torch.where(exists, i, older)
            pending_rank[at] += 1
            refresh(winner)
            refresh(torch.where(exists, i, winner))

    index = torch.arange(bs * width, device=device).view(bs, width)
    return TreeBatch(
        draft_token=token,
        parent=parent,
        depth=depth,
        positions=seq_lens.to(torch.int64)[:, None] + depth,
        retrieve_index=index,
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling[:, :width].contiguous(),
        mask=mask,
        score=score,
        rank=rank,
        valid=valid,
    )


def _code_tables(ranks: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the order code's bits and lengths for every rank, int64 ``[ranks]``."""
    key = (ranks, str(device))
    if key not in _TABLES:
        pairs = [rank_code(r) for r in range(ranks)]
        _TABLES[key] = (
            torch.tensor([bits for bits, _ in pairs], dtype=torch.int64, device=device),
            torch.tensor([length for _, length in pairs], dtype=torch.int64, device=device),
        )
    return _TABLES[key]


_TABLES: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]] = {}
