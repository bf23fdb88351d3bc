"""``--budget auto``: what a wide recording says of smaller budgets, what steps cost, and what is recommended. Pure."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ddtree_ops.bench import auto, costs
from ddtree_ops.bench.costs import Probe, StepModel
from ddtree_ops.bench.schema import Cell, Cost, Interval
from kernels.ddtree.tree import heap, walk
from kernels.ddtree.tree.definition import Tree


def test_a_smaller_budget_accepts_the_nodes_that_its_tree_has() -> None:
    """Nodes are in score order, so the tree of budget b is the first b nodes of a wider one."""
    recorded = [[0, 1, 4, 9], [0], [0, 2]]
    assert auto.accept_length(recorded, 9) == pytest.approx((4 + 1 + 2) / 3)
    assert auto.accept_length(recorded, 4) == pytest.approx((3 + 1 + 2) / 3)
    assert auto.accept_length(recorded, 1) == pytest.approx((2 + 1 + 1) / 3)
    assert auto.accept_length([], 8) is None


def test_what_is_counted_is_what_the_smaller_tree_would_have_accepted() -> None:
    """Against the definition: wide and narrow trees of the same draft, walked with the same target."""
    draw = random.Random(7)
    longest = 0
    for number in range(40):
        ids = [draw.sample(range(6), 3) for _ in range(4)]
        scores = [sorted((-draw.random() * 3 for _ in range(3)), reverse=True) for _ in range(4)]
        wide, narrow = (heap.build_tree(0, ids, scores, budget) for budget in (12, 5))
        path, small = (
            walk.accept(tree, [_target(tree, node, number) for node in range(len(tree))])[0] for tree in (wide, narrow)
        )
        assert sum(node <= 5 for node in path[1:]) == len(small) - 1
        longest = max(longest, len(path))
    assert longest > 2, "no path was long enough to say anything"


def _target(tree: Tree, node: int, seed: int) -> int:
    """The target's token after a node: a function of the tokens on the way to it, as of a real target."""
    path = []
    while node:
        path.append(tree.token[node])
        node = tree.parent[node]
    return random.Random(f"{seed}/{path}").randrange(6)


COSTS = tuple(Cost(batch=b, width=w, verify_us=1000.0 + 10 * b * w) for b in (1, 4) for w in (9, 17, 33))


def test_step_from_the_payloads_own_table() -> None:
    """Verify time of the padded graph, linear in width, plus what a probed step took beyond it."""
    model = StepModel(COSTS, [Probe(concurrency=2, budget=32, step_us=1000 + 10 * 4 * 33 + 500)])
    assert model.verify_us(33, 2) == 1000 + 10 * 4 * 33  # two requests are padded to the graph of four
    assert model.step_us(16, 2) == pytest.approx(1000 + 10 * 4 * 17 + 500)
    assert model.step_us(12, 2) == pytest.approx(1000 + 10 * 4 * 13 + 500)
    assert model.step_us(16, 8) is None, "nothing was probed at this concurrency"


def test_step_from_short_runs_where_there_is_no_table() -> None:
    probes = [Probe(concurrency=1, budget=b, step_us=t) for b, t in ((8, 100.0), (16, 120.0), (64, 240.0))]
    model = StepModel((), probes)
    assert model.step_us(12, 1) == pytest.approx(110.0)
    assert model.step_us(40, 1) == pytest.approx(180.0)
    assert model.step_us(4, 1) == pytest.approx(90.0)
    assert model.step_us(1024, 1) == pytest.approx(240 + 960 * 2.5)
    assert StepModel((), [probes[0]]).step_us(64, 1) == 100.0


def test_table_of_the_beacon_is_read_with_care() -> None:
    table = [{"batch": 1, "width": 9, "us": 700}, {"batch": "x"}, 3, {"batch": 1, "width": 9, "us": 0}]
    found = costs.from_settings({"verify_costs": table})
    assert found == (Cost(batch=1, width=9, verify_us=700.0),)
    assert costs.from_settings({}) == ()


