"""The DDTREE worker for SGLang's spec v2: one drafter block in, one tree verified, a chain committed.

Subclass of SGLang's DFLASH worker. Start-up, prefill, idle batches and the draft KV cache are DFLASH's own; the decode
step is written here, because DFLASH's has no seam between drafting and verifying:

1. draft   B masked tokens per request through the drafter (B = block size)
2. build   per-depth top-k and the exact tree of at most N - 1 nodes; on a GPU the tail of the drafter's CUDA graph
3. verify  one target forward over N tokens with the tree as attention mask, positions prefix + depth; N is chosen step
           by step from the ladder of widths (``control``), the graphs of each are captured
4. accept  the path that the target confirms, and its own next token
5. commit  publish lengths, then compact KV and hidden states to the window's front: from here on it is a DFLASH chain

No step of it waits for the device: lengths, positions, masks and paths are device tensors throughout.
(``DDTREE_SYNC_DEBUG=error`` lets torch prove that: an operation that waits ends the server.)
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import torch
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2

from .. import beacon, hook, limits, metrics, pairing, prometheus, settings
from ..build.merge import ShardedCandidates
from ..build.shape import ANY_RANK, Shape
from ..build.step import Step, StepBuffers
from ..build.torch_builder import TreeBatch
from ..control.auto import Auto
from ..control.choice import Choice, Chooser
from ..control.costs import CostTable
from ..control.ladder import Ladder
from ..tree.trace import TraceHeader
from . import compat, grammar, logprobs, server_info, start_figures, timing
from .commit import Committer, Outcome
from .draft_tail import DraftTail, Found
from .first_token import FirstTokens
from .ladder_auto import AutoBudget
from .logits import adjust
from .parallel import Followed, Ranks
from .request_state import RequestState
from .sampling import target_tokens
from .table import widen
from .tracing import tracer_from_environment
from .verify_input import full_mask, full_mask_size, graph_mask, make_verify_input

logger = logging.getLogger(__name__)

ENV_GRAPH_COMMIT = "DDTREE_GRAPH_COMMIT"
"""``0``: greedy batches are committed after the target's graph, not inside it."""
ENV_SYNC_DEBUG = "DDTREE_SYNC_DEBUG"
"""``warn`` or ``error``: torch's synchronisation detector around every decode step but the first ones."""
_SYNC_DEBUG_AFTER = 16  # kernels are compiled and caches filled in the first steps


