"""Checks of the counters: kernel against twin, twin against a plain count, probabilities, the time split on a CPU.

    count_checks.py [NAME ...]        prints {"name": null or a traceback, ...} as JSON

Run by the CPU environment's Python (Triton interpreted), and by ``tests/gpu`` on a GPU.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))

from ddtree import metrics, settings
from ddtree.build.accept import Accepted, accept_paths
from ddtree.build.count import EXPECTED_BITS, RANK_BINS, Layout, add_step, probability
from ddtree.build.shape import Shape
from ddtree.build.torch_builder import TreeBatch, build_trees

VOCAB = 40


class Case:
    """A batch of random trees of which the target confirms random paths."""

    def __init__(self, seed: int, bs: int, depth: int, ranks: int, budget: int, width: int | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.bs, self.depth, self.ranks = bs, depth, ranks
        self.width = width or budget + 1
        self.log_probs = torch.log_softmax(torch.randn((bs, depth, ranks), generator=generator) * 2, -1)
        self.log_probs = self.log_probs.sort(-1, descending=True)[0]
        self.ids = torch.rand((bs, depth, VOCAB), generator=generator).topk(ranks, dim=-1).indices
        scores = (self.log_probs.double() * 2**32).round().long()
        lens = torch.randint(1, 40, (bs,), generator=generator)
        budgets = torch.randint(0, budget + 1, (bs,), generator=generator)
        budgets[0] = budget
        limits = torch.randint(1, depth + 1, (bs,), generator=generator)
        limits[0] = depth
        shape = Shape(self.width, budget)
        self.tree = build_trees(lens, self.ids, scores, lens, budgets, lens + 1 + limits, shape)
        target = torch.randint(0, VOCAB, self.tree.draft_token.shape, generator=generator)
        children = self.tree.retrieve_next_token.clamp(min=0)
        for _ in range(2):  # follow the first child often, a later one sometimes
            follow = (torch.rand(target.shape, generator=generator) < 0.7) & (children > 0)
            target = torch.where(follow, self.tree.draft_token.gather(1, children), target)
            children = self.tree.retrieve_next_sibling.gather(1, children).clamp(min=0)
        target[1:2] = self.ids[1:2, 0, -1:]  # a miss (or a hit) of the last rank
        self.accepted = accept_paths(self.tree, target, depth + 1)
        steps = torch.arange(depth + 1)
        self.moved = ((self.accepted.path != steps) & (steps <= self.accepted.accept_len[:, None])).sum(1)

    def layout(self) -> Layout:
        """Counters with room for more ranks than the case has."""
        return Layout(self.depth + 1, self.ranks + 3)

    def to(self, device: str) -> tuple[TreeBatch, torch.Tensor, Accepted, torch.Tensor]:
        """The arguments of a count on a device."""
        tree = TreeBatch(**{name: array.to(device) for name, array in vars(self.tree).items()})
        accepted = Accepted(**{name: array.to(device) for name, array in vars(self.accepted).items()})
        return tree, self.ids.to(device), accepted, self.moved.to(device)


CASES = ((1, 15, 16, 16), (6, 15, 32, 32), (4, 7, 5, 12), (3, 1, 4, 4), (5, 15, 20, 70), (2, 3, 30, 150))


def _cases() -> list[Case]:
    found = [Case(seed, *shape) for seed, shape in enumerate(CASES)]
    return [*found, Case(20, 4, 15, 4, 4, width=16)]  # a window wider than the budget: padding in every tree


def check_kernel_equals_the_twin(device: str) -> None:
    """Counters are evidence: the kernel's additions must be the torch ones, bit for bit, and only for live requests."""
    from ddtree.build.triton_count import count_into

    for case in _cases():
        layout = case.layout()
        expected = torch.zeros(layout.size, dtype=torch.int64)
        found = expected.to(device)
        for live in (None, [1] * case.bs, [0] * case.bs, [number % 2 for number in range(case.bs)]):
            flags = None if live is None else torch.tensor(live)
            add_step(expected, layout, case.tree, case.ids, case.accepted, case.moved, flags)
            count_into(found, layout, *case.to(device), None if flags is None else flags.to(device))
            assert torch.equal(found.cpu(), expected), (case.bs, case.depth, live, (found.cpu() - expected).nonzero())