def test_probe_takes_the_median_step_and_no_request_that_failed() -> None:
    requests = [
        {"ok": True, "ttft_s": 0.1, "total_s": 1.1, "verify_ct": 10, "tokens": 40},
        {"ok": True, "ttft_s": 0.1, "total_s": 2.1, "verify_ct": 10, "tokens": 40},
        {"ok": True, "ttft_s": 0.1, "total_s": 1.3, "verify_ct": 10, "tokens": 40},
        {"ok": False, "ttft_s": None, "total_s": 9.0, "verify_ct": 0, "tokens": 0},
    ]
    probe = costs.probe_of(requests, concurrency=2, budget=16)
    assert probe is not None
    assert probe.step_us == pytest.approx(120_000)
    assert costs.probe_of(requests[3:], concurrency=2, budget=16) is None


def predicted(cost_of_width: float) -> tuple[Any, ...]:
    """Two regimes whose accepted paths grow with the budget; a step costs more by ``cost_of_width`` per node."""
    traces = {"chat": [[0, 1, 9], [0, 3], [0, 1, 2, 20]], "code": [[0, 1, 2, 3, 30], [0, 1]]}
    probes = [
        Probe(concurrency=c, budget=b, step_us=1000 + cost_of_width * c * b, ttft_s=0.01, tokens=64)
        for c in (1, 8)
        for b in (8, 32)
    ]
    return auto.predict(traces, StepModel((), probes), probes, (8, 16, 32), (1, 8))


def test_prediction_is_tokens_over_the_time_of_a_request() -> None:
    one = next(p for p in predicted(0.0) if (p.budget, p.concurrency, p.regime) == (8, 8, "chat"))
    length = (2 + 2 + 3) / 3
    assert one.tokens_per_verify == pytest.approx(length)
    assert one.tok_per_s == pytest.approx(8 * 64 / (0.01 + 64 / length * 1e-3))


def test_wide_trees_are_chosen_where_width_is_free_and_narrow_ones_where_it_is_not() -> None:
    assert 32 in auto.to_measure(predicted(0.0), per_concurrency=1)
    assert auto.to_measure(predicted(200.0), per_concurrency=1) == (8,)
    assert auto.to_measure(predicted(200.0)) == (8, 16)


def test_recommendation_is_what_was_measured_best_and_shows_the_error() -> None:
    """The prediction may be wrong: what is recommended is measured."""
    predictions = predicted(0.0)

    def cell(budget: int, concurrency: int, regime: str, rate: float, **more: Any) -> Cell:
        value = Interval(median=rate, low=rate, high=rate)
        return Cell(
            arm="ddtree", budget=budget, regime=regime, concurrency=concurrency, runs=1, tok_per_s=value, **more
        )

    cells = [
        cell(budget, count, regime, 100.0 if budget == 16 else 60.0)
        for budget in (16, 32)
        for count in (1, 8)
        for regime in ("chat", "code")
    ]
    found = auto.recommend(predictions, cells, "short runs")
    assert found.recommended == {"1": 16, "8": 16, "all": 16}
    assert found.text[0].startswith("recommended budget: 16")
    assert any("predicted" in line and "%" in line for line in found.text)
    measured = [one for one in found.predictions if one.measured_tok_per_s is not None]
    assert len(measured) == len(cells)
    nothing = auto.recommend(predictions, [cell(16, 1, "chat", 9.0, valid=False, why=("x",))], "short runs")
    assert nothing.recommended == {}
    assert "no budget is recommended" in nothing.text[0]


def test_one_fast_regime_does_not_outweigh_the_others() -> None:
    """Scores are geometric means over regimes: 10x on code and half on chat is not a gain everywhere."""
    rates = {(8, "chat"): 100.0, (8, "code"): 100.0, (32, "chat"): 40.0, (32, "code"): 240.0}
    assert auto._best(rates) == 8
