"""The target's captured verify graphs: one runner per width of the ladder, all on the same buffers.

SGLang captures the widest by itself; the others are its own ``DecodeCudaGraphRunner`` again, with fewer tokens per
request. They share the graph memory pool, the input buffers, the logits buffer and the attention backend's state (one
tree mask, one set of indices), so a further width costs its graphs and little else. Before a pass the target's runner
attribute is set to the width's; nothing is copied, nothing waits.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ..control import memory
from ..control.ladder import Ladder
from . import compat

logger = logging.getLogger(__name__)

RESERVE = 3 << 29
"""Bytes that stay free: DFLASH gives up the drafter's graphs below one GiB, and serving needs some more."""

GRAPH_BYTES_PER_LAYER = 1 << 16
"""What a captured graph itself takes, per layer of the model: an estimate, only used to plan."""

_BATCHES = "get_batch_sizes_to_capture"
_RUNNERS = "sglang.srt.model_executor."


class VerifyGraphs:
    """Plans, captures and selects the verify graphs of one target.

    ``runner``: the target's model runner, with memory pools and attention backend, before anything is captured.
    ``features``: elements per token of the hidden states that the drafter gets. Raises ``ValueError`` where not even
    the chain's width would fit into memory.
    """

    def __init__(self, runner: Any, ladder: Ladder, block_size: int, features: int) -> None:
        self._runner = runner
        self._by_width: dict[int, Any] = {}
        self.seconds: dict[int, float] = {}
        self.bytes: dict[int, int] = {}
        batches = _batches_to_capture(runner, ladder.widths[-1])
        wanted = {width: ladder.limits.get(width) for width in ladder.widths}
        self._context = int(runner.model_config.context_len)
        self._sizes = _sizes(runner, self._context, features)
        self.plan = memory.plan(wanted, batches, block_size, self._sizes)
        self.ladder = self._limited(batches)
        self._share_attention_state(block_size * batches[-1])
        self._state_plan(block_size, batches[-1])

    def _limited(self, batches: list[int]) -> Ladder:
        """Make the planned ladder, and let SGLang's own capture of the widest width follow it."""
        limits = {width: batch for width, batch in self.plan.limits.items() if batch < batches[-1]}
        if limits:
            _limit_batches(self._runner, self.plan.limits)
        if hasattr(self._runner, "max_decode_logits_rows"):
            self._runner.max_decode_logits_rows = self.plan.rows
        return Ladder.of(self.plan.limits, limits)

    def _share_attention_state(self, chain_tokens: int) -> None:
        """Allocate the backend's graph state once, for all widths; another call would move what graphs point to.

        Verification uses the mask and one index per token of the past; what grows with the tokens of a pass is for
        plain decoding, so it keeps the size that DFLASH gives it.
        """
        backend = self._runner.attn_backend
        allocate = backend.init_cuda_graph_state
        made: list[tuple[int, int]] = []
        widest = int(getattr(backend, "num_draft_tokens", 0) or max(self.plan.limits))
        per_request = widest * (self._context + widest)
        needed = -(-self.plan.mask_cells(self._context) // per_request)

        def once(max_bs: int, max_num_tokens: int, *args: Any, **kwargs: Any) -> None:
            if made:
                if max_num_tokens > self.plan.rows():
                    raise RuntimeError(f"DDTREE: {max_num_tokens} tokens in a verify graph, planned {self.plan.rows()}")
                return
            made.append((max_bs, max_num_tokens))
            allocate(needed, min(max_num_tokens, chain_tokens), *args, **kwargs)

        backend.init_cuda_graph_state = once

    def _state_plan(self, block_size: int, batch: int) -> None:
        plan, sizes = self.plan, self._sizes
        mib = memory.MIB
        logger.info(
            "DDTREE: verify graphs (width to batch) %s need about %d MiB, DFLASH's about %d MiB; %d MiB are free, "
            "%d MiB stay free. KV slots reserved per running request: %d, DFLASH's %d.",
            ", ".join(f"{width} to {most}" for width, most in sorted(plan.limits.items())),
            plan.need // mib, plan.dflash // mib, sizes.free // mib, sizes.reserve // mib,
            2 * max(plan.limits), 2 * block_size,
        )  # fmt: skip
        slots = int(getattr(getattr(self._runner, "token_to_kv_pool", None), "size", 0))
        running = int(getattr(getattr(self._runner, "req_to_token_pool", None), "size", 0))
        more = 2 * (max(plan.limits) - block_size) * running
        if slots and more > slots // 100:
            logger.warning(
                "DDTREE: at %d running requests %d of %d KV slots (%.1f %%) are reserved beyond what DFLASH reserves: "
                "that much less context fits before requests are retracted. A smaller budget reserves less.",
                running, more, slots, 100 * more / slots,
            )  # fmt: skip
        if plan.cut:
            logger.warning(
                "DDTREE: too little memory to capture every width for batches to %d: %s.",
                batch,
                ", ".join(f"{width} to {plan.limits.get(width, 0)}" for width in plan.cut),
            )

    def capture(self) -> None:
        """Capture the widths that SGLang has not captured; it has captured its own, and the hooks are in place."""
        runner = self._runner
        own = runner.decode_cuda_graph_runner
        first = compat.captured_width(own)
        if first not in self.ladder.widths:
            raise RuntimeError(f"DDTREE: SGLang captured width {first}, the ladder is {self.ladder.widths}")
        self._by_width[first] = own
        for width in reversed(self.ladder.widths):
            if width not in self._by_width:
                self._capture(width, type(own))
        runner.decode_cuda_graph_runner = own

    def _capture(self, width: int, runner_class: Callable[..., Any]) -> None:
        free, start = torch.cuda.mem_get_info()[0], time.perf_counter()
        graphs = runner_class(self._runner, speculative_num_draft_tokens=width)
        if compat.captured_width(graphs) != width:
            raise RuntimeError(f"DDTREE: asked for graphs of width {width}, got {compat.captured_width(graphs)}")
        self._by_width[width] = graphs
        self.seconds[width] = round(time.perf_counter() - start, 2)
        self.bytes[width] = free - torch.cuda.mem_get_info()[0]

    def use(self, width: int) -> None:
        """Let the target's next verify pass run in the graphs of ``width``."""
        self._runner.decode_cuda_graph_runner = self._by_width[width]

    def runner(self, width: int) -> Any:
        """Return the graph runner of ``width``."""
        return self._by_width[width]

    def has(self, width: int, batch: int) -> bool:
        """Whether a batch can run in captured graphs of ``width``."""
        graphs = self._by_width.get(width)
        return graphs is not None and batch <= int(graphs.max_bs)

    def figures(self) -> dict[str, Any]:
        """Return what a beacon shows: widths with their batches, memory and seconds of what was captured here."""
        return {
            "ladder": list(self.ladder.widths),
            "ladder_batches": {str(width): int(graphs.max_bs) for width, graphs in sorted(self._by_width.items())},
            "ladder_capture_s": round(sum(self.seconds.values()), 2),
            "ladder_memory_mib": round(sum(self.bytes.values()) / memory.MIB),
            "ladder_cut": list(self.plan.cut),
        }


def _batches_to_capture(runner: Any, width: int) -> list[int]:
    """Return the batch sizes that SGLang captures for this target."""
    module = sys.modules[_RUNNERS + "runner.decode_cuda_graph_runner"]
    return [int(batch) for batch in getattr(module, _BATCHES)(runner, width)[0]]


def _limit_batches(target: Any, limits: dict[int, int]) -> None:
    """Let captures of the target stop at the planned batch of their width, in every module that asks for batches."""
    for name, module in list(sys.modules.items()):
        found = getattr(module, _BATCHES, None) if name.startswith(_RUNNERS) else None
        if found is not None and not getattr(found, "ddtree", False) and "cpu_graph" not in name:
            setattr(module, _BATCHES, _limited_batches(found, target, limits))


def _limited_batches(original: Callable[..., Any], target: Any, limits: dict[int, int]) -> Callable[..., Any]:
    def limited(runner: Any, width: int = 1, *args: Any, **kwargs: Any) -> Any:
        sizes, compiled = original(runner, width, *args, **kwargs)
        if runner is not target:
            return sizes, compiled
        most = limits.get(width, max(sizes))
        return [size for size in sizes if size <= most], [size for size in compiled if size <= most]

    limited.ddtree = True  # type: ignore[attr-defined]
    return limited


def _sizes(runner: Any, context: int, features: int) -> memory.Sizes:
    """Estimate bytes per token of a verify pass, and read what is free (the least of all ranks)."""
    config = runner.model_config
    hidden = int(config.hidden_size)
    inner = int(getattr(config.hf_text_config, "intermediate_size", None) or 4 * hidden)
    vocab = int(config.vocab_size)
    row = vocab * 4 + vocab * 2 + 2 * (8 * hidden + 3 * inner)
    free = torch.tensor([torch.cuda.mem_get_info()[0]], dtype=torch.int64)
    if runner.tp_group.world_size > 1:
        torch.distributed.all_reduce(free, op=torch.distributed.ReduceOp.MIN, group=runner.tp_group.cpu_group)
    layers = int(getattr(config, "num_hidden_layers", None) or 32)
    return memory.Sizes(row, 2 * features, context, GRAPH_BYTES_PER_LAYER * layers, int(free[0]), RESERVE)
