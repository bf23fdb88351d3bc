"""The table of KV slots, widened for the windows of two steps behind the longest sequence.

SGLang reserves two windows for every request (a step may be in flight), but makes the table's rows only one window
longer than the context. Near its end a request's reservation would run into the row of the next request, whose prefix
would then be read from foreign slots: silently, on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch


def widen(pool: Any, context: int, width: int) -> None:
    """Give every row of ``pool`` room for ``context`` slots and two windows of ``width``.

    To be called before anything has taken a reference to the table: attention backends do when they are made.
    """
    needed = context + 2 * width + 4
    rows, length = pool.req_to_token.shape
    if length >= needed:
        return
    like = {"dtype": pool.req_to_token.dtype, "device": pool.req_to_token.device}
    pool.req_to_token = None  # two of them at once may not fit
    pool.req_to_token = torch.zeros((rows, needed), **like)
    pool.max_context_len = needed
