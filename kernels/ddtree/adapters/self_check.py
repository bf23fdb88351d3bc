"""Start-up self-check: do the captured verify graphs follow a tree, or do they silently verify a chain?

A graph that was captured without the mask gives no error, only wrong tokens. So before the server is ready, random
trees are verified three ways on the real model: by graph replay through the same buffers as serving, eagerly with a
mask made in torch, and eagerly with no mask at all (a chain: what a graph without the hook computes). The first two
must agree, and the third must differ from them; if it does not, the check could not have seen anything, and that is an
error as well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from ..build import topk
from ..build.shape import NO_END, Shape
from ..build.torch_builder import TreeBatch
from . import compat
from .verify_input import full_mask, graph_mask, make_verify_input

logger = logging.getLogger(__name__)

MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10}
STEPS_ALLOWED = 8
"""Allowed difference in steps of the served type at the logits' magnitude: other tile sizes round otherwise."""

CHAIN_SHARE = 8
"""The graph must be at least this many times nearer to the tree than the chain is."""

WAY_OUT = (
    "Tokens would be wrong, so the server does not start. SGLang's graph capture did not take DDTREE's verify input: "
    "apply the patch series for this release again, or start without decode graphs "
    "(--cuda-graph-backend-decode=disabled; older releases: --disable-cuda-graph)."
)


@dataclass(frozen=True)
class Reading:
    """Largest logit differences between the three ways, and what is allowed."""

    batch: int
    graph: float
    chain: float
    allowed: float
    node: int
    wrong_tokens: int
    branches: bool

    def problem(self) -> str | None:
        """Say what is wrong, or ``None``."""
        if not self.branches:  # too few nodes or candidates for a branch: nothing to mistake for a chain
            return self._against_eager(self.graph > self.allowed)
        if not self.chain > self.allowed:
            return (
                f"batch {self.batch}: a chain gives the tree's logits (largest difference {self.chain:.4g}, "
                f"rounding allows {self.allowed:.4g}), so this model's graphs cannot be checked"
            )
        return self._against_eager(self.graph > self.allowed or self.graph * CHAIN_SHARE > self.chain)

    def _against_eager(self, differs: bool) -> str | None:
        if not (differs or self.wrong_tokens):
            return None
        return (
            f"batch {self.batch}: logits of the captured graph differ from eager ones by {self.graph:.4g} at node "
            f"{self.node} (allowed {self.allowed:.4g}; a chain differs by {self.chain:.4g}), and "
            f"{self.wrong_tokens} nodes would choose another token"
        )


def check_verify_graphs(worker: Any, width: int) -> list[Reading]:
    """Compare graph and eager verification of one width, for one request, and for three where those are captured.

    The runner of that width's graphs must be the target's current one. Raises ``RuntimeError`` where they disagree.
    Uses free KV slots and table rows; nothing is served yet.
    """
    runner = worker.target_worker.model_runner
    graphs = runner.decode_cuda_graph_runner
    readings = []
    for bs in sorted({1, min(3, int(graphs.max_bs), int(runner.req_to_token_pool.size) - 1)}):
        reading = _check_batch(worker, runner, bs, width)
        problem = reading.problem()
        if problem is not None:
            raise RuntimeError(f"DDTREE self-check failed: width {width}, {problem}. {WAY_OUT}")
        readings.append(reading)
    return readings


def log_readings(readings: dict[int, list[Reading]]) -> None:
    """Say what the self-check of all widths has found."""
    listed = "; ".join(
        f"width {width}: graph {max(r.graph for r in found):.4g}, chain {min(r.chain for r in found):.4g}"
        for width, found in sorted(readings.items())
    )
    logger.info("DDTREE self-check: captured verify graphs follow the tree (largest logit differences: %s).", listed)


def verify_batch(
    runner: Any, verify_input: Any, rows: torch.Tensor, lens: torch.Tensor, window: torch.Tensor
) -> ForwardBatch:
    """Make the target's forward batch of a verify pass outside of serving.

    ``rows`` ``[bs]``: rows of the request table; ``lens`` ``[bs]``: lengths (host); ``window`` ``[bs, N]``: slots.
    """
    return ForwardBatch(
        **compat.accepted(
            ForwardBatch,
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=int(rows.shape[0]),
            input_ids=verify_input.draft_token.clone(),
            req_pool_indices=rows,
            seq_lens=lens.to(runner.device),
            out_cache_loc=window.reshape(-1),
            seq_lens_sum=int(lens.sum()),
            seq_lens_cpu=lens,
            positions=verify_input.positions.clone(),
            spec_algorithm=runner.spec_algorithm,
            spec_info=verify_input,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            num_token_non_padded_cpu=int(window.numel()),
        )
    )


