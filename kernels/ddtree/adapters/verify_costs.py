"""What a verify pass costs: every captured (batch, width) is replayed at start, before anything is served."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..control.costs import CostTable
from .ladder_graphs import VerifyGraphs
from .self_check import verify_batch
from .verify_input import graph_mask, shapes_only

logger = logging.getLogger(__name__)

CONTEXT = 512
"""Tokens of every request in the measured batches, fewer where the KV pool or the context is smaller."""

WARM, TIMED = 3, 10


def measure(graphs: VerifyGraphs, runner: Any) -> CostTable:
    """Replay each captured graph; its least time by CUDA events. Under TP all ranks get the first rank's.

    The least, because whatever else happens on the GPU only adds to it.

    Reads and writes free KV slots through free rows of the request table; the captured tail commits nothing, because no
    request is live.
    """
    costs: dict[tuple[int, int], float] = {}
    for width in graphs.ladder.widths:
        own = graphs.runner(width)
        for batch in own.capture_bs:
            costs[int(batch), width] = _measure(runner, own, int(batch), width)
    if runner.tp_group.world_size > 1:
        costs = runner.tp_group.broadcast_object(costs, src=0)
    runner.war_fastpath_read_done_event = None
    return CostTable(costs)


def _measure(runner: Any, graphs: Any, bs: int, width: int) -> float:
    """Return the least time of one replay in microseconds."""
    table, device = runner.req_to_token_pool.req_to_token, runner.device
    slots = int(runner.token_to_kv_pool.size)
    longest = min(CONTEXT, int(runner.model_config.context_len) - width, table.shape[1] - width)
    length = max(1, min(longest, slots // bs - width))
    rows = torch.arange(bs, device=device) % int(table.shape[0])
    kept = table[rows, : length + width].clone()
    numbers = 1 + torch.arange(bs * (length + width), device=device) % max(slots - 1, 1)
    numbers = numbers.view(bs, length + width)
    table[rows, : length + width] = numbers.to(table.dtype)
    lens = torch.full((bs,), length, dtype=torch.int64)
    mask = graph_mask(runner.attn_backend)
    verify_input = shapes_only(width, None if mask is None else mask[:1])
    verify_input.draft_token = torch.zeros(bs * width, dtype=torch.int64, device=device)
    verify_input.positions = (length + torch.arange(width, device=device)).repeat(bs)
    try:
        with torch.inference_mode():
            batch = verify_batch(runner, verify_input, rows, lens, numbers[:, length:])
            graphs.load_batch(batch)
            return _replay(graphs, batch)
    finally:
        table[rows, : length + width] = kept


def _replay(graphs: Any, batch: Any) -> float:
    key = graphs._replay_graph_key
    for _ in range(WARM):
        graphs.backend.replay(key, batch)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(TIMED)]
    for before, after in pairs:
        before.record()
        graphs.backend.replay(key, batch)
        after.record()
    torch.cuda.synchronize()
    return min(before.elapsed_time(after) for before, after in pairs) * 1000
