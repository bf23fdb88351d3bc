"""The order of a bench, what is left of it after a cut, and what its arms are. Pure."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from ddtree_ops.bench import arms, schedule
from ddtree_ops.bench.schema import Plan, RoundRow
from ddtree_ops.service.settings import API_KEY, ServiceSpec

PLAN = Plan(arms=("ar", "dflash", "ddtree"), budgets=(8, 16), concurrency=(1, 4), regimes=("chat",), repeat=2, starts=2)


def row(one: schedule.Round, **more: object) -> RoundRow:
    return RoundRow(**{**msgspec.structs.asdict(one), "seconds": 1.0, **more})


def test_arms_stand_in_abba_order() -> None:
    """A B C A B C lets a drift of the machine favour whoever comes first."""
    assert [block.arm for block in schedule.schedule(PLAN)] == ["ar", "dflash", "ddtree", "ddtree", "dflash", "ar"]
    assert [block.start for block in schedule.schedule(PLAN)] == [1, 1, 1, 2, 2, 2]


def test_budgets_are_interleaved_forwards_and_backwards() -> None:
    tree = schedule.schedule(PLAN)[2]
    assert [one.budget for one in tree.rounds] == [8, 16, 16, 8, 8, 16, 16, 8]
    again = schedule.schedule(PLAN)[3]
    assert [one.budget for one in again.rounds] == [16, 8, 8, 16, 16, 8, 8, 16]
    assert tree.settings == ((8, 1), (16, 1), (16, 4), (8, 4))


def test_every_place_of_the_plan_is_unique_and_complete() -> None:
    rounds = [one for block in schedule.schedule(PLAN) for one in block.rounds]
    assert len({one.key for one in rounds}) == len(rounds) == 2 * 2 * 2 * (1 + 1 + 2)


def test_finished_rounds_are_left_out_and_cut_ones_are_not() -> None:
    """A round whose connection was lost stood in rows.jsonl, and the resumed run took it for measured."""
    blocks = schedule.schedule(PLAN)
    done = [row(one) for one in blocks[0].rounds]
    cut = row(blocks[1].rounds[0], cut=True)
    warm = row(blocks[1].rounds[1], kind="warmup")
    left = schedule.remaining(blocks, [*done, cut, warm])
    assert left == blocks[1:]
    some = schedule.remaining(blocks, [row(blocks[2].rounds[0])])
    assert some[2].rounds == blocks[2].rounds[1:]
    assert schedule.remaining(blocks, [row(one) for block in blocks for one in block.rounds]) == ()


def test_warm_up_rounds_of_a_start_that_was_cut_go_on_counting() -> None:
    one = schedule.schedule(PLAN)[0].rounds[0]
    rows = [row(msgspec.structs.replace(one, round=number), kind="warmup") for number in (0, 1, 2)]
    assert schedule.next_warmup(rows, "ar", 1, None, 1) == 3
    assert schedule.next_warmup(rows, "ar", 2, None, 1) == 0
    assert schedule.next_warmup(rows, "ar", 1, None, 4) == 0


def test_another_plan_is_told_in_words() -> None:
    other = msgspec.structs.replace(PLAN, max_tokens=64, budgets=(8,))
    assert schedule.changed(PLAN, other) == ["budgets: 8, 16 there, 8 now", "max_tokens: 128 there, 64 now"]
    assert schedule.changed(PLAN, PLAN) == []


# -- arms --

SPEC = ServiceSpec(
    interpreter="/venv/bin/python",
    target="/m/target",
    drafter="/m/draft",
    unit="sglang-ddtree.service",
    budget=32,
    port=30000,
    listen="0.0.0.0",
    extra_args=("--mem-fraction-static", "0.7"),
    environment={"HF_HOME": "/data"},
    secrets=(API_KEY,),
    release_id="0.5.17-abc",
)


@pytest.mark.parametrize("arm", arms.ARMS)
def test_an_arm_is_the_deployed_service_in_all_but_the_algorithm(arm: str) -> None:
    """Same interpreter, model, flags, environment, caches, secrets; own unit, run folder and port, loopback alone."""
    spec = arms.arm_spec(SPEC, arm, port=30001, budgets=(8, 64), pins=("--max-running-requests", "48"))
    assert spec.unit == f"sglang-ddtree-bench-{arm}.service"
    assert spec.unit_path == f"/run/systemd/system/{spec.unit}"
    assert spec.secrets_path == SPEC.secrets_path, "an arm must find the secrets of the deployed unit"
    assert spec.run_dir != SPEC.run_dir
    assert (spec.listen, spec.port) == ("127.0.0.1", 30001)
    assert (spec.interpreter, spec.target, spec.cache_dir) == (SPEC.interpreter, SPEC.target, SPEC.cache_dir)
    assert spec.env()["HF_HOME"] == "/data"
    words = spec.argv()
    assert words[words.index("--mem-fraction-static") + 1] == "0.7"
    assert words[words.index("--max-running-requests") + 1] == "48"
    assert ("--speculative-algorithm" in words) == (arm != "ar")


def test_one_ddtree_server_serves_all_budgets() -> None:
    spec = arms.arm_spec(SPEC, "ddtree", port=30001, budgets=(8, 64, 16))
    assert spec.budget == 64
    assert spec.env()["DDTREE_BUDGET"] == "64"
    assert spec.env()["DDTREE_LADDER"] == "9,17,65", "the ladder names verify widths, root included"
    assert "DDTREE_TRACE" not in spec.env()
    own = msgspec.structs.replace(SPEC, environment={"DDTREE_LADDER": "33,129"}, budget=128, auto_budget=True)
    one = arms.arm_spec(own, "ddtree", port=30001, budgets=(32,))
    assert "DDTREE_LADDER" not in one.env(), "a width above the arm's own keeps it from starting"
    assert one.env()["DDTREE_BUDGET"] == "32"
    traced = arms.arm_spec(SPEC, "ddtree", port=30001, budgets=(8,), trace_rounds=50)
    assert traced.env()["DDTREE_TRACE"] == f"{traced.run_dir}/trace.jsonl"
    assert "DDTREE_TRACE" not in arms.arm_spec(SPEC, "ar", port=30001).env()


def test_arms_of_the_process_runner_lie_beside_the_service() -> None:
    spec = arms.arm_spec(msgspec.structs.replace(SPEC, init="process"), "ar", port=1)
    assert spec.unit_path == "/var/lib/ddtree-ops/services/sglang-ddtree-bench-ar.json"


REFERENCE = {
    "max_running_requests": 48,
    "mem_fraction_static": 0.7,
    "attention_backend": "triton",
    "chunked_prefill_size": 2048,
    "disable_overlap_schedule": True,
    "disable_cuda_graph": False,
    "cuda_graph_max_bs_decode": None,
    "cuda_graph_bs_decode": None,
    "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2, 3, 4], "max_bs": 4}, "prefill": {"bs": [16]}},
    "speculative_algorithm": "DDTREE",
    "random_seed": 1,
    "kv_cache_dtype": "auto",
}


def test_what_sglang_chooses_by_itself_is_pinned() -> None:
    """DFLASH and DDTREE get 48 requests at once by themselves, plain decoding does not: another scheduling limit. The
    prefill chunk follows the memory that was free at the start: two starts of one unit differed in it."""
    found = arms.pins(REFERENCE, ("--mem-fraction-static", "0.7"))
    pairs = dict(itertools.pairwise(found))
    assert pairs["--max-running-requests"] == "48"
    assert pairs["--attention-backend"] == "triton"
    assert pairs["--chunked-prefill-size"] == "2048"
    assert "--disable-overlap-schedule" in found
    assert "--disable-cuda-graph" not in found
    assert "--mem-fraction-static" not in found, "it is among the deployed flags already"
    assert "--attention-backend" not in arms.pins(REFERENCE, (), ("attention_backend",))


def test_captured_batch_sizes_are_pinned_and_what_came_out_is_compared() -> None:
    """SGLang captures 1, 2, 4, 8 without speculation and 1 to 8 with it: plain decoding at 3 requests ran padded."""

    def sizes(words: tuple[str, ...]) -> list[str]:
        found = [word for word in words if word.isdigit() or word.startswith("--cuda")]
        return found[next(i for i, word in enumerate(found) if word.startswith("--cuda")) :]

    assert sizes(arms.pins(REFERENCE, ("--cuda-graph-max-bs", "4"))) == ["--cuda-graph-bs-decode", "1", "2", "3", "4"]
    old = {"cuda_graph_bs": [1, 2], "max_running_requests": 48}
    assert sizes(arms.pins(old, ())) == ["--cuda-graph-bs", "1", "2"]
    for words in (
        arms.pins(REFERENCE, ("--cuda-graph-bs", "1", "2")),
        arms.pins(REFERENCE, (), ("cuda_graph_config",)),
        arms.pins({"cuda_graph_config": {"decode": {"backend": "disabled", "bs": [1]}}}, ()),
    ):
        assert not [word for word in words if word.startswith("--cuda")]
    pinned = {**REFERENCE, "cuda_graph_bs_decode": [1, 2, 3, 4]}
    assert arms.differences(REFERENCE, pinned) == ()
    other = {**REFERENCE, "cuda_graph_config": {"decode": {"bs": [1, 2, 4]}}}
    assert "cuda_graph_config" in arms.differences(REFERENCE, other)[0]


def test_other_differences_than_speculation_are_named() -> None:
    same = {**REFERENCE, "speculative_algorithm": None, "random_seed": 2}
    assert arms.differences(REFERENCE, same) == ()
    other = {**same, "attention_backend": "fa3", "kv_cache_dtype": None}
    assert arms.differences(REFERENCE, other) == (
        "attention_backend fa3 instead of triton",
        "kv_cache_dtype nothing instead of auto",
    )
    assert arms.differences(REFERENCE, other, ("attention_backend", "kv_cache_dtype")) == ()
    assert arms.allowed_differences(REFERENCE, other, ("attention_backend",)) == (
        "attention_backend fa3 instead of triton, as `may_differ` allows",
    )


def test_counters_of_any_shape_are_subtracted() -> None:
    """Tables (steps by width) were left out of a round's difference."""
    before = {"steps": 5, "hist": [1, 2], "by_width": {"9": 3}, "mode": "tree"}
    after = {"steps": 8, "hist": [1, 5, 4], "by_width": {"9": 4, "17": 2}, "mode": "chain", "new": [[1], [2]]}
    assert arms.counters_between(before, after) == {
        "steps": 3, "hist": [0, 3, 4], "by_width": {"9": 1, "17": 2}, "mode": "chain", "new": [[1], [2]],
    }  # fmt: skip
    assert arms.counters_between(None, {"steps": 3}) == {"steps": 3}