def _check_batch(worker: Any, runner: Any, bs: int, width: int) -> Reading:
    device = runner.device
    lens = torch.tensor([5 + 4 * b for b in range(bs)], dtype=torch.int64)
    mask = graph_mask(runner.attn_backend)
    if mask is None:
        raise RuntimeError(f"DDTREE: the attention backend has no buffer for a tree mask. {WAY_OUT}")
    seq_lens = lens.to(device)
    tree = _random_trees(worker, seq_lens, mask, width)
    table = runner.req_to_token_pool.req_to_token
    longest = int(lens.max()) + width
    rows = torch.arange(1, bs + 1, device=device)
    kept = table[1 : bs + 1, :longest].clone()
    slots = 1 + torch.arange(bs * longest, device=device).view(bs, longest)
    table[1 : bs + 1, :longest] = slots.to(table.dtype)
    window = torch.stack([slots[b, int(lens[b]) : int(lens[b]) + width] for b in range(bs)])

    def verify(custom_mask: torch.Tensor | None, graph: bool) -> torch.Tensor:
        verify_input = make_verify_input(tree, custom_mask, worker.ddtree.depth)
        forward_batch = verify_batch(runner, verify_input, rows, lens, window)
        graphs = runner.decode_cuda_graph_runner
        runner.decode_cuda_graph_runner = graphs if graph else None
        try:
            with torch.inference_mode():
                output = runner.forward(forward_batch)
        finally:
            runner.decode_cuda_graph_runner = graphs
        if graph and not compat.ran_graph(output):
            raise RuntimeError(f"DDTREE self-check: a batch of {bs} did not run in a captured graph.")
        return output.logits_output.next_token_logits.to(torch.float32, copy=True)

    try:
        graph = verify(mask[:1], graph=True)
        eager = verify(full_mask(tree.mask, seq_lens, int(lens.sum())), graph=False)
        chain = verify(None, graph=False)
    finally:
        table[1 : bs + 1, :longest] = kept
        runner.war_fastpath_read_done_event = None
    in_line = torch.arange(-1, width - 1, device=tree.parent.device).clamp(min=0)
    branches = bool((tree.valid & (tree.parent != in_line)).any())
    return _read(bs, width, eager, graph, chain, runner.dtype, branches)


def _read(
    bs: int,
    width: int,
    eager: torch.Tensor,
    graph: torch.Tensor,
    chain: torch.Tensor,
    dtype: torch.dtype,
    branches: bool,
) -> Reading:
    by_row = (graph - eager).abs().amax(dim=-1)
    scale = float(eager.abs().amax())
    step = 2.0 ** (torch.tensor(max(scale, 1e-6)).log2().floor().item() - MANTISSA_BITS.get(dtype, 10))
    allowed = STEPS_ALLOWED * step
    best = eager.topk(2, dim=-1).values
    clear = (best[:, 0] - best[:, 1]) > 2 * allowed
    wrong = clear & (graph.argmax(-1) != eager.argmax(-1))
    worst = by_row.nan_to_num(nan=float("inf"))
    return Reading(
        batch=bs,
        graph=float(worst.amax()),
        chain=float((chain - eager).abs().amax()),
        allowed=allowed,
        node=int(worst.argmax()) % width,
        wrong_tokens=int(wrong.sum()),
        branches=branches,
    )


def _random_trees(worker: Any, seq_lens: torch.Tensor, mask: torch.Tensor, width: int) -> TreeBatch:
    """Build trees with branches from random candidates, through the builder and the mask buffer of serving."""
    bs, device = seq_lens.shape[0], seq_lens.device
    builder, settings = worker.tail.builder, worker.ddtree
    generator = torch.Generator().manual_seed(20)
    shape = (bs, settings.depth, builder.ranks)
    ids = torch.rand((*shape[:2], worker.vocab), generator=generator).topk(builder.ranks, dim=-1).indices
    log_probs = torch.log_softmax(torch.randn(shape, generator=generator) * 1.5, dim=-1)
    root = torch.randint(0, worker.vocab, (bs,), generator=generator)
    no_limit = torch.full((bs,), NO_END, dtype=torch.int64, device=device)
    scores = topk.quantise(log_probs.sort(dim=-1, descending=True).values)
    worker.tail.set_shape(Shape(width, width - 1))
    tree: TreeBatch = builder.build(
        root.to(device), ids.to(device), scores.to(device), seq_lens, no_limit, no_limit, worker.tail.shape, mask
    )
    return tree
