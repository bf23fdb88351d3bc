"""Acceptance on the device: which path of each tree the target confirms, without a loop and without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .torch_builder import TreeBatch


@dataclass
class Accepted:
    """The accepted path of each request; ``P`` = deepest possible path, root included."""

    path: torch.Tensor  # [bs, P] int64 node indices, root first; entries after the path are the identity (j at j)
    accept_len: torch.Tensor  # [bs] int64, accepted drafts (path length without the root)
    bonus: torch.Tensor  # [bs] int64, the target's token after the last accepted node
    out_tokens: torch.Tensor  # [bs, P] int64, accepted drafts, then the bonus, then zeros


def accept_paths(tree: TreeBatch, target: torch.Tensor, path_width: int, stops: torch.Tensor | None = None) -> Accepted:
    """Accept every node whose whole path carries the target's tokens.

    ``target``: ``[bs, N]`` int64, the token the target puts after each node (its argmax, or a sample of it).
    Siblings carry different tokens, so the accepted nodes form one path; a node is accepted when neither it nor any of
    its ancestors differs from the target's token after its parent.

    ``stops``: ``[bs, S]`` int64, tokens that end a request (-1: none). Such a token is never accepted as a node: it is
    the bonus, so nothing is committed behind it. (SGLang looks for the end of ``max_new_tokens`` before it looks for
    stop tokens; what a longer path has behind one would be given out.)
    """
    bs, width = tree.draft_token.shape
    device = target.device
    confirmed = tree.valid & (tree.draft_token == target.gather(1, tree.parent))
    if stops is not None:
        confirmed &= ~(tree.draft_token[:, :, None] == stops[:, None, :]).any(dim=-1)
    confirmed[:, 0] = True
    accepted = tree.valid & ~(tree.mask & ~confirmed[:, None, :]).any(dim=-1)

    identity = torch.arange(path_width, dtype=torch.int64, device=device).clamp(max=width - 1)
    padded = torch.cat([identity, identity[:1]]).repeat(bs, 1)  # last column takes the nodes that are not accepted
    slot = torch.where(accepted, tree.depth, path_width)
    nodes = torch.arange(width, dtype=torch.int64, device=device).expand(bs, width)
    path = padded.scatter_(1, slot, nodes)[:, :path_width].contiguous()

    accept_len = accepted.sum(dim=1) - 1
    last = path.gather(1, accept_len[:, None])
    bonus = target.gather(1, last)
    steps = torch.arange(path_width, device=device)
    follows = tree.draft_token.gather(1, torch.roll(path, -1, dims=1))
    out = torch.where(steps < accept_len[:, None], follows, 0)
    out = out.scatter_(1, accept_len[:, None], bonus)
    return Accepted(path=path, accept_len=accept_len, bonus=bonus.squeeze(1), out_tokens=out)
