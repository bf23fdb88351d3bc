"""The DDTREE worker for SGLang's spec v2: one drafter block in, one tree verified, a chain committed.

Subclass of SGLang's DFLASH worker. Start-up, prefill, idle batches and the draft KV cache are DFLASH's own; the decode
step is written here, because DFLASH's has no seam between drafting and verifying:

1. draft   B masked tokens per request through the drafter (B = block size), hidden states back, no in-graph sampler
2. build   per-depth top-k and the exact tree of N = budget + 1 nodes
3. verify  one target forward over N tokens with the tree as attention mask, positions prefix + depth
4. accept  the path that the target confirms, and its own next token
5. commit  publish lengths, then compact KV and hidden states to the window's front: from here on it is a DFLASH chain

No step of it waits for the device: lengths, positions, masks and paths are device tensors throughout.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import apply_dflash_verify_logits_adjustments, parse_dflash_draft_config
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

from .. import beacon, limits, metrics, settings
from ..build.accept import Accepted, accept_paths
from ..build.topk import candidates
from ..build.torch_builder import TreeBatch, build_trees
from ..tree.trace import TraceHeader
from . import commit, compat
from .tracing import tracer_from_environment
from .verify_input import make_verify_input

logger = logging.getLogger(__name__)


@dataclass
class _Candidates:
    """Per-depth candidates of a batch, rank order: ``[bs, D, K]``."""

    ids: torch.Tensor
    log_probs: torch.Tensor
    scores: torch.Tensor


class DDTreeWorkerV2(DFlashWorkerV2):  # type: ignore[misc]
    """Draft-tree verification over a DFlash drafter, for synchronous and overlap scheduling."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server_args, *args, **kwargs)
        self.ddtree = settings.current()
        self._set_block_size(self.ddtree.block_size)
        self._head, self._head_rows = self._target_head()
        self._refuse_models()
        self._path_width = self.ddtree.block_size
        self._counters = metrics.start_device(self._path_width, torch.device(self.device))
        self._tracer = tracer_from_environment(self._trace_header(server_args))
        beacon.settings.update(algorithm="DDTREE", **self.ddtree.as_dict())
        logger.info("DDTREE worker ready: %s (the block size is the drafter's, the width is the tree's).", self.ddtree)

    # -- start-up -----------------------------------------------------------------------------------------------

    def _set_block_size(self, block_size: int) -> None:
        """Undo the base class's assumption that the drafter's block is as wide as the verified tree."""
        from sglang.srt.speculative.draft_worker_common import build_block_pos_offsets, make_draft_block_spec_info

        self.block_size = block_size
        if hasattr(self.draft_model, "set_block_size"):
            self.draft_model.set_block_size(block_size)
        self._block_pos_offsets = build_block_pos_offsets(length=block_size, device=self.device)
        self._draft_block_spec_info = make_draft_block_spec_info(draft_token_num=block_size, device=self.device)
        self._node_offsets = torch.arange(self.ddtree.width, dtype=torch.int64, device=self.device)

    def _target_head(self) -> tuple[Any, int]:
        """Return the target's lm_head and how many of its rows are vocabulary (the rest is padding)."""
        head = getattr(self.target_worker.model_runner.model, "lm_head", None)
        shard = getattr(head, "shard_indices", None)
        rows = shard.num_org_elements if shard is not None else getattr(head, "weight", torch.empty(0, 0)).shape[0]
        return head, int(rows)

    def _refuse_models(self) -> None:
        runner = self.target_worker.model_runner
        config = runner.model_config
        window = getattr(runner, "sliding_window_size", None)
        limits.refuse_target(config, window, compat.recurrent(config), self._head)
        draft_config = parse_dflash_draft_config(draft_hf_config=self.draft_model_runner.model_config.hf_config)
        limits.refuse_drafter(self.draft_model, draft_config)

    def _trace_header(self, server_args: Any) -> TraceHeader:
        from sglang.version import __version__

        cfg = compat.view(server_args)
        return TraceHeader(
            model=str(cfg.model_path),
            draft=str(cfg.speculative_draft_model_path),
            engine="sglang",
            version=str(__version__),
            block_size=self.ddtree.block_size,
            budget=self.ddtree.budget,
        )

    def _maybe_build_draft_sampler(self) -> None:
        """No in-graph draft sampler: it returns one token per position, the tree needs the hidden states."""
        return

    def init_cuda_graphs(self) -> None:
        """Make sure that no decode graph of the target was captured: it would replay without the tree's mask."""
        if getattr(self.target_worker.model_runner, "decode_cuda_graph_runner", None) is not None:
            raise RuntimeError("DDTREE: the target has captured decode CUDA graphs, which are not in this version.")
        super().init_cuda_graphs()

    # -- one batch ----------------------------------------------------------------------------------------------

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
        """Run one batch; prefill and idle batches are DFLASH's own."""
        decoding = not (batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle())
        if not decoding:
            return super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)
        if not isinstance(batch.spec_info, DFlashDraftInputV2):
            raise RuntimeError(
                f"DDTREE expected a DFLASH draft input on the batch, got {type(batch.spec_info).__name__}."
            )
        return self._decode(batch, batch.spec_info, on_publish)

    def _decode(self, batch: Any, draft_input: DFlashDraftInputV2, on_publish: Any) -> Any:
        bs = len(batch.seq_lens)
        seq_lens = batch.seq_lens
        if seq_lens.is_cuda:  # made by the previous step, perhaps on another stream
            seq_lens.record_stream(torch.cuda.current_stream(seq_lens.device))
        root = compat.bonus_tokens(draft_input).view(-1)
        window = self._window(batch, bs)

        hidden = self._draft(batch, draft_input, root, window)
        found = self._candidates(hidden)
        tree = self._build(root, found, seq_lens)

        target_out = self._verify(batch, draft_input, tree, window)
        logits_output = target_out.logits_output
        if batch.sampling_info is not None:
            apply_dflash_verify_logits_adjustments(
                next_token_logits=logits_output.next_token_logits,
                sampling_info=batch.sampling_info,
                draft_token_num=self.ddtree.width,
            )
        target = torch.argmax(logits_output.next_token_logits, dim=-1).view(bs, self.ddtree.width)
        accepted = accept_paths(tree, target, self._path_width)
        commit_lens = (accepted.accept_len + 1).to(torch.int32)
        new_seq_lens = seq_lens + commit_lens.to(seq_lens.dtype)
        if on_publish is not None:
            on_publish(new_seq_lens)

        self._commit(logits_output.hidden_states, window, seq_lens, tree, accepted, commit_lens)
        logits_output.hidden_states = None  # large, and nobody needs it on the host
        if self._tracer is not None and not self._tracer.record(
            batch.reqs, seq_lens, found.ids, found.log_probs, tree, target, accepted
        ):
            self._tracer = None
        return self._result(target_out, accepted, commit_lens, new_seq_lens)

    def _window(self, batch: Any, bs: int) -> torch.Tensor:
        """Return this step's KV slots, ``[bs, N]`` int64: the only reading of ``req_to_token`` in the step."""
        positions = batch.seq_lens.to(torch.int64)[:, None] + self._node_offsets
        table = self.model_runner.req_to_token_pool.req_to_token
        rows = batch.req_pool_indices.to(torch.int64)[:, None].expand(bs, self.ddtree.width)
        return table[rows, positions].to(torch.int64)

    # -- draft and build ----------------------------------------------------------------------------------------

    def _draft(self, batch: Any, draft_input: Any, root: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Run the drafter over ``[root, mask x (B - 1)]``; returns the hidden states of the masks, ``[bs, D, H]``."""
        bs, block = window.shape[0], self.block_size
        block_ids = torch.full((bs, block), int(self._mask_token_id), dtype=torch.int64, device=window.device)
        block_ids[:, 0] = root
        positions = batch.seq_lens.to(torch.int64)[:, None] + self._block_pos_offsets
        host_lens, host_sum = self._host_lengths(batch, draft_input, block)
        forward_batch = ForwardBatch(
            **compat.accepted(
                ForwardBatch,
                forward_mode=ForwardMode.TARGET_VERIFY,
                batch_size=bs,
                input_ids=block_ids.flatten(),
                req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens,
                out_cache_loc=window[:, :block].reshape(-1),
                seq_lens_sum=host_sum,
                seq_lens_cpu=host_lens,
                positions=positions.reshape(-1),
                input_embeds=self._noise_embedding(block_ids),
                spec_algorithm=self.model_runner.spec_algorithm,
                spec_info=self._draft_block_spec_info,
                capture_hidden_mode=CaptureHiddenMode.NULL,
                global_num_token_non_padded_cpu=bs * block,
            )
        )
        with torch.inference_mode():
            output = self.draft_model_runner.forward(forward_batch)
        hidden = output.logits_output.hidden_states
        if hidden is None:
            raise RuntimeError("DDTREE: the drafter returned no hidden states.")
        return hidden.view(bs, block, -1)[:, 1:, :]

    def _noise_embedding(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Embed the block with the target's embedding, ``[bs * B, H]``."""
        embedded = self.target_worker.model_runner.model.get_input_embeddings()(block_ids)
        scale = float(getattr(self, "_noise_embed_scale", 1.0))
        if scale != 1.0:
            embedded = embedded * scale
        return embedded.view(-1, embedded.shape[-1])

    def _candidates(self, hidden: torch.Tensor) -> _Candidates:
        """Score the vocabulary at every depth with the target's own head, and keep the best."""
        weight = self._head.weight[: self._head_rows]
        with torch.inference_mode():
            logits = torch.matmul(hidden.to(weight.dtype), weight.T).to(torch.float32)
            processor = getattr(self.target_worker.model_runner.model, "logits_processor", None)
            scale = getattr(processor, "logit_scale", None)
            softcap = getattr(processor, "final_logit_softcapping", None)
            if scale is not None:
                logits = logits * scale
            if softcap:
                logits = softcap * torch.tanh(logits / softcap)
            return _Candidates(*candidates(logits, min(self.ddtree.ranks, self._head_rows)))

    def _build(self, root: torch.Tensor, found: _Candidates, seq_lens: torch.Tensor) -> TreeBatch:
        bs = seq_lens.shape[0]
        budget = self.ddtree.budget
        if beacon.control.budget is not None:
            budget = min(budget, beacon.control.budget)
        return build_trees(
            root,
            found.ids,
            found.scores,
            seq_lens,
            torch.full((bs,), budget, dtype=torch.int64, device=seq_lens.device),
            torch.full((bs,), self.ddtree.depth, dtype=torch.int64, device=seq_lens.device),
            self.ddtree.width,
        )

    # -- verify and commit --------------------------------------------------------------------------------------

    def _verify(self, batch: Any, draft_input: Any, tree: TreeBatch, window: torch.Tensor) -> Any:
        """Run the target over the trees; logits ``[bs * N, V]`` and hidden states ``[bs * N, H]`` come back."""
        host_lens, host_sum = self._host_lengths(batch, draft_input, self.ddtree.width)
        verify_input = make_verify_input(tree, batch.seq_lens, host_sum, self.ddtree.depth)
        batch.out_cache_loc = window.reshape(-1)
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens, host_sum
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _host_lengths(self, batch: Any, draft_input: Any, width: int) -> tuple[torch.Tensor, int]:
        """Return upper bounds of the lengths, on the host, and their sum: what backends plan with.

        Exact lengths live on the device; the host's may lag by a step, which a window's width covers.
        """
        if batch.seq_lens_cpu is not None:
            lens = batch.seq_lens_cpu.to(torch.int32) + width
            return lens, int(lens.sum())
        if draft_input.nxt_kv_lens_cpu is not None:
            return draft_input.nxt_kv_lens_cpu, int(draft_input.nxt_kv_lens_sum)
        lens = batch.seq_lens.to("cpu", dtype=torch.int32) + width  # no host length anywhere: synchronise
        return lens, int(lens.sum())

    def _commit(
        self,
        hidden: torch.Tensor | None,
        window: torch.Tensor,
        seq_lens: torch.Tensor,
        tree: TreeBatch,
        accepted: Accepted,
        commit_lens: torch.Tensor,
    ) -> None:
        """Make the accepted path a chain at the window's front: target KV, then draft KV from hidden states."""
        if hidden is None:
            raise RuntimeError("DDTREE: the target returned no hidden states for the drafter.")
        pool = self.model_runner.token_to_kv_pool
        moved, skipped = commit.compact_kv(pool, window, accepted.path, accepted.accept_len)
        front = window[:, : self._path_width].contiguous()
        positions = seq_lens.to(torch.int64)[:, None] + self._block_pos_offsets
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=commit.compact_rows(hidden, accepted.path, self.ddtree.width),
            cache_loc=front.reshape(-1),
            cache_loc_2d=front,
            positions=positions.reshape(-1),
            commit_lens=commit_lens,
        )
        self._counters.add(tree, accepted, moved)
        metrics.host.add("kv_move_skipped", int(skipped))
        metrics.host.add("verify_steps")

    def _result(
        self, target_out: Any, accepted: Accepted, commit_lens: torch.Tensor, new_seq_lens: torch.Tensor
    ) -> GenerationBatchResult:
        """Hand back what DFLASH would: padded token rows of the path's width, commit lengths, the next draft input."""
        return GenerationBatchResult(
            **compat.accepted(
                GenerationBatchResult,
                logits_output=target_out.logits_output,
                next_token_ids=accepted.out_tokens.reshape(-1),
                accept_lens=commit_lens,
                can_run_cuda_graph=target_out.can_run_cuda_graph,
                next_draft_input=self._make_next_draft_input_decode(
                    bonus_tokens=accepted.bonus, new_seq_lens=new_seq_lens
                ),
                speculative_num_draft_tokens=self._path_width,
                new_seq_lens=new_seq_lens,
                routed_experts_output=getattr(target_out, "routed_experts_output", None),
                indexer_topk_output=getattr(target_out, "indexer_topk_output", None),
            )
        )