def check_twin_equals_a_plain_count(device: str) -> None:
    """Both could be wrong alike: every counter once more, in plain Python, from the definition in docs/metrics.md."""
    seen: Counter[str] = Counter()
    for case in _cases():
        counters = metrics.DeviceCounters(case.depth + 1, torch.device(device), case.ranks + 3)
        counters.count(*case.to(device))
        found = counters.read()
        plain: Counter[str] = Counter()
        arrays = {name: [0] * len(found[name]) for name in found if isinstance(found[name], list)}
        arrays["accepted_rank_by_depth"] = [[0] * RANK_BINS for _ in range(case.depth)]
        for b in range(case.bs):
            _count(case, b, plain, arrays)
        for name, value in found.items():
            if name == "expected_by_depth":
                for left, right in zip(value, arrays[name], strict=True):
                    assert math.isclose(left, right, abs_tol=1e-3), (name, value, arrays[name])
            elif isinstance(value, list):
                assert value == arrays[name], (name, value, arrays[name])
            else:
                assert value == plain[name], (name, value, plain[name])
            seen[name] += sum(map(bool, value)) if isinstance(value, list) else value
    assert all(seen.values()), f"the cases do not show {[name for name, times in seen.items() if not times]}"


def _count(case: Case, b: int, plain: Counter[str], arrays: dict[str, Any]) -> None:
    """Account for one request the slow way."""
    tree, accepted = case.tree, case.accepted
    length = int(accepted.accept_len[b])
    path = accepted.path[b, : length + 1].tolist()
    nodes = [i for i in range(1, case.width) if tree.valid[b, i]]
    ranks = [int(tree.rank[b, node]) for node in path[1:]]
    bonus = int(accepted.bonus[b])
    plain.update(
        requests=1,
        accepted_drafts=length,
        branch_paths=int(any(ranks)),
        non_first_accepted=sum(rank > 0 for rank in ranks),
        moved_slots=int(case.moved[b]),
        nodes_built=len(nodes),
        nodes_padded=case.width - 1 - len(nodes),
        prefix_paths=int(path == list(range(length + 1))),
        full_paths=int(length == case.depth),
    )
    arrays["accept_length_histogram"][length] += 1
    arrays["leaf_ends"][length] += not any(int(tree.parent[b, i]) == path[-1] for i in nodes)
    arrays["tree_depth_histogram"][max([int(tree.depth[b, i]) for i in nodes], default=0)] += 1
    for node in nodes:
        arrays["nodes_by_depth"][int(tree.depth[b, node]) - 1] += 1
        arrays["expected_by_depth"][int(tree.depth[b, node]) - 1] += math.exp(int(tree.score[b, node]) / 2**32)
    for depth, rank in enumerate(ranks):
        arrays["accepted_rank_by_depth"][depth][min(rank, RANK_BINS - 1)] += 1
        arrays["accepted_rank_histogram"][min(rank, RANK_BINS - 1)] += 1
        arrays["accepted_by_depth"][depth] += 1
    for depth in range(min(length + 1, case.depth)):
        arrays["reached_by_depth"][depth] += 1
    if length < case.depth:
        candidates = case.ids[b, length].tolist()
        if bonus in candidates:
            arrays["first_miss_rank"][candidates.index(bonus)] += 1
        else:
            plain["first_miss_outside"] += 1


def check_probabilities_are_those_of_exp(device: str) -> None:
    """Calibration compares these sums with what was accepted: an error of the size of the finding would hide it."""
    scores = -(torch.rand(5000, generator=torch.Generator().manual_seed(2)) * 30 * 2**32).long()
    scores = torch.cat([scores, torch.tensor([0, -1, -(1 << 32), -(1 << 56), 1])]).to(device)
    exact = torch.exp(scores.double().clamp(max=0) / 2**32)
    assert float((probability(scores) / 2**EXPECTED_BITS - exact).abs().max()) < 6e-6
    from ddtree.build.triton_count import count_into

    case = Case(30, 2, 3, 4, 6)  # all floors: probabilities of 0 must not borrow from the number of nodes
    case.tree.score[:, 1:] = -(1 << 56)
    layout = case.layout()
    counts = torch.zeros(layout.size, dtype=torch.int64, device=device)
    count_into(counts, layout, *case.to(device))
    twin = torch.zeros(layout.size, dtype=torch.int64)
    add_step(twin, layout, case.tree, case.ids, case.accepted, case.moved)
    assert torch.equal(counts.cpu(), twin)
    assert int(twin[layout.at("expected_by_depth") :][: case.depth + 1].sum()) == 0


