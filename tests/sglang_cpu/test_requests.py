"""What single requests may ask for, on real servers: the answers of plain decoding, or a reproducible one.

Greedy answers must be those of the plain server token for token; a first difference counts as a near tie only when the
plain server itself found the two tokens about equally likely, penalties and bias included.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.sglang_cpu import asking
from tests.sglang_cpu.asking import BUDGETS, LENGTHS, differences, first_difference
from tests.sglang_cpu.runs import LOGPROBS, DDTreeRun, PlainRun

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]  # the first one starts servers

LOGPROB_TOLERANCE = 0.15
"""Log-probabilities of one token from batches of different shapes: two steps of bfloat16 at this target's logits."""


def _equal(plain: PlainRun, run: DDTreeRun, name: str, least: int) -> None:
    equal, near, real = differences(plain.answers[name], run.answers[name])
    assert not real, (name, real, near)
    assert equal >= least, (name, equal, near)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("lengths", 5),  # one token, two, the end inside a tree
        ("context end", 1),
        ("stop strings", 3),
        ("stop tokens", 9),  # among the accepted drafts, and as the bonus token
        ("stop just before the end", 12),  # both in one step: nothing of what the path has behind the stop may come out
        ("stop ignored", 1),
        ("penalties", 5),
        ("penalties, the other way round", 5),
        ("penalty alone", 0),
        ("bias", 1),
        ("shared prefix", 4),  # prompts that were another request's answer: its rejected branches are in the cache
        ("grammar", 3),
        ("budgets", 3),
        ("memory pressure", 6),  # with and without penalties; some are retracted
    ],
)
def test_answers_are_those_of_plain_decoding(
    plain_run: PlainRun, ddtree_run: DDTreeRun, name: str, least: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tokens, text and finish reason: what a request asks for changes nothing about losslessness."""
    equal, near, real = differences(plain_run.answers[name], ddtree_run.answers[name])
    with capsys.disabled():
        print(f"\n{name}: {equal} of {len(ddtree_run.answers[name])} equal", *near, sep="\n  near tie: ")
    assert not real, real
    assert equal >= least


def test_penalties_change_the_answers(plain_run: PlainRun) -> None:
    """Else the comparison above would compare nothing."""
    changed = 0
    for n in range(8):
        free, penalised = (answers[n]["output_ids"] for answers in (plain_run.batches, plain_run.answers["penalties"]))
        changed += penalised != free[: len(penalised)]
    assert changed >= 5


def test_no_tree_reaches_beyond_the_end(ddtree_run: DDTreeRun) -> None:
    """Nodes that can never be emitted cost verification; the last token is the target's own."""
    seen = dict.fromkeys(LENGTHS, 0)
    for item in ddtree_run.trace:
        if item.req.startswith("length-"):
            most = int(item.req.removeprefix("length-"))
            first = min(other.start for other in ddtree_run.trace if other.req == item.req)
            left = most - 1 - (item.start - first)  # the first token comes from prefill
            assert max(item.depth) <= max(0, left - 1), item
            seen[most] += 1
    assert all(count for most, count in seen.items() if most > 1), seen
    assert max(max(item.depth) for item in ddtree_run.trace) > 4, "trees far from the end have to be deep"
    limits = [item.extra["depth_limit"] for item in ddtree_run.trace]
    assert min(limits) == 0
    assert max(limits) == 15


def test_a_request_has_its_own_budget(ddtree_run: DDTreeRun) -> None:
    """In one batch: 1, 3, 8 and 16 nodes."""
    for budget in BUDGETS:
        sizes = [len(item.token) - 1 for item in ddtree_run.trace if item.req == f"budget-{budget}"]
        assert sizes
        assert max(sizes) == budget


def test_refusals_name_the_way_out(ddtree_run: DDTreeRun) -> None:
    """A budget above the server's own, or a seed beyond 64 bits, must neither be ignored nor end the server."""
    status, answer = ddtree_run.refusals["budget"]
    assert status == 400
    assert "above the 16 that this server was started with" in answer["error"]["message"]


def _values(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    entries = answer["meta_info"]["output_token_logprobs"]
    return [token for _, token, _ in entries], [value for value, _, _ in entries]


def test_logprobs_are_those_of_plain_decoding(plain_run: PlainRun, ddtree_run: DDTreeRun) -> None:
    """Rows of the accepted path, in its order; the prompt's come from prefill; who did not ask gets none."""
    worst = 0.0
    for n, (left, right) in enumerate(zip(plain_run.logprobs, ddtree_run.logprobs, strict=True)):
        meta = right["meta_info"]
        if not LOGPROBS.extra["return_logprob"][n]:
            assert not meta.get("output_token_logprobs")
            continue
        ids, values = _values(right)
        assert ids == right["output_ids"]
        first = first_difference(left["output_ids"], right["output_ids"])
        common = len(ids) if first is None else first
        assert common > 3
        plain_values = _values(left)[1]
        worst = max(worst, *(abs(a - b) for a, b in zip(values[:common], plain_values[:common], strict=True)))
        top = LOGPROBS.extra["top_logprobs_num"][n]
        if top:
            for place in range(common):
                found = {token: value for value, token, _ in meta["output_top_logprobs"][place]}
                assert len(found) == top
                assert abs(found[ids[place]] - values[place]) < 1e-3 or values[place] < min(found.values()) + 1e-3
                known = {token: value for value, token, _ in left["meta_info"]["output_top_logprobs"][place]}
                for token in found.keys() & known.keys():
                    worst = max(worst, abs(found[token] - known[token]))
        if LOGPROBS.extra["token_ids_logprob"][n]:
            rows = zip(
                meta["output_token_ids_logprobs"][:common], left["meta_info"]["output_token_ids_logprobs"], strict=False
            )
            for mine, plain in rows:
                assert [entry[1] for entry in mine] == LOGPROBS.extra["token_ids_logprob"][n]
                worst = max(worst, *(abs(a[0] - b[0]) for a, b in zip(mine, plain, strict=True)))
    prompts = [run.logprobs[0]["meta_info"]["input_token_logprobs"] for run in (plain_run, ddtree_run)]
    assert len(prompts[1]) == len(prompts[0]) > 20
    worst = max(worst, *(abs(a[0] - b[0]) for a, b in zip(*prompts, strict=True) if a[0] is not None))
    assert worst < LOGPROB_TOLERANCE, worst


def test_openai_endpoints_carry_logprobs(plain_run: PlainRun, ddtree_run: DDTreeRun) -> None:
    """The same numbers by the other door."""
    left, right = plain_run.completion["logprobs"], ddtree_run.completion["logprobs"]
    same = _common(left["tokens"], right["tokens"])
    assert same > 3
    assert len(right["token_logprobs"]) == len(right["tokens"]) == len(right["top_logprobs"]) == 16
    for a, b in zip(left["token_logprobs"][:same], right["token_logprobs"][:same], strict=True):
        assert abs(a - b) < LOGPROB_TOLERANCE
    left, right = plain_run.chat["logprobs"]["content"], ddtree_run.chat["logprobs"]["content"]
    same = _common([entry["token"] for entry in left], [entry["token"] for entry in right])
    assert same > 3
    for a, b in zip(left[:same], right[:same], strict=True):
        assert abs(a["logprob"] - b["logprob"]) < LOGPROB_TOLERANCE
        assert len(b["top_logprobs"]) == 2


def _common(left: list[Any], right: list[Any]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_seeded_answers_are_reproducible(ddtree_run: DDTreeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """The same request gives the same answer: twice, in a crowd, with small trees, after giving its memory back.

    Bfloat16 rounds differently in batches of another shape: a coin that falls on an edge may then fall otherwise, so
    in other company an answer may part late from what it was.
    """
    seeded = ddtree_run.seeded
    ids = {name: [answer["output_ids"] for answer in answers] for name, answers in seeded.items()}
    assert ids["again"] == ids["alone"]
    assert ids["another seed"][0] != ids["alone"][0]
    assert len({tuple(some) for some in ids["alone"]}) == 3
    together = {name: [_common(a, b) for a, b in zip(ids["alone"], ids[name], strict=True)]
                for name in ("crowd", "small trees", "memory pressure")}  # fmt: skip
    with capsys.disabled():
        print(f"\nseeded, tokens until the answers part (of 40): {together}")
    lengths = [length for some in together.values() for length in some]
    assert sum(length >= 40 for length in lengths) >= 5, together
    assert min(lengths) >= 3, together


def test_requests_were_retracted(ddtree_run: DDTreeRun) -> None:
    """Without retractions the answers under memory pressure would show nothing."""
    for answers in (ddtree_run.answers["memory pressure"], ddtree_run.seeded["all under pressure"]):
        assert sum(answer["meta_info"]["num_retractions"] for answer in answers) > 0


def test_aborted_requests_leave_no_trace(plain_run: PlainRun, ddtree_run: DDTreeRun) -> None:
    """Their slots, counts and places in the batch go to others while a step of theirs is in flight."""
    reasons = [answer["meta_info"]["finish_reason"]["type"] for answer in ddtree_run.aborted]
    assert reasons.count("abort") in (1, 2), reasons
    assert reasons[2:] == ["length", "length"]
    equal, near, real = differences(plain_run.answers["penalties"], ddtree_run.after_abort)
    assert not real, real
    assert equal >= 3, near


def test_questions_were_all_asked(plain_run: PlainRun) -> None:
    """A question that nobody compares would pass unseen."""
    marks = test_answers_are_those_of_plain_decoding.pytestmark  # type: ignore[attr-defined]
    compared = {name for mark in marks if mark.name == "parametrize" for name, _ in mark.args[1]}
    assert compared == set(plain_run.questions)
    assert asking.CONTEXT < 256
