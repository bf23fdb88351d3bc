"""Checks of what stands between the ladder and SGLang, with stand-ins for its graph runners and attention backend.

    ladder_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python. What real runners do with it only a GPU can show (``tests/gpu``).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from ddtree import beacon
from ddtree.build.accept import accept_paths
from ddtree.build.shape import NO_END, Shape
from ddtree.build.torch_builder import build_trees
from ddtree.control.auto import Auto
from ddtree.control.choice import Choice
from ddtree.control.costs import CostTable
from ddtree.control.ladder import Ladder

from tests.kernels.step_checks import adapter

MODULE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
CONTEXT, BATCHES = 1000, [1, 2, 4, 8]


class Backend:
    """An attention backend: remembers how its graph state was allocated."""

    num_draft_tokens = 33

    def __init__(self) -> None:
        self.allocated: list[tuple[int, int]] = []

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocate; twice would move what captured graphs read."""
        self.allocated.append((max_bs, max_num_tokens))


class Graphs:
    """A graph runner: asks for batches and state as SGLang's does."""

    def __init__(self, runner: Any, *, speculative_num_draft_tokens: int = 33) -> None:
        self.captured_req_width = speculative_num_draft_tokens
        self.capture_bs, _ = sys.modules[MODULE].get_batch_sizes_to_capture(runner, self.captured_req_width)
        self.max_bs = max(self.capture_bs)
        rows = self.max_bs * self.captured_req_width
        assert rows <= runner.max_decode_logits_rows(), "the shared logits buffer is too small"
        runner.attn_backend.init_cuda_graph_state(self.max_bs, rows)


@contextmanager
def _sglang(free: int) -> Iterator[Any]:
    """A target's model runner, SGLang's capture module and a device with ``free`` bytes."""
    module = types.ModuleType(MODULE)
    module.get_batch_sizes_to_capture = lambda runner, width=1: (list(BATCHES), [1])  # type: ignore[attr-defined]
    kept, memory = sys.modules.get(MODULE), torch.cuda.mem_get_info
    sys.modules[MODULE] = module
    torch.cuda.mem_get_info = lambda device=None: (free, free)  # type: ignore[assignment]
    config = SimpleNamespace(
        context_len=CONTEXT,
        hidden_size=64,
        vocab_size=1024,
        num_hidden_layers=2,
        hf_text_config=SimpleNamespace(intermediate_size=128),
    )
    runner = SimpleNamespace(
        model_config=config,
        device="cpu",
        attn_backend=Backend(),
        tp_group=SimpleNamespace(world_size=1),
        max_decode_logits_rows=lambda: 33 * BATCHES[-1],
        decode_cuda_graph_runner=None,
    )
    try:
        yield runner
    finally:
        torch.cuda.mem_get_info = memory
        sys.modules.pop(MODULE)
        if kept is not None:
            sys.modules[MODULE] = kept


def _graphs(runner: Any, widths: dict[int, int | None]) -> Any:
    graphs = adapter("ladder_graphs").VerifyGraphs(runner, Ladder.of(widths, widths), 16, 192)
    runner.decode_cuda_graph_runner = Graphs(runner)  # as SGLang does: the widest, between plan and ladder
    graphs.capture()
    return graphs


def check_every_width_is_captured_on_one_state(device: str) -> None:
    """A second allocation of the backend's state would leave the first graphs with freed memory."""
    with _sglang(1 << 34) as runner:
        graphs = _graphs(runner, {8: None, 16: None, 33: None})
        assert runner.attn_backend.allocated == [(8, 16 * 8)], "DFLASH's size, and masks for eight requests"
        assert runner.decode_cuda_graph_runner.captured_req_width == 33
        for width in (8, 16, 33):
            graphs.use(width)
            assert runner.decode_cuda_graph_runner.captured_req_width == width
            assert runner.decode_cuda_graph_runner.capture_bs == BATCHES
            assert graphs.has(width, 8)
            assert not graphs.has(width, 9)
        assert graphs.figures()["ladder_batches"] == {"8": 8, "16": 8, "33": 8}
        try:
            runner.attn_backend.init_cuda_graph_state(8, 33 * 9)
        except RuntimeError:
            pass
        else:
            raise AssertionError("more tokens than the shared state holds were accepted")