def check_the_spine_is_as_long_as_the_tree_is_deep(device: str) -> None:
    """Why the spine (rank 0 at every depth) has no counter: an exact tree holds it down to its deepest node."""
    for seed in range(40):
        case = Case(seed, 4, 7, 6, 3 + seed)
        for b in range(case.bs):
            tree, node, spine = case.tree, 0, 0
            while True:
                child = int(tree.retrieve_next_token[b, node])
                if child < 0:
                    break
                assert int(tree.rank[b, child]) == 0
                node, spine = child, spine + 1
            assert spine == int(tree.depth[b].max())


def check_candidates_that_do_not_fit_are_refused(device: str) -> None:
    """Counters made for fewer ranks would be written beyond their end."""
    from ddtree.build.triton_count import count_into

    case = Case(1, 2, 3, 9, 6)
    layout = Layout(4, 8)
    counts = torch.zeros(layout.size, dtype=torch.int64, device=device)
    for wrong in (layout, Layout(5, 9)):
        refused = False
        try:
            count_into(counts, wrong, *case.to(device))
        except ValueError:
            refused = True
        assert refused, wrong


def check_samples_of_the_clock_are_whole(device: str) -> None:
    """A stage that left no stamp, or one of an earlier step, must not be counted as a very long or negative one."""
    from ddtree.build import triton_clock

    stamps = torch.zeros(4, dtype=torch.int64, device=device)
    sums = torch.zeros((3, 5), dtype=torch.int64, device=device)

    def step(times: list[int | None], end: int) -> None:
        for place, at in enumerate(times):
            if at is not None:
                triton_clock.stamp(stamps, place, torch.tensor([at], device=device))
        triton_clock.collect(stamps, sums, 1, torch.tensor([end], device=device))
        assert stamps.tolist() == [0] * 4

    step([100, 250, 270, 900], 1000)
    assert sums.tolist() == [[0] * 5, [150, 20, 630, 100, 1], [0] * 5]
    step([1100, None, 1200, 1300], 1400)
    step([1100, 50, 1200, 1300], 1400)
    assert sums[1].tolist() == [150, 20, 630, 100, 1]
    step([2000, 2001, 2003, 2007], 2015)
    assert sums[1].tolist() == [151, 22, 634, 108, 2]


def check_one_step_in_so_many_is_timed(device: str) -> None:
    """The time split must not cost every step, and its stages must be told apart, by width."""
    timing = _adapter("timing")
    assert timing.from_environment(device, {settings.ENV_TIME_EVERY: "0"}) is None
    timing.passed("draft")  # without a timer: nothing
    timer = timing.from_environment(device, {settings.ENV_TIME_EVERY: "3"})
    assert timer is metrics.timing
    for number in range(12):
        timer.begin()
        assert timer.sampling == (number % 3 == 2)
        time.sleep(0.003)
        timing.passed("draft")
        timing.passed("build")
        time.sleep(0.006)
        if number != 8:  # a step that could not say when its verify pass ended
            timing.passed("verify")
        timer.end(17 if number < 6 else 33)
    found = timer.read()
    assert found["clock"] == ("gpu" if device != "cpu" else "host")
    assert (found["samples"], found["by_width"]["17"]["samples"], found["by_width"]["33"]["samples"]) == (3, 2, 1)
    metrics.timing = None
    if device == "cpu":
        assert found["draft_us"] >= 3 * 3000
        assert found["verify_us"] >= 3 * 6000
        assert found["build_us"] + found["commit_us"] < found["draft_us"]


def _adapter(name: str) -> Any:
    """Import an adapter that needs nothing of SGLang."""
    package = types.ModuleType("ddtree.adapters")
    package.__path__ = [str(Path(metrics.__file__).parent / "adapters")]
    sys.modules.setdefault("ddtree.adapters", package)
    return importlib.import_module(f"ddtree.adapters.{name}")


CHECKS = {name: check for name, check in list(globals().items()) if name.startswith("check_")}


if __name__ == "__main__":
    from check_runner import run

    run(CHECKS, "cpu")