class DDTreeWorkerV2(DFlashWorkerV2):  # type: ignore[misc]
    """Draft-tree verification over a DFlash drafter, for synchronous and overlap scheduling."""

    def __init__(self, server_args: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server_args, *args, **kwargs)
        self.ddtree = settings.current()
        self._set_block_size(self.ddtree.block_size)
        self._head, self.head_rows = self._target_head()
        self._refuse_models()
        self.ranks = Ranks.of_tensor_parallel_group()
        self._shard = self.ranks.shard(self._head, self.head_rows)
        self.vocab = self.head_rows if self._shard is None else self._shard.vocab
        self._path_width = self.ddtree.block_size
        self._counters = metrics.start_device(self._path_width, torch.device(self.device), self.ddtree.ranks)
        timing.from_environment(self.device)
        self._tracer = tracer_from_environment(self._trace_header(server_args), compat.tp_rank(self))
        self._no_overlap = bool(getattr(compat.view(server_args), "disable_overlap_schedule", False))
        self._sync_debug = os.environ.get(ENV_SYNC_DEBUG, "")
        self._mask: torch.Tensor | None = None  # what the target's captured graphs read
        self._graph_bs = 0  # largest captured batch of the target
        self._verify_tail: Any = None  # what its graphs do after the forward
        self.graphs: Any = None  # verify graphs by width
        self.auto: AutoBudget | None = None  # what the automatic budget learns from
        self.chooser = Chooser(self.ddtree.budget, self.ddtree.depth, self.ddtree.auto)
        self.chooser.use(self.ddtree.widths())
        beacon.settings.update(algorithm="DDTREE", **self.ddtree.as_dict(), **self.ranks.as_dict())
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
        names = str(config.model_path), str(self.draft_model_runner.model_config.model_path)
        loaded = pairing.Loaded.of(self._head, config, self.draft_model)
        pairing.refuse_loaded_pair(loaded, hook.needs_of(draft_config), names)

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
            dtype=str(self.target_worker.model_runner.model_config.dtype).removeprefix("torch."),
            extra={
                name: getattr(cfg, name, None)
                for name in ("tp_size", "attention_backend", "disable_overlap_schedule", "random_seed")
            },
        )

    def _maybe_build_draft_sampler(self) -> None:
        """No in-graph draft sampler: it returns one token per position, the tree needs the hidden states."""
        return

    def alloc_memory_pool(self, *args: Any, **kwargs: Any) -> None:
        """Allocate the drafter's pools; the target's are there, and nobody holds its table of slots yet."""
        runner = self.target_worker.model_runner
        widen(runner.req_to_token_pool, int(runner.model_config.context_len), self.ddtree.width)
        super().alloc_memory_pool(*args, **kwargs)

    def init_attention_backends(self) -> None:
        """Allocate the step's buffers: the memory pools exist now, and nothing is captured yet."""
        super().init_attention_backends()
        runner = self.target_worker.model_runner
        limits.refuse_memory(compat.virtual_slots(runner.token_to_kv_pool_allocator))
        max_bs = int(runner.req_to_token_pool.size)  # captured batches are not larger
        self._buffers = StepBuffers(max_bs, self.ddtree.width, self.block_size, self.device)
        self._committer = Committer(runner.token_to_kv_pool, max_bs, self._path_width, self.device)
        processor = getattr(runner.model, "logits_processor", None)
        sharded = None
        if self._shard is not None:
            rows = max_bs * self.ddtree.depth
            sharded = ShardedCandidates(self._shard, self.ranks.gather, rows, self.ddtree.ranks, self.device)
        self.tail = DraftTail(self.ddtree, self._head, self.head_rows, processor, max_bs, self.device, sharded)
        config = runner.model_config
        self.requests = RequestState(
            self.tail, self.ddtree.budget, int(config.context_len), int(config.vocab_size), self._committer.stops
        )
        self._first_tokens = FirstTokens(runner.sampler)
        hooks = getattr(runner, "capture_tail_hooks", None)
        on_gpu = torch.device(self.device).type == "cuda"
        if on_gpu and hooks is not None and os.environ.get(ENV_GRAPH_COMMIT, "1") != "0":
            from .verify_tail import VerifyTail

            self._verify_tail = VerifyTail(self.tail, self._buffers, self._committer, self._counters, max_bs)
            hooks.append(self._verify_tail.hook)
        if on_gpu and compat.captures_decode_graphs(self.server_args) and compat.graph_runner_of_any_width():
            from .ladder_graphs import VerifyGraphs

            features = int(config.hidden_size) * compat.feature_layers(runner)
            self.graphs = VerifyGraphs(runner, self.ddtree.widths(), self.block_size, features)

    def init_cuda_graphs(self) -> None:
        """Let the drafter's graphs build trees, and check the target's, which SGLang has captured before this."""
        runner = self.target_worker.model_runner
        graphs = compat.decode_graphs(runner)
        if graphs is not None:
            self._mask = graph_mask(runner.attn_backend)
            self.chooser.use(self._capture_ladder())
            self._graph_bs = self._buffers.graph_bs = max(
                int(graphs.max_bs), *(self.graphs.plan.limits.values() if self.graphs is not None else (0,))
            )
        if self._mask is not None:
            self.draft_model_runner.capture_tail_hooks.append(self.tail.capture_hook(self._mask))
        super().init_cuda_graphs()
        captured_at = time.perf_counter()
        self.ranks.must_equal("whether graphs were captured", (graphs is not None, self.tail.is_captured))
        costs = self._check_and_measure() if graphs is not None else CostTable({})
        self._start_auto(costs)
        beacon.settings.update(
            verify_graphs_to_batch=self._graph_bs,
            draft_graphs=self.tail.is_captured,
            commit_in_graph=self._verify_tail is not None and graphs is not None,
            self_check=graphs is not None,
        )
        self._tell_about_start(time.perf_counter() - captured_at)

    def _capture_ladder(self) -> Ladder:
        """Capture the narrower widths; SGLang has captured the widest. Without a runner for them it stays alone."""
        if self.graphs is None:
            return Ladder.of([self.ddtree.width])
        self.graphs.capture()
        beacon.settings.update(self.graphs.figures())
        logger.info("DDTREE: verify graphs captured: %s.", self.graphs.figures())
        ladder: Ladder = self.graphs.ladder
        return ladder

    def _check_and_measure(self) -> CostTable:
        """Check every width's graphs, then measure what they cost; nothing is served yet."""
        from .self_check import check_verify_graphs, log_readings

        readings = {}
        for width in self.chooser.ladder.widths:
            self._use_graphs(width)
            readings[width] = check_verify_graphs(self, width)
        log_readings(readings)
        if self.graphs is None:
            return CostTable({})
        from .verify_costs import measure

        costs = measure(self.graphs, self.target_worker.model_runner)
        beacon.settings["verify_costs"] = costs.rows()
        return costs

    def _start_auto(self, costs: CostTable) -> None:
        """Make the automatic controller ready; it is asked when the start or the control file wants it."""
        controller = Auto(self.chooser.ladder, costs, self.block_size, self.ddtree.budget)
        if self.ranks.is_first:
            max_bs = int(self.target_worker.model_runner.req_to_token_pool.size)
            self.auto = AutoBudget(controller, max_bs, self._path_width, self.device)
        automatic = controller if self.ranks.size == 1 else Followed(controller, self.chooser)
        self.chooser.use(self.chooser.ladder, automatic)

    def on_verify_complete_cpu(self, num_correct_drafts_per_req: list[int], batch_size: int = 0, **_: Any) -> None:
        """Take what SGLang tells when a step's accepted lengths have come to the host."""
        if self.auto is not None:
            self.auto.completed(num_correct_drafts_per_req, batch_size or len(num_correct_drafts_per_req))

    def _use_graphs(self, width: int) -> None:
        if self.graphs is not None:
            self.graphs.use(width)

    def _tell_about_start(self, checks_s: float) -> None:
        """Record what the start cost, and begin to show counters wherever this server shows any."""
        rank = compat.tp_rank(self)
        start_figures.record(self, checks_s)
        prometheus.start(bool(getattr(compat.view(self.server_args), "enable_metrics", False)), rank)
        server_info.start()

    # -- one batch ----------------------------------------------------------------------------------------------

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **kwargs: Any) -> Any:
        """Run one batch; prefill and idle batches are DFLASH's own."""
        decoding = not (batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle())
        if not decoding:
            return self._prefill(batch, on_publish, kwargs)
        if not isinstance(batch.spec_info, DFlashDraftInputV2):
            raise RuntimeError(
                f"DDTREE expected a DFLASH draft input on the batch, got {type(batch.spec_info).__name__}."
            )
        return self._decode(batch, batch.spec_info, on_publish, kwargs.get("grammar_barrier"))

    def _prefill(self, batch: Any, on_publish: Any, kwargs: dict[str, Any]) -> Any:
        """Run a batch through DFLASH's own prefill, so that it gives requests what decoding will give them."""
        if self.auto is not None:
            self.auto.interrupted()
        with self.requests.prefilling(batch, self._first_tokens), logprobs.through_prefill(batch):
            result = super().forward_batch_generation(batch, on_publish=on_publish, **kwargs)
        if not batch.forward_mode.is_idle() and self._must_see_logits(batch):
            self.ranks.same_first_tokens(result)
        return result

    def _validate_phase1_sampling_support(self, batch: Any) -> None:
        """Sampling is served here, so there is nothing to warn about."""
        logprobs.restore(batch)

    def _decode(self, batch: Any, draft_input: DFlashDraftInputV2, on_publish: Any, barrier: Any) -> Any:
        if self._sync_debug and metrics.host.values["verify_steps"] >= _SYNC_DEBUG_AFTER:
            torch.cuda.set_sync_debug_mode(self._sync_debug)
            try:
                return self._decode_step(batch, draft_input, on_publish, barrier)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return self._decode_step(batch, draft_input, on_publish, barrier)

    def _decode_step(self, batch: Any, draft_input: DFlashDraftInputV2, on_publish: Any, barrier: Any) -> Any:
        seq_lens = batch.seq_lens
        if seq_lens.is_cuda:  # made by the previous step, perhaps on another stream
            seq_lens.record_stream(torch.cuda.current_stream(seq_lens.device))
        timing.begin()
        root = compat.bonus_tokens(draft_input).view(-1)
        table = self.model_runner.req_to_token_pool.req_to_token
        self.requests.update(batch.reqs, root)
        live = self._verify_tail is not None and not self._must_see_logits(batch)
        bs = int(seq_lens.shape[0])
        choice = self._choose(bs)
        step = self._buffers.prepare(
            root, seq_lens, batch.req_pool_indices, table, int(self._mask_token_id), live, choice.width
        )
        found, tree, mask = self._draft(batch, draft_input, root, step)
        timing.passed("build")
        links = grammar.begin(batch, tree)
        target_out = self._verify(batch, draft_input, tree, mask, step)
        logits_output = target_out.logits_output
        if live and target_out.can_run_cuda_graph:
            done = self._verify_tail.result(bs, choice.width)
            if on_publish is not None:
                on_publish(done.outcome.new_seq_lens)
            self._append_to_draft(done.rows, step, done.outcome)
            timing.end(choice.width)
            self._add_logprobs(batch, logits_output, done.target, done.outcome)
            self._trace(batch, found, tree, done.target, done.outcome, logits_output)
            self.ranks.compare_step(tree, done.target, done.outcome)
            if self.auto is not None:
                self.auto.launched(bs, choice, tree, done.outcome.accepted.path)
            logits_output.hidden_states = None
            return self._result(target_out, done.outcome, keep=True)
        timing.passed("verify")
        if self._verify_tail is not None:
            metrics.host.add("fallback_late_commit" if target_out.can_run_cuda_graph else "fallback_eager_verify")
        logits, info = logits_output.next_token_logits, batch.sampling_info
        legal = grammar.mask(batch, links, self.device, barrier)
        adjust(logits, tree, seq_lens, self.ddtree.depth, info, self.requests.penalties, legal)
        target = target_tokens(logits, info, choice.width, self.requests.seeds, tree.positions)
        if self._must_see_logits(batch):
            self.ranks.same_tokens(target)
        outcome = self._committer.accept(tree, target, seq_lens)
        if on_publish is not None:
            on_publish(outcome.new_seq_lens)

        self._commit(logits_output.hidden_states, step, found, tree, outcome)
        timing.end(choice.width)
        logits_output.hidden_states = None  # large, and nobody needs it on the host
        self.requests.advance(outcome.accepted)
        self._add_logprobs(batch, logits_output, target, outcome)
        self._trace(batch, found, tree, target, outcome, logits_output)
        self.ranks.compare_step(tree, target, outcome)
        if self.auto is not None:
            self.auto.launched(bs, choice, tree, outcome.accepted.path)
        return self._result(target_out, outcome)

    @staticmethod
    def _add_logprobs(batch: Any, logits_output: Any, target: torch.Tensor, outcome: Outcome) -> None:
        if batch.return_logprob:
            logprobs.add(batch, logits_output, target, outcome.accepted.path)

    def _choose(self, bs: int) -> Choice:
        """Choose width, budget and form of the trees to come, and tell the device when that changes."""
        control = beacon.control
        choice = self.ranks.choose(self.chooser, bs, control, self.tail.most_requested)
        self.tail.set_shape(Shape(choice.width, choice.budget, 1 if choice.chain else ANY_RANK))
        if self.auto is not None:
            self.auto.began(bs, choice)
        metrics.host.count_step(choice.width, choice.budget, "chain" if choice.chain else "tree", choice.reason)
        return choice

    def _must_see_logits(self, batch: Any) -> bool:
        """Tell whether a batch's tokens are more than the best ones of raw logits, which captured tails take."""
        from .verify_tail import must_see_logits

        return self.requests.penalties is not None or batch.has_grammar or must_see_logits(batch.sampling_info)

    def _trace(
        self, batch: Any, found: Found, tree: TreeBatch, target: torch.Tensor, outcome: Outcome, logits_output: Any
    ) -> None:
        if self._tracer is not None and not self._tracer.record(
            batch.reqs, batch.seq_lens, found.ids, found.log_probs, tree, target, outcome.accepted,
            logits_output.next_token_logits, self.tail,
        ):  # fmt: skip
            self._tracer = None

    # -- draft and build ----------------------------------------------------------------------------------------

    def _draft(
        self, batch: Any, draft_input: Any, root: torch.Tensor, step: Step
    ) -> tuple[Found, TreeBatch, torch.Tensor]:
        """Run the drafter over ``[root, mask x (B - 1)]`` and build the trees; returns their mask (FULL_MASK) too."""
        bs, block = step.front.shape
        host_lens, host_sum = self._host_lengths(batch, draft_input, block)
        forward_batch = ForwardBatch(
            **compat.accepted(
                ForwardBatch,
                forward_mode=ForwardMode.TARGET_VERIFY,
                batch_size=bs,
                input_ids=step.block_ids.view(-1),
                req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens,
                out_cache_loc=step.front.view(-1),
                seq_lens_sum=host_sum,
                seq_lens_cpu=host_lens,
                positions=step.positions.view(-1),
                input_embeds=self._noise_embedding(step.block_ids),
                spec_algorithm=self.model_runner.spec_algorithm,
                spec_info=self._draft_block_spec_info,
                capture_hidden_mode=CaptureHiddenMode.NULL,
                global_num_token_non_padded_cpu=bs * block,
            )
        )
        with torch.inference_mode():
            output = self.draft_model_runner.forward(forward_batch)
            if self._mask is not None and self.tail.is_captured and compat.ran_graph(output):
                return *self.tail.captured(bs), self._mask
            hidden = output.logits_output.hidden_states
            if hidden is None:
                raise RuntimeError("DDTREE: the drafter returned no hidden states.")
            if self.tail.is_captured:
                metrics.host.add("fallback_eager_draft")
            mask = self._mask_for(bs, host_sum)
            found, tree = self.tail.run(hidden, root, batch.seq_lens, mask)
        return found, tree, full_mask(tree.mask, batch.seq_lens, host_sum) if mask is None else mask

    def _mask_for(self, bs: int, total_bound: int) -> torch.Tensor | None:
        """Return where the builder is to write the mask of a batch whose trees are built eagerly (CPU: nowhere)."""
        if torch.device(self.device).type != "cuda":
            return None
        if self._mask is not None and bs <= self._graph_bs:
            return self._mask
        width = self.tail.shape.host.width
        return torch.empty(full_mask_size(bs, width, total_bound), dtype=torch.bool, device=self.device)

    def _noise_embedding(self, block_ids: torch.Tensor) -> torch.Tensor:
        """Embed the block with the target's embedding, ``[bs * B, H]``."""
        embedded = self.target_worker.model_runner.model.get_input_embeddings()(block_ids)
        scale = float(getattr(self, "_noise_embed_scale", 1.0))
        if scale != 1.0:
            embedded = embedded * scale
        return embedded.view(-1, embedded.shape[-1])

    # -- verify and commit --------------------------------------------------------------------------------------

    def _verify(self, batch: Any, draft_input: Any, tree: TreeBatch, mask: torch.Tensor, step: Step) -> Any:
        """Run the target over the trees; logits ``[bs * N, V]`` and hidden states ``[bs * N, H]`` come back."""
        host_lens, host_sum = self._host_lengths(batch, draft_input, step.window.shape[1])
        self._use_graphs(step.window.shape[1])
        # Captured graphs read the buffer that holds the mask already: SGLang's copy into it is left one element to do.
        in_place = mask is self._mask and step.window.shape[0] <= self._graph_bs
        verify_input = make_verify_input(tree, mask[:1] if in_place else mask, self.ddtree.depth)
        batch.out_cache_loc = step.window.view(-1)
        kept = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = host_lens, host_sum
        forward_batch, in_graph = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = kept
        if in_place and not in_graph:  # an eager pass reads the mask that it is given
            verify_input.custom_mask = mask
            self.target_worker.model_runner.attn_backend.init_forward_metadata(forward_batch)
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
        reserved = compat.reserved_lengths(draft_input)
        if reserved is not None:
            return reserved
        lens = batch.seq_lens.to("cpu", dtype=torch.int32) + width  # no host length anywhere: synchronise
        return lens, int(lens.sum())

    def _commit(self, hidden: torch.Tensor | None, step: Step, found: Found, tree: TreeBatch, outcome: Outcome) -> None:
        """Make the accepted path a chain at the window's front: target KV, then draft KV from hidden states."""
        if hidden is None:
            raise RuntimeError("DDTREE: the target returned no hidden states for the drafter.")
        skipped = self._committer.compact_kv(step.window, outcome)
        rows = self._committer.compact_rows(hidden, outcome.accepted.path, step.window.shape[1])
        self._append_to_draft(rows, step, outcome)
        self._counters.count(tree, found.ids, outcome.accepted, outcome.moved)
        metrics.host.add("kv_move_skipped", int(skipped))

    def _append_to_draft(self, rows: torch.Tensor, step: Step, outcome: Outcome) -> None:
        """Write the drafter's KV of the accepted path from the target's hidden states, by DFLASH's own code."""
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=rows,
            cache_loc=step.front.view(-1),
            cache_loc_2d=step.front,
            positions=step.positions.view(-1),
            commit_lens=outcome.commit_lens,
        )
        metrics.step_done()

    def _result(self, target_out: Any, outcome: Outcome, keep: bool = False) -> GenerationBatchResult:
        """Hand back what DFLASH would: padded token rows of the path's width, commit lengths, the next draft input.

        ``keep``: the next replay overwrites the outcome. What the host reads is copied on a stream of its own beside
        the next step, and without overlap scheduling the batch carries lengths and bonus tokens on: both are cloned.
        """
        accepted = outcome.accepted
        out_tokens, commit_lens = accepted.out_tokens, outcome.commit_lens
        bonus, new_seq_lens = accepted.bonus, outcome.new_seq_lens
        if keep:
            out_tokens, commit_lens = out_tokens.clone(), commit_lens.clone()
            if self._no_overlap:
                bonus, new_seq_lens = bonus.clone(), new_seq_lens.clone()
        return GenerationBatchResult(
            **compat.accepted(
                GenerationBatchResult,
                logits_output=target_out.logits_output,
                next_token_ids=out_tokens.view(-1),
                accept_lens=commit_lens,
                can_run_cuda_graph=target_out.can_run_cuda_graph,
                next_draft_input=self._make_next_draft_input_decode(bonus_tokens=bonus, new_seq_lens=new_seq_lens),
                speculative_num_draft_tokens=self._path_width,
                new_seq_lens=new_seq_lens,
                routed_experts_output=getattr(target_out, "routed_experts_output", None),
                indexer_topk_output=getattr(target_out, "indexer_topk_output", None),
            )
        )
