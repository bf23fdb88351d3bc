"""The verify input: a DFLASH verify input whose attention mask is a tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput

if TYPE_CHECKING:
    from ..build.torch_builder import TreeBatch


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):  # type: ignore[misc]
    """Tree links ride along under SGLang's own names, for code that walks trees.

    It stays a ``DFLASH_VERIFY`` input, so that the DFLASH branches of schedulers and backends apply. ``topk`` stays 1:
    the backends served here take the tree from ``custom_mask`` alone; others are refused at start.
    """

    retrieve_index: torch.Tensor | None = None
    retrieve_next_token: torch.Tensor | None = None
    retrieve_next_sibling: torch.Tensor | None = None
    max_tree_depth: int = 0
    tree_topk: int = -1


def full_mask(tree_mask: torch.Tensor, seq_lens: torch.Tensor, total_bound: int) -> torch.Tensor:
    """Lay the ancestor masks out as SGLang's FULL_MASK: flat bool, per request N rows of ``seq_len + N`` columns.

    ``tree_mask``: ``[bs, N, N]`` bool; ``seq_lens``: ``[bs]``, the device's own lengths; ``total_bound``: a host
    number, at least the sum of ``seq_lens``. Under overlap scheduling the host knows only bounds, so the buffer is
    sized by the bound and laid out by the device's lengths; what lies behind the last row is never read.
    """
    bs, width, _ = tree_mask.shape
    device = tree_mask.device
    lens = seq_lens.to(torch.int64)
    row = lens + width
    first = torch.cumsum(row * width, dim=0) - row * width
    flat = torch.ones(full_mask_size(bs, width, total_bound), dtype=torch.bool, device=device)
    nodes = torch.arange(width, dtype=torch.int64, device=device)
    start = first[:, None] + nodes * row[:, None] + lens[:, None]
    flat.scatter_(0, (start[:, :, None] + nodes).flatten(), tree_mask.flatten())
    return flat


def full_mask_size(bs: int, width: int, total_bound: int) -> int:
    """Return the elements of a FULL_MASK of ``bs`` requests whose lengths sum to at most ``total_bound``."""
    return width * (int(total_bound) + width * bs)


def make_verify_input(tree: TreeBatch, custom_mask: torch.Tensor, depth: int) -> DDTreeVerifyInput:
    """Make the verify input of a batch of trees; ``depth`` = levels below the root."""
    return DDTreeVerifyInput(
        draft_token=tree.draft_token.reshape(-1),
        positions=tree.positions.reshape(-1),
        draft_token_num=int(tree.draft_token.shape[1]),
        custom_mask=custom_mask,
        retrieve_index=tree.retrieve_index,
        retrieve_next_token=tree.retrieve_next_token,
        retrieve_next_sibling=tree.retrieve_next_sibling,
        max_tree_depth=depth + 1,
    )


def shapes_only(num_tokens_per_req: int, custom_mask: torch.Tensor | None) -> DDTreeVerifyInput:
    """Make a verify input for warm-up forwards and graph capture: widths and a mask, no tokens."""
    return DDTreeVerifyInput(
        draft_token=None,
        positions=None,
        draft_token_num=num_tokens_per_req,
        custom_mask=custom_mask,
        capture_hidden_mode=CaptureHiddenMode.FULL,
    )


def graph_mask(attn_backend: Any) -> torch.Tensor | None:
    """Return the buffer from which captured verify graphs read the tree mask, or ``None`` without such graphs.

    Captured kernels hold its address: a step rewrites it in place before the replay. (0.5.17 and newer keep it in a
    ``VerifyMask``, older releases as a tensor.)
    """
    holder = getattr(attn_backend, "_verify_mask", None)
    buffer = getattr(attn_backend, "cuda_graph_custom_mask", None) if holder is None else holder.buffer
    return buffer if isinstance(buffer, torch.Tensor) else None
