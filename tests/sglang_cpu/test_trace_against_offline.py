"""The server's trace against our own offline decoder, L0 to L4: the tree, the path, the output, the accept length.

The two share the tree's definition and nothing else: another loop, other attention and cache, another drafter.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_ops.baseline import compare, traces
from ddtree_ops.baseline.levels import Level
from tests.sglang_cpu.asking import BATCHES, TOKENS
from tests.sglang_cpu.runs import BUDGET, PAIR, DDTreeRun
from tests.sglang_cpu.servers import REPOSITORY, Environment

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


@pytest.fixture(scope="session")
def offline(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> traces.Trace:
    """The same prompts, decoded offline as served: bfloat16, greedy."""
    folder = tmp_path_factory.mktemp("offline")
    texts = [text for batch in BATCHES for text in batch]
    (folder / "prompts").write_text("".join(json.dumps({"id": t[:20], "text": t}) + "\n" for t in texts), "utf-8")
    cpu_environment.run(
        "-B", "-m", "ddtree_ops.baseline.offline", "--target", PAIR / "target", "--drafter", PAIR / "draft",
        "--prompts", folder / "prompts", "--budgets", str(BUDGET), "--max-tokens", str(TOKENS), "--ignore-eos",
        "--device", "cpu", "--threads", "1", "--no-control", "--out", folder / "trace",
        variables=cpu_environment.variables(REPOSITORY),
    )  # fmt: skip
    return traces.load(folder / "trace")


@pytest.fixture(scope="module")
def served(ddtree_run: DDTreeRun, tmp_path_factory: pytest.TempPathFactory) -> traces.Trace:
    """Of the server's trace the requests of its first, cold round."""
    cold = {answer["meta_info"]["id"] for answer in ddtree_run.rounds[0]}
    lines = ddtree_run.trace_file.read_text("utf-8").splitlines()
    kept = [line for line in lines if json.loads(line).get("req") in cold or json.loads(line)["kind"] == "header"]
    path = tmp_path_factory.mktemp("served") / "trace"
    path.write_text("".join(line + "\n" for line in kept), "utf-8")
    return traces.load(path)


@pytest.fixture(scope="module")
def found(offline: traces.Trace, served: traces.Trace) -> dict[str, Level]:
    """The comparison by level."""
    return {one.level: one for one in compare.compare(offline, served).levels}


@pytest.mark.parametrize(("level", "least"), [("L0", 200), ("L1", 50), ("L2", 1000), ("L3", 12), ("L4", 12)])
def test_offline_and_server_agree(
    found: dict[str, Level], level: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing differs beyond near ties, and enough was really compared to say so."""
    one = found[level]
    with capsys.disabled():
        print(f"\n{level}: {one.checked} {one.unit}, {one.near_ties} near ties, {one.figures}")
    assert not one.failures, one.differences
    assert one.checked >= least, one.skipped


def test_most_trees_are_the_same(found: dict[str, Level]) -> None:
    """Near ties may not be what most trees differ by: a drafter that sees a shifted context has other trees."""
    assert found["L1"].figures["overlap"] > 0.93


def test_every_round_of_the_whole_trace_stands_by_itself(ddtree_run: DDTreeRun) -> None:
    """Also lowered budgets, chains, sampled, penalised and seeded requests: tree from candidates, path from choices."""
    whole: Path = ddtree_run.trace_file
    trace = traces.load(whole)
    modes = {one.extra["mode"] for one in trace.rounds}
    assert modes == {"tree", "chain"}
    for request in trace.requests:
        for one in request.rounds:
            assert compare.rebuilt(one, trace.header.budget) == "", (request.req, one.round)
            assert compare.walked(one) == "", (request.req, one.round)
    assert any(one.extra.get("adjusted") for one in trace.rounds)
    assert any(one.extra["temperature"] > 0 for one in trace.rounds)
