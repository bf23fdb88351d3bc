"""Where greedy answers part, and whether they may."""

from __future__ import annotations

import pytest

from ddtree_ops.bench import identity


def answer(ids, top=None, finish="length", name="code/a"):
    return {"id": name, "ids": ids, "top": top or [], "finish": finish}


def baseline(*answers, tokens=4):
    return {"answers": list(answers), "max_tokens": tokens}


def rows(*items):
    return [{"ok": True, **item} for item in items]


def one(plain, ours, **more):
    return identity.compare(baseline(plain), rows(ours), dtype=more.pop("dtype", "bfloat16"), **more).comparisons[0]


TOP = [[[1, -0.1], [9, -3.0]], [[2, -0.7], [7, -0.8], [8, -3.0], [5, -3.1]], [[3, -0.1], [6, -2.1]]]


def test_near_tie_limits():
    """Two steps of the type at logits of 16 to 32; the architecture's example is 0.25 for bfloat16."""
    assert identity.near_tie_gap("bfloat16") == 0.25
    assert identity.near_tie_gap("torch.float16") == 2 / 64
    assert identity.near_tie_gap("bfloat16", 8.0) == 0.125
    assert identity.near_tie_gap("float32") < 1e-5


def test_equal():
    """The same tokens, also where one was asked for more of them."""
    assert one(answer([1, 2, 3]), answer([1, 2, 3])).outcome == "equal"
    longer = one(answer([1, 2, 3]), answer([1, 2, 3, 4, 5]))
    assert (longer.outcome, longer.compared) == ("equal", 3)


@pytest.mark.parametrize(("token", "outcome", "gap"), [(7, "near_tie", 0.1), (8, "differs", 2.3)])
def test_a_first_difference_is_judged_by_the_gap_there(token, outcome, gap):
    """F4: a margin of 0.1 is a near tie, one of 2.3 a suspected bug; nothing later is compared."""
    found = one(answer([1, 2, 3], TOP), answer([1, token, 99]))
    assert (found.outcome, found.index, found.plain, found.ours) == (outcome, 1, 2, token)
    assert found.gap == pytest.approx(gap)


def test_a_token_that_was_no_candidate_is_at_least_as_far_behind_as_the_last():
    """2.4 nats is a lower bound, and enough; a bound within the limit decides nothing."""
    assert one(answer([1, 2, 3], TOP), answer([1, 100, 3])).outcome == "differs"
    close = [TOP[0], [[2, -0.7], [7, -0.75]], TOP[2]]
    assert one(answer([1, 2, 3], close), answer([1, 100, 3])).outcome == "unjudged"


def test_without_gaps_nothing_can_be_judged():
    """A baseline of a server that gives no log-probabilities."""
    found = identity.compare(baseline(answer([1, 2])), rows(answer([1, 3])), dtype="bfloat16")
    assert found.comparisons[0].outcome == "unjudged"
    assert not found.ok


def test_an_answer_that_ends_early_differs():
    """F4: never 'lossless' because the common part is equal: a stop where plain goes on is a difference."""
    early = one(answer([1, 2, 3], TOP), answer([1, 2], finish="stop"))
    assert (early.outcome, early.index, early.ours) == ("differs", 2, None)
    late = one(answer([1, 2], TOP[:2], finish="stop"), answer([1, 2, 3]))
    assert (late.outcome, late.index, late.plain) == ("unjudged", 2, None)


def test_float32_has_hardly_any_ties():
    """The same gap that bfloat16 allows is a bug in float32."""
    assert one(answer([1, 2, 3], TOP), answer([1, 7, 3]), dtype="float32").outcome == "differs"


def test_failed_and_unknown_requests():
    """Failed ones are not compared; measured prompts that the baseline lacks are listed."""
    found = identity.compare(
        baseline(answer([1])),
        [{"id": "code/a", "ok": False, "ids": []}, {"id": "x", "ok": True, "ids": [1]}],
        dtype="bf16",
    )
    assert found.comparisons == ()
    assert found.missing == ("x",)
    assert found.as_dict()["counts"] == {"equal": 0, "near_tie": 0, "differs": 0, "unjudged": 0}


def test_repeating_answers():
    """F9: period and place; too short an end, and what plain decoding does as well, is none."""
    from ddtree_ops.bench.loops import loop_of

    assert loop_of([9, 8] + [1, 2, 3] * 30) == "3 tokens again and again from token 2"
    assert loop_of([7] * 64) == "1 token again and again from token 0"
    assert loop_of([5] + [7] * 63) == ""
    assert loop_of(list(range(500))) == loop_of([]) == ""
    assert loop_of(list(range(60)) * 3) == ""  # three rounds of a long text are no loop yet
    ours = answer([1] + [7, 8] * 60, finish="length")
    assert one(answer(list(range(1, 122)), finish="stop"), ours).loop == "2 tokens again and again from token 1"
    assert one(answer([1] + [7, 8] * 60), ours).loop == ""
    assert one(answer(list(range(1, 40)), finish="length"), ours).loop == ""  # cut too early to tell
