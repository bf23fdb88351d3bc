"""Tensor parallelism on a real SGLang server: two ranks on the CPU, gloo between them, compared after every step.

The control is plain decoding by two ranks as well: each rank rounds its part of a sum to bfloat16 before the parts are
added, so two ranks part from one rank at ties that are not as near.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sglang_cpu.asking import BATCHES, TOKENS
from tests.sglang_cpu.runs import BUDGET, LOWERED, PAIR, Answers, beacons
from tests.sglang_cpu.servers import Environment, Server, serving
from tests.sglang_cpu.test_ddtree_serves import NEAR_TIE_STEPS, _compare, _computed, _prompt_ids

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

PROMPTS = [prompt for batch in BATCHES for prompt in batch]


@dataclass
class ParallelRun:
    """What a server of two ranks did."""

    plain: Answers = field(default_factory=list)  # two ranks without speculation
    answers: Answers = field(default_factory=list)
    sampled: Answers = field(default_factory=list)
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)  # beacons by rank, after the greedy answers
    lowered: dict[int, dict[str, Any]] = field(default_factory=dict)  # and after the control file's change
    automatic: dict[int, dict[str, Any]] = field(default_factory=dict)  # and with the automatic budget
    log: str = ""


@pytest.fixture(scope="module")
def run(cpu_environment: Environment, patched_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> ParallelRun:
    """Greedy and sampled answers of a server with two ranks, then with a smaller budget."""
    work = tmp_path_factory.mktemp("tp")
    run_dir = work / "run"
    run_dir.mkdir()
    found = ParallelRun()
    two = {"SGLANG_CPU_OMP_THREADS_BIND": "0|0", "TORCHDYNAMO_DISABLE": "1"}
    with serving(cpu_environment, PAIR / "target", work / "plain", "--tp-size", "2", **two) as server:
        found.plain = [answer for batch in BATCHES for answer in server.generate(batch, TOKENS)]
    with serving(
        cpu_environment, PAIR / "target", work / "log",
        "--tp-size", "2", "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", PAIR / "draft",
        tree=patched_tree, DDTREE_BUDGET=str(BUDGET), DDTREE_RUN_DIR=str(run_dir), DDTREE_COMPARE_RANKS="1", **two,
    ) as server:  # fmt: skip
        found.answers = [answer for batch in BATCHES for answer in server.generate(batch, TOKENS)]
        found.sampled = server.generate(BATCHES[-1], TOKENS, temperature=0.8)
        found.ranks = _by_rank(run_dir)
        found.lowered = _controlled(server, run_dir, {"budget": LOWERED})
        found.automatic = _controlled(server, run_dir, {"budget": "auto"})
    found.log = (work / "log").read_text("utf-8", "replace")
    return found


def _controlled(server: Server, run_dir: Path, asked: dict[str, Any]) -> dict[int, dict[str, Any]]:
    (run_dir / "control.json").write_text(json.dumps(asked), "utf-8")
    time.sleep(2.5)
    server.generate(BATCHES[-1], TOKENS)
    return _by_rank(run_dir)


def _by_rank(run_dir: Path) -> dict[int, dict[str, Any]]:
    found = [beacon for beacon in beacons(run_dir) if beacon["settings"].get("tp_rank") is not None]
    return {beacon["settings"]["tp_rank"]: beacon for beacon in found}


def test_tokens_are_those_of_plain_decoding(
    cpu_environment: Environment, run: ParallelRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shard's offset, a lost candidate or another rank's tree changes tokens; only near ties may differ."""
    # Two parts and their sum are rounded where one rank rounds once: twice the distance of a near tie.
    equal, near, real = _compare(cpu_environment, run.plain, run.answers, PROMPTS, 2 * NEAR_TIE_STEPS)
    with capsys.disabled():
        print(f"\ntwo ranks: {equal} of {len(PROMPTS)} equal, {len(near)} near ties", *near, sep="\n  ")
    assert not real, real
    assert equal >= len(PROMPTS) // 2


def test_steps_are_those_of_one_rank_offline(cpu_environment: Environment, run: ParallelRun) -> None:
    """Candidates of one shard only, or with the other's ids, give the right tokens in too many steps."""
    cases = [
        {"prompt": _prompt_ids(cpu_environment, prompt), "answer": answer["output_ids"]}
        for prompt, answer in zip(PROMPTS, run.answers, strict=True)
    ]
    offline = _computed(cpu_environment, "offline_steps.py", str(PAIR), str(BUDGET), data=cases)
    served = [answer["meta_info"]["spec_verify_ct"] for answer in run.answers]
    assert abs(sum(served) - sum(offline)) <= max(2, 0.05 * sum(offline)), (served, offline)


def test_ranks_were_compared_and_never_differed(run: ParallelRun) -> None:
    """Every step's trees, target tokens and paths; the server ends at the first difference."""
    assert "DDTREE compares all 2 ranks after every step" in run.log
    assert "differ in" not in run.log
    assert all(answer["meta_info"]["completion_tokens"] == TOKENS for answer in [*run.answers, *run.sampled])


def test_both_ranks_did_the_same(run: ParallelRun) -> None:
    """Each process has a beacon of its own, and its rank in it."""
    assert sorted(run.ranks) == [0, 1]
    assert all(beacon["settings"]["tp_size"] == 2 for beacon in run.ranks.values())
    first, second = (run.ranks[rank]["counters"] for rank in (0, 1))
    same = ("requests", "accepted_drafts", "nodes_built", "branch_paths", "moved_slots", "accept_length_histogram")
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert first["branch_paths"] > 0
    assert first["accepted_drafts"] > first["requests"]


def test_a_control_file_reaches_all_ranks_at_the_same_step(run: ParallelRun) -> None:
    """Ranks that see the file's change at different steps build trees of different sizes; these are compared too."""
    for rank in (0, 1):
        before, after = run.ranks[rank]["counters"], run.lowered[rank]["counters"]
        requests = after["requests"] - before["requests"]
        assert requests > 0
        assert (after["nodes_built"] - before["nodes_built"]) / requests < (LOWERED + BUDGET) / 2
    assert run.lowered[0]["counters"]["nodes_built"] == run.lowered[1]["counters"]["nodes_built"]


def test_the_automatic_budget_is_the_first_rank_s(run: ParallelRun) -> None:
    """Measured times and counters are each rank's own: a controller per rank would part after a few steps."""
    first, second = (run.automatic[rank]["counters"] for rank in (0, 1))
    assert first["requests"] > run.lowered[0]["counters"]["requests"]
    same = ("requests", "accepted_drafts", "nodes_built", "accept_length_histogram")
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
