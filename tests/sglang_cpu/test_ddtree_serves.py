"""DDTREE on a real SGLang server: the tokens of plain decoding, more of them per step, branches really taken.

Two servers run one after the other, both with the trained pair in bfloat16: plain, then DDTREE with overlap scheduling.
What they answered is collected once; the tests look at it from different sides.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sglang_cpu.conftest import PAIR
from tests.sglang_cpu.servers import REPOSITORY, Environment, Server, serving

sys.path.insert(0, str(REPOSITORY / "kernels"))
from ddtree.tree import heap, trace, walk

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

BUDGET, LOWERED, TOKENS, BLOCK = 16, 4, 48, 16
NEAR_TIE_STEPS = 2.0
PROMPTS = [json.loads(line)["text"] for line in (PAIR.parent / "prompts.jsonl").read_text("utf-8").splitlines()][:12]
BATCHES = [PROMPTS[0:1], PROMPTS[1:2], PROMPTS[2:3], PROMPTS[3:4], PROMPTS[4:8], PROMPTS[8:12]]
REFUSED = {
    "grammar": {"sampling_params": {"temperature": 0, "max_new_tokens": 4, "regex": "a+"}},
    "budget": {"sampling_params": {"max_new_tokens": 4, "custom_params": {"ddtree": {"budget": BUDGET + 1}}}},
    "seed": {"sampling_params": {"max_new_tokens": 4, "sampling_seed": 1 << 63}},
}


@dataclass
class Run:
    """What one DDTREE server did."""

    rounds: list[list[dict[str, Any]]] = field(default_factory=list)  # cold, then with prefix-cache hits
    lowered: list[dict[str, Any]] = field(default_factory=list)  # after control.json
    chained: list[dict[str, Any]] = field(default_factory=list)  # after control.json asked for chains
    sampled: list[dict[str, Any]] = field(default_factory=list)  # temperature 0.7, twice the same prompts
    refusals: dict[str, tuple[int, Any]] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)  # after the two rounds
    counters_lowered: dict[str, Any] = field(default_factory=dict)
    counters_chain: dict[str, Any] = field(default_factory=dict)  # what the chains added
    counters_end: dict[str, Any] = field(default_factory=dict)
    beacons: list[dict[str, Any]] = field(default_factory=list)
    trace: list[trace.TraceRound] = field(default_factory=list)


def _ask_all(server: Server) -> list[dict[str, Any]]:
    return [answer for batch in BATCHES for answer in server.generate(batch, TOKENS)]


def _beacons(folder: Path) -> list[dict[str, Any]]:
    time.sleep(2.5)  # the beacon looks once a second
    return [json.loads(path.read_text("utf-8")) for path in folder.glob("[0-9]*.json")]


def _scheduler(beacons: list[dict[str, Any]]) -> dict[str, Any]:
    return next(beacon for beacon in beacons if beacon["argv"] == ["sglang::scheduler"])


@pytest.fixture(scope="module")
def plain(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Answers of the unmodified server without speculation."""
    log = tmp_path_factory.mktemp("plain") / "log"
    with serving(cpu_environment, PAIR / "target", log) as server:
        return _ask_all(server)


