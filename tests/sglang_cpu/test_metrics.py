"""DDTREE's metrics on a real server: SGLang's own ``/metrics`` and ``/server_info``, compared with the beacon."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.sglang_cpu.runs import BLOCK, BUDGET, DDTreeRun
from tests.sglang_cpu.servers import REPOSITORY, Environment

sys.path.insert(0, str(REPOSITORY / "kernels"))
from ddtree import exported

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

#: Nothing to say on a CPU: there are no graphs to fall back from, and no GPU memory.
WITHOUT_SERIES = {"ddtree_fallback_steps_total"}
PARSE = """
import json, sys
from prometheus_client.parser import text_string_to_metric_families
print(json.dumps([
    [family.name, family.type, family.documentation, [[s.name, s.labels, s.value] for s in family.samples]]
    for family in text_string_to_metric_families(sys.stdin.read()) if family.name.startswith("ddtree_")
]))
"""


@pytest.fixture(scope="module")
def families(cpu_environment: Environment, ddtree_run: DDTreeRun) -> dict[str, Any]:
    """Family -> (type, help, samples), as prometheus_client's own parser reads them."""
    read = json.loads(cpu_environment.run("-c", PARSE, text=ddtree_run.metrics))
    return {name: (kind, text, samples) for name, kind, text, samples in read}


def _samples(families: dict[str, Any], name: str) -> dict[tuple[str, ...], float]:
    """Label values in the order of the table -> value."""
    metric = next(metric for metric in exported.METRICS if metric.name == name)
    _, _, samples = families[name.removesuffix("_total")]
    found = {}
    for sample, labels, value in samples:
        if sample == name:
            assert set(labels) == set(metric.labels), name
            found[tuple(labels[label] for label in metric.labels)] = value
    return found


def test_every_metric_is_there(families: dict[str, Any]) -> None:
    """Names, types and help of the table, nothing beside it; a library that renames or drops one would be seen."""
    wanted = [metric for metric in exported.METRICS if metric.name not in WITHOUT_SERIES]
    assert families.keys() == {metric.name.removesuffix("_total") for metric in wanted}
    for metric in wanted:
        kind, text, _ = families[metric.name.removesuffix("_total")]
        assert (kind, text) == (metric.kind, metric.help)
        assert _samples(families, metric.name), metric.name


def test_values_are_those_of_the_beacon(families: dict[str, Any], ddtree_run: DDTreeRun) -> None:
    """Two ways to the same counters: a reading that is added twice, or shifted by one label, parts them."""
    counters = ddtree_run.counters_end
    assert _samples(families, "ddtree_request_steps_total") == {(): counters["requests"]}
    assert _samples(families, "ddtree_accepted_drafts_total") == {(): counters["accepted_drafts"]}
    lengths = _samples(families, "ddtree_accept_length_total")
    assert [lengths[(str(n + 1),)] for n in range(BLOCK)] == counters["accept_length_histogram"]
    depths = _samples(families, "ddtree_depth_accepted_total")
    assert [depths[(str(n),)] for n in range(1, BLOCK)] == counters["accepted_by_depth"]
    assert sum(depths.values()) == counters["accepted_drafts"]
    assert sum(_samples(families, "ddtree_first_miss_rank_total").values()) == counters["requests"]
    steps = _samples(families, "ddtree_steps_total")
    assert sum(steps.values()) == counters["verify_steps"]
    for place, name in enumerate(("steps_by_width", "steps_by_budget", "steps_by_shape", "steps_by_reason")):
        sums: dict[str, float] = {}
        for labels, value in steps.items():
            sums[labels[place]] = sums.get(labels[place], 0) + value
        assert sums == counters[name]
    assert {"tree", "chain"} <= counters["steps_by_shape"].keys()
    assert {"fixed", "control"} <= counters["steps_by_reason"].keys()


def test_refusals_are_counted_by_reason(families: dict[str, Any], ddtree_run: DDTreeRun) -> None:
    """Which feature people miss is what decides what to build next."""
    found = _samples(families, "ddtree_refused_requests_total")
    assert found == {(reason,): 1 for reason in ddtree_run.refusals}


def test_time_split_says_that_a_hosts_clock_took_it(families: dict[str, Any], ddtree_run: DDTreeRun) -> None:
    """On a CPU there are no GPU times: a label that did not say so would make them look like ones."""
    seconds = _samples(families, "ddtree_stage_seconds_total")
    assert seconds.keys() == {(stage, "host") for stage in ("draft", "build", "verify", "commit")}
    assert all(value > 0 for value in seconds.values())
    samples = _samples(families, "ddtree_stage_samples_total")[("host",)]
    assert samples == ddtree_run.counters_end["verify_steps"] // 8


def test_counters_of_the_device_agree_with_each_other(ddtree_run: DDTreeRun) -> None:
    """Depths, ranks, misses and trees are counted in different places of the kernel's twin."""
    counters = ddtree_run.counters_end
    steps, accepted = counters["requests"], counters["accepted_drafts"]
    assert sum(map(sum, counters["accepted_rank_by_depth"])) == accepted
    assert [sum(row) for row in counters["accepted_rank_by_depth"]] == counters["accepted_by_depth"]
    assert sum(counters["tree_depth_histogram"]) == sum(counters["accept_length_histogram"]) == steps
    assert sum(counters["nodes_by_depth"]) == counters["nodes_built"]
    assert sum(counters["first_miss_rank"]) + counters["first_miss_outside"] + counters["full_paths"] == steps
    assert 0 < counters["prefix_paths"] < steps
    assert len(counters["first_miss_rank"]) == BUDGET
    expected, taken = sum(counters["expected_by_depth"]), accepted
    assert 0.5 < expected / taken < 2, "the drafter's probabilities are not those of its paths"


def test_server_info_has_build_settings_and_counters(ddtree_run: DDTreeRun) -> None:
    """Whoever asks the server instead of the run folder must get the same answer."""
    (state,) = ddtree_run.info["internal_states"]
    found = state["ddtree"]
    assert found["settings"]["budget"] == BUDGET
    assert found["counters"]["requests"] == ddtree_run.counters_end["requests"]
    assert found["counters"]["steps_by_shape"] == ddtree_run.counters_end["steps_by_shape"]
    assert {"build_id", "release_id"} <= found.keys()
    start = found["settings"]["start"]
    assert start["seconds"]["process"] > 0
    assert start["seconds"]["target_weights"] == pytest.approx(state["startup_time"]["load_weight"], abs=5)