def check_limits_hold_for_sglangs_own_capture(device: str) -> None:
    """The widest pass is captured by SGLang: it must stop where the ladder says, and other runners must not."""
    with _sglang(1 << 34) as runner:
        graphs = _graphs(runner, {16: None, 33: 2})
        assert graphs.runner(33).capture_bs == [1, 2]
        assert graphs.runner(16).capture_bs == BATCHES
        assert graphs.ladder.at(2) == (16, 33)
        assert graphs.ladder.at(3) == (16,)
        assert runner.max_decode_logits_rows() == 16 * 8
        masks, _ = runner.attn_backend.allocated[0]
        cells = masks * 33 * (CONTEXT + 33)
        assert cells >= 8 * 16 * (CONTEXT + 16), "eight masks of the chain's width"
        assert cells >= 2 * 33 * (CONTEXT + 33)
        assert sys.modules[MODULE].get_batch_sizes_to_capture(object(), 33)[0] == BATCHES, "the drafter's runner"


def check_too_little_memory_is_refused_with_numbers(device: str) -> None:
    """Half a ladder that dies while it is captured helps nobody."""
    with _sglang(1 << 29) as runner:
        refused = ""
        try:
            _graphs(runner, {16: None, 33: None})
        except ValueError as error:
            refused = str(error)
        assert "512 MiB are free" in refused, refused
        assert "8 requests x 16 tokens" in refused


def check_paths_reach_the_controller(device: str) -> None:
    """Results come two steps late and some never: each must be learnt for the step that it belongs to."""
    generator = torch.Generator().manual_seed(30)
    module = adapter("ladder_auto")
    module.SAMPLE_EVERY = 1
    bs, depth, width = 3, 7, 17
    controller = Auto(Ladder.of((8, 17)), CostTable({}), depth + 1, 16)
    seen: list[Any] = []
    controller.saw = lambda batch, choice, samples: seen.append((batch, choice, samples))  # type: ignore[method-assign]
    auto = module.AutoBudget(controller, 4, depth + 1, device)
    expected = []
    waiting = []
    for number in range(40):
        log_probs = torch.log_softmax(torch.randn((bs, depth, 16), generator=generator), -1).sort(-1, descending=True)[
            0
        ]
        ids = torch.rand((bs, depth, 50), generator=generator).topk(16, dim=-1).indices
        lens = torch.full((bs,), 5)
        tree = build_trees(
            lens, ids, (log_probs * 2**32).round().long(), lens, lens + 99, torch.full((bs,), NO_END), Shape(width, 16)
        )
        children = tree.retrieve_next_token.clamp(min=0)
        sibling = tree.retrieve_next_sibling.gather(1, children)
        takes = torch.rand((bs, width), generator=generator) < 0.4
        child = torch.where(takes & (sibling > 0), sibling, children)
        target = torch.where(child > 0, tree.draft_token.gather(1, child), 60)
        target = torch.where(torch.rand((bs, width), generator=generator) < 0.7, target, 60)
        done = accept_paths(tree, target, depth + 1)
        choice = Choice(width, 16, False, "cost" if number % 5 else "control")
        auto.launched(bs, choice, tree, done.path)
        waiting.append(done.accept_len.tolist())
        if choice.reason == "cost":
            expected.append((tree, done))
        if len(waiting) > 2:
            auto.completed(waiting.pop(0), bs)
    auto.completed([0], 1)  # of a batch that was never launched: nothing to learn, and nothing breaks
    assert 20 < len(seen) <= len(expected)
    branches = ends = 0
    for (batch, choice, samples), (tree, done) in zip(seen, expected, strict=False):
        assert batch == bs
        assert choice.reason == "cost"
        for b, sample in enumerate(samples):
            path = [0]
            for node in sample.nodes:
                assert int(tree.parent[b, node]) == path[-1]
                path.append(node)
            assert len(sample.nodes) == int(done.accept_len[b])
            assert list(sample.ranks) == tree.rank[b, list(sample.nodes)].tolist()
            assert sample.next_was_there == bool((tree.parent[b, 1:] == path[-1]).logical_and(tree.valid[b, 1:]).any())
            branches += sum(rank > 0 for rank in sample.ranks)
            ends += not sample.next_was_there
    assert branches > 10
    assert ends > 5


def check_budgets_above_the_start_are_reported(device: str) -> None:
    """A control file that asks for more than was captured must say so, not be cut in silence."""
    import json
    import tempfile

    kept = dict(beacon.settings)
    beacon.settings["budget"] = 32
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "control.json"
            control = beacon.Control()
            for asked, budget, words in (
                ({"budget": 32}, 32, None),
                ({"budget": 33}, 32, "above the 32 nodes"),
                ({"budget": 0}, 32, "from 1"),
                ({"budget": "auto"}, "auto", None),
            ):
                path.unlink(missing_ok=True)
                path.write_text(json.dumps(asked))
                control._seen = None
                control.refresh(path)
                assert control.budget == budget, asked
                assert (control.error is None) == (words is None), control.error
                assert words is None or words in str(control.error)
    finally:
        beacon.settings.clear()
        beacon.settings.update(kept)


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    run(CHECKS, "cpu")
