"""DDTREE on a real SGLang server: the tokens of plain decoding, more of them per step, branches really taken.

What the servers answered is collected once (``runs``); the tests look at it from different sides.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sglang_cpu.asking import BATCHES, PROMPTS, TOKENS
from tests.sglang_cpu.runs import BLOCK, BUDGET, LOWERED, PAIR, DDTreeRun, PlainRun, scheduler_beacon
from tests.sglang_cpu.servers import REPOSITORY, Environment

sys.path.insert(0, str(REPOSITORY / "kernels"))
from ddtree.tree import heap, trace, walk

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]  # the first one starts servers

NEAR_TIE_STEPS = 2.0


@pytest.fixture(scope="session")
def plain(plain_run: PlainRun) -> list[dict[str, Any]]:
    """Greedy answers to ``BATCHES`` of the unmodified server without speculation."""
    return plain_run.batches


@pytest.fixture(scope="session")
def run(ddtree_run: DDTreeRun) -> DDTreeRun:
    """What a DDTREE server did."""
    return ddtree_run


def _first_difference(left: list[int], right: list[int]) -> int | None:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def _compare(
    environment: Environment,
    plain: list[dict[str, Any]],
    other: list[dict[str, Any]],
    prompts: list[str],
    near_tie_steps: float = NEAR_TIE_STEPS,
) -> tuple[int, list[str], list[str]]:
    """Return (equal answers, near ties, real differences)."""
    cases, where = [], []
    for prompt, left, right in zip(prompts, plain, other, strict=True):
        first = _first_difference(left["output_ids"], right["output_ids"])
        if first is None:
            continue
        context = _prompt_ids(environment, prompt) + left["output_ids"][:first]
        cases.append({"context": context, "left": left["output_ids"][first], "right": right["output_ids"][first]})
        where.append(f"{prompt[:30]!r} at token {first}")
    ties = _computed(environment, "near_ties.py", str(PAIR / "target"), data=cases) if cases else []
    near, real = [], []
    for place, tie in zip(where, ties, strict=True):
        line = f"{place}: {tie['distance']:.4f} apart, {tie['steps']:.2f} steps of {tie['step']}"
        (near if tie["steps"] <= near_tie_steps else real).append(line)
    return len(prompts) - len(cases), near, real


def _computed(environment: Environment, script: str, *arguments: str, data: Any) -> Any:
    """Run a script of this folder over data; rounds that gave the same answers share one run."""
    text = json.dumps(data)
    key = (script, *arguments, text)
    if key not in _RUNS:
        _RUNS[key] = json.loads(environment.run("-B", Path(__file__).with_name(script), *arguments, text=text))
    return _RUNS[key]


_RUNS: dict[tuple[str, ...], Any] = {}


def _prompt_ids(environment: Environment, prompt: str) -> list[int]:
    if prompt not in _IDS:
        code = (
            "import json, sys; from tokenizers import Tokenizer; t = Tokenizer.from_file(sys.argv[1]); "
            "print(json.dumps([t.encode(p).ids for p in json.load(sys.stdin)]))"
        )
        answer = environment.run("-c", code, PAIR / "target" / "tokenizer.json", text=json.dumps(PROMPTS))
        _IDS.update(zip(PROMPTS, json.loads(answer), strict=True))
    return _IDS[prompt]


_IDS: dict[str, list[int]] = {}


def test_tokens_are_those_of_plain_decoding(
    cpu_environment: Environment, plain: list[dict[str, Any]], run: DDTreeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong mask, position, commit or draft cache changes tokens; only near ties of the target may differ."""
    prompts = [prompt for batch in BATCHES for prompt in batch]
    for name, answers in zip(("cold", "prefix-cache hits"), run.rounds, strict=True):
        equal, near, real = _compare(cpu_environment, plain, answers, prompts)
        with capsys.disabled():
            print(
                f"\n{name}: {equal} of {len(prompts)} answers equal, {len(near)} differ first at a near tie",
                *near,
                sep="\n  ",
            )
        assert not real, real
        assert equal >= len(prompts) // 2


def test_second_round_hits_the_prefix_cache(run: DDTreeRun) -> None:
    """Without hits the round would not test draft KV under radix reuse."""
    assert all(answer["meta_info"]["cached_tokens"] > 0 for answer in run.rounds[1])
    assert all(answer["meta_info"]["cached_tokens"] == 0 for answer in run.rounds[0][:1])


def test_branches_are_taken(run: DDTreeRun) -> None:
    """A tree that is verified as a chain, or never branches, would still give the right tokens."""
    counters = run.counters
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in run.rounds[0]]
    assert sum(lengths) / len(lengths) > 1.8
    assert counters["non_first_accepted"] > 0
    assert counters["branch_paths"] > 0
    assert counters["moved_slots"] > 0
    assert sum(counters["accepted_rank_histogram"]) == counters["accepted_drafts"]
    histogram = counters["accept_length_histogram"]
    assert sum(histogram) == counters["requests"]
    assert sum(n * count for n, count in enumerate(histogram)) == counters["accepted_drafts"]
    assert 0.7 * BUDGET * counters["requests"] < counters["nodes_built"] <= BUDGET * counters["requests"]