@pytest.fixture(scope="module", params=["overlap", "sync"])
def run(
    request: pytest.FixtureRequest,
    cpu_environment: Environment,
    patched_tree: Path,
    plain: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Everything that a DDTREE server is asked; ``plain`` comes first, so that one server runs at a time."""
    work = tmp_path_factory.mktemp("ddtree")
    run_dir = work / "run"
    run_dir.mkdir()
    found = Run()
    options = [] if request.param == "overlap" else ["--disable-overlap-schedule"]
    with serving(
        cpu_environment, PAIR / "target", work / "log",
        "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", PAIR / "draft", *options,
        tree=patched_tree, DDTREE_BUDGET=str(BUDGET), DDTREE_RUN_DIR=str(run_dir), DDTREE_TRACE=str(work / "trace"),
    ) as server:  # fmt: skip
        found.rounds = [_ask_all(server), _ask_all(server)]
        found.counters = _scheduler(_beacons(run_dir))["counters"]
        (run_dir / "control.json").write_text(json.dumps({"budget": LOWERED}), "utf-8")
        time.sleep(2.5)
        found.lowered = server.generate(BATCHES[-1], TOKENS)
        found.counters_lowered = _scheduler(_beacons(run_dir))["counters"]
        (run_dir / "control.json").write_text(json.dumps({"mode": "chain"}), "utf-8")
        time.sleep(2.5)
        before = _scheduler(_beacons(run_dir))["counters"]
        found.chained = server.generate(BATCHES[-1], TOKENS)
        after = _scheduler(_beacons(run_dir))["counters"]
        names = ("requests", "nodes_built", "branch_paths")
        found.counters_chain = {name: after[name] - before[name] for name in names}
        (run_dir / "control.json").unlink()
        time.sleep(2.5)
        found.sampled = [answer for _ in range(2) for answer in server.generate(BATCHES[-1], TOKENS, temperature=0.7)]
        for reason, body in REFUSED.items():
            found.refusals[reason] = server.post("/generate", {"text": "abc", **body})
        found.beacons = _beacons(run_dir)
        found.counters_end = _scheduler(found.beacons)["counters"]
    found.trace = list(trace.read_rounds((work / "trace").read_text("utf-8").splitlines()))
    return found


def _first_difference(left: list[int], right: list[int]) -> int | None:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), None)


def _compare(
    environment: Environment, plain: list[dict[str, Any]], other: list[dict[str, Any]], prompts: list[str]
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
        (near if tie["steps"] <= NEAR_TIE_STEPS else real).append(line)
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
    cpu_environment: Environment, plain: list[dict[str, Any]], run: Run, capsys: pytest.CaptureFixture[str]
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


def test_second_round_hits_the_prefix_cache(run: Run) -> None:
    """Without hits the round would not test draft KV under radix reuse."""
    assert all(answer["meta_info"]["cached_tokens"] > 0 for answer in run.rounds[1])
    assert all(answer["meta_info"]["cached_tokens"] == 0 for answer in run.rounds[0][:1])


def test_branches_are_taken(run: Run) -> None:
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
    assert counters["nodes_built"] == BUDGET * counters["requests"]


def test_steps_are_those_of_the_offline_walk(
    cpu_environment: Environment, run: Run, capsys: pytest.CaptureFixture[str]
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


def test_trees_and_paths_are_those_of_the_oracles(run: Run) -> None:
    """Every traced round: the heap gives the same tree from the same candidates, the walk the same path."""
    assert len(run.trace) >= 100
    last: dict[str, trace.TraceRound] = {}
    for item in run.trace:
        tree = heap.build_tree(item.bonus_in, item.ids, item.log_probs(), BUDGET)
        assert item.tree() == tree
        path, bonus = walk.accept(tree, item.target)
        assert (item.accepted, item.bonus_out) == (list(path), bonus)
        assert item.emitted == [tree.token[node] for node in path[1:]] + [bonus]
        before = last.get(item.req)
        if before is not None:
            assert item.start == before.start + len(before.emitted)
            assert item.bonus_in == before.bonus_out
        last[item.req] = item


def test_budget_can_be_lowered_at_run_time(cpu_environment: Environment, plain: list[dict[str, Any]], run: Run) -> None:
    """control.json changes the trees, not the tokens."""
    added = {name: run.counters_lowered[name] - run.counters[name] for name in ("requests", "nodes_built")}
    assert added["requests"] > 0
    assert added["nodes_built"] == LOWERED * added["requests"]
    _, _, real = _compare(cpu_environment, plain[-4:], run.lowered, BATCHES[-1])
    assert not real, real


def test_chains_can_be_asked_for_at_run_time(
    cpu_environment: Environment, plain: list[dict[str, Any]], run: Run
) -> None:
    """The linear scheme in the same server: block size - 1 nodes, no branch, the same tokens."""
    added = run.counters_chain
    assert added["requests"] > 0
    assert added["nodes_built"] == (BLOCK - 1) * added["requests"]
    assert added["branch_paths"] == 0
    _, _, real = _compare(cpu_environment, plain[-4:], run.chained, BATCHES[-1])
    assert not real, real


def test_sampling_is_served(run: Run) -> None:
    """Temperature must not be answered greedily, and trees must still pay. (The law is tested on the kernels.)"""
    texts = [tuple(answer["output_ids"]) for answer in run.sampled]
    assert all(len(ids) == TOKENS for ids in texts)
    assert texts[:4] != texts[4:]
    lengths = [answer["meta_info"]["spec_accept_length"] for answer in run.sampled]
    assert sum(lengths) / len(lengths) > 1.3


def test_unsupported_requests_are_refused_with_a_reason(run: Run) -> None:
    """Sampling must not be answered greedily; nothing unsupported may be ignored silently."""
    for reason, (status, answer) in run.refusals.items():
        assert status == 400, (reason, answer)
        assert answer["error"]["message"].startswith("DDTREE"), answer
        assert run.counters_end[f"refused_{reason}"] == 1


def test_every_process_says_what_it_runs(run: Run, patched_tree: Path) -> None:
    """Attestation reads these files: identity, settings, and the files that were really imported."""
    titles = sorted(beacon["argv"][0].rsplit("/", 1)[-1] for beacon in run.beacons)
    assert len(titles) >= 3
    assert {"sglang::scheduler", "sglang::detokenizer"} <= set(titles)
    scheduler = _scheduler(run.beacons)
    assert scheduler["settings"]["algorithm"] == "DDTREE"
    assert (scheduler["settings"]["budget"], scheduler["settings"]["width"]) == (BUDGET, BUDGET + 1)
    paths = {item["module"]: item["path"] for item in scheduler["files"]}
    for module in ("sglang.srt.speculative.spec_info", "sglang.srt.speculative.ddtree.adapters.worker_v2"):
        assert paths[module].startswith(str(patched_tree))