def test_steps_are_those_of_the_offline_walk(
    cpu_environment: Environment, run: DDTreeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right tokens in too many steps: what a broken draft cache or a shifted position looks like from outside."""
    prompts = [prompt for batch in BATCHES for prompt in batch]
    for name, answers in zip(("cold", "prefix-cache hits"), run.rounds, strict=True):
        cases = [
            {"prompt": _prompt_ids(cpu_environment, prompt), "answer": answer["output_ids"]}
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        offline = _computed(cpu_environment, "offline_steps.py", str(PAIR), str(BUDGET), data=cases)
        served = [answer["meta_info"]["spec_verify_ct"] for answer in answers]
        tokens = sum(len(answer["output_ids"]) - 1 for answer in answers)  # the first one comes from prefill
        with capsys.disabled():
            print(
                f"\n{name}: {tokens / sum(served):.3f} tokens per verify step served, "
                f"{tokens / sum(offline):.3f} offline ({sum(served)} and {sum(offline)} steps for {tokens} tokens)"
            )
        assert abs(sum(served) - sum(offline)) <= max(2, 0.04 * sum(offline)), (served, offline)


def test_trees_and_paths_are_those_of_the_oracles(run: DDTreeRun) -> None:
    """Every traced round: the heap gives the same tree from the same candidates, the walk the same path."""
    assert len(run.trace) >= 500
    assert {item.extra["mode"] for item in run.trace} == {"tree", "chain"}
    retracted = run.retracted()
    last: dict[str, trace.TraceRound] = {}
    for item in run.trace:
        ranks = 1 if item.extra["mode"] == "chain" else None
        candidates = [[row[:ranks] for row in rows] for rows in (item.ids, item.log_probs())]
        tree = heap.build_tree(item.bonus_in, *candidates, item.extra["budget"], item.extra["depth_limit"])
        assert item.tree() == tree
        stops = {item.bonus_out} if item.extra.get("stopped") else set()  # nothing is committed behind a stop token
        path, bonus = walk.accept(tree, item.target, stops)
        assert (item.accepted, item.bonus_out) == (list(path), bonus)
        assert item.emitted == [tree.token[node] for node in path[1:]] + [bonus]
        before = last.get(item.req)
        if before is not None and item.req not in retracted:
            assert item.start == before.start + len(before.emitted)
            assert item.bonus_in == before.bonus_out
        last[item.req] = item
    assert any(item.extra.get("stopped") for item in run.trace)


def test_budget_can_be_lowered_at_run_time(
    cpu_environment: Environment, plain: list[dict[str, Any]], run: DDTreeRun
) -> None:
    """control.json changes the trees, not the tokens."""
    added = {name: run.counters_lowered[name] - run.counters[name] for name in ("requests", "nodes_built")}
    assert added["requests"] > 0
    assert 0.7 * LOWERED * added["requests"] < added["nodes_built"] <= LOWERED * added["requests"]
    _, _, real = _compare(cpu_environment, plain[-4:], run.lowered, BATCHES[-1])
    assert not real, real


def test_chains_can_be_asked_for_at_run_time(
    cpu_environment: Environment, plain: list[dict[str, Any]], run: DDTreeRun
) -> None:
    """The linear scheme in the same server: block size - 1 nodes, no branch, the same tokens."""
    added = run.counters_chain
    assert added["requests"] > 0
    assert 0.7 * (BLOCK - 1) * added["requests"] < added["nodes_built"] <= (BLOCK - 1) * added["requests"]
    assert added["branch_paths"] == 0
    _, _, real = _compare(cpu_environment, plain[-4:], run.chained, BATCHES[-1])
    assert not real, real


def test_sampling_is_served(run: DDTreeRun) -> None:
    """Temperature must not be answered greedily, and trees must still pay. (The law is tested on the kernels.)"""
    texts = [tuple(answer["output_ids"]) for answer in run.sampled]
    assert all(len(ids) == TOKENS for ids in texts)
    assert texts[:4] != texts[4:]
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in run.sampled]
    assert sum(lengths) / len(lengths) > 1.3


def test_unsupported_requests_are_refused_with_a_reason(run: DDTreeRun) -> None:
    """Sampling must not be answered greedily; nothing unsupported may be ignored silently."""
    for reason, (status, answer) in run.refusals.items():
        assert status == 400, (reason, answer)
        assert answer["error"]["message"].startswith("DDTREE"), answer
        assert run.counters_end[f"refused_{reason}"] == 1


def test_every_process_says_what_it_runs(run: DDTreeRun, patched_tree: Path) -> None:
    """Attestation reads these files: identity, settings, and the files that were really imported."""
    titles = sorted(beacon["argv"][0].rsplit("/", 1)[-1] for beacon in run.beacons)
    assert len(titles) >= 3
    assert {"sglang::scheduler", "sglang::detokenizer"} <= set(titles)
    scheduler = scheduler_beacon(run.beacons)
    assert scheduler["settings"]["algorithm"] == "DDTREE"
    assert (scheduler["settings"]["budget"], scheduler["settings"]["width"]) == (BUDGET, BUDGET + 1)
    paths = {item["module"]: item["path"] for item in scheduler["files"]}
    for module in ("sglang.srt.speculative.spec_info", "sglang.srt.speculative.ddtree.adapters.worker_v2"):
        assert paths[module].startswith(str(patched_tree))
