"""What a smoke run means: verdicts, reasons, the report and the prompts."""

from __future__ import annotations

import io
import json

import pytest

from ddtree_ops.bench import library, report, smoke
from ddtree_ops.errors import ConfigError, GateFailed


def result(rows=None, **more):
    row = {
        "id": "code/a", "kind": "code", "ok": True, "error": "", "ids": [1, 2, 3], "completion_tokens": 3,
        "seconds": 0.5, "prompt_tokens": 10, "cached_tokens": 0, "verify_ct": 1, "accepted_drafts": 2, "ttft": 0.1,
        "first_tokens": 1,
        "finish": "length",
    }  # fmt: skip
    made = [{**row, **one} for one in rows or [{}]]
    server = {"version": "0.5.20", "dtype": "bfloat16", "model_path": "/m"}
    base = {"requests": made, "seconds": 1.0, "concurrency": 1, "max_tokens": 3, "server": server, "warmup": [{}, {}]}
    return {**base, "budget": 16, "captured_budget": 16, "flush": "before each request", **more}


def plain(ids, top=None, **server):
    return {
        "answers": [{"id": "code/a", "ids": ids, "top": top or [], "finish": "length"}],
        "max_tokens": 3,
        "server": {"dtype": "bfloat16", "model_path": "/m", **server},
    }


def test_a_good_run():
    """Figures with their definitions, identity counted, conditions kept."""
    found = smoke.evaluate(result(), plain([1, 2, 3]))
    smoke.require(found)
    assert found["verdict"] == "ok"
    assert found["figures"]["tokens_per_verify_step"] == 3.0
    assert "SGLang's spec_accept_length" in found["definitions"]["tokens_per_verify_step"]
    assert found["identity"]["counts"]["equal"] == 1
    assert "1 of 1 answers equal, 3 tokens compared" in report.identity_line(found)
    assert "lossless" not in report.identity_line(found)
    json.dumps(found)


def test_inactive_speculation_is_invalid():
    """F3: exit 8 and a reason, no division by zero, no number."""
    found = smoke.evaluate(result([{"verify_ct": 0, "accepted_drafts": None}]))
    assert found["verdict"] == "INVALID"
    with pytest.raises(GateFailed) as caught:
        smoke.require(found)
    assert caught.value.exit_code == 8
    assert "speculation inactive" in caught.value.what
    assert found["figures"]["tokens_per_verify_step"] is None


def test_a_wide_difference_fails():
    """F4 (b): index and margin are in the message."""
    top = [[[1, 0.0]], [[2, -0.1], [7, -2.1]], [[3, 0.0]]]
    found = smoke.evaluate(result([{"ids": [1, 7, 3]}]), plain([1, 2, 3], top))
    assert found["verdict"] == "FAILED"
    assert "token 1" in found["reasons"][0]
    assert "2 nats" in found["reasons"][0]


def test_answers_that_repeat_themselves_fail():
    """F9: corrupted state, with a first difference that passes as a near tie; a short answer cannot show it."""
    ids, loops = list(range(1, 201)), [7, *[8, 9] * 100][:200]
    top = [[[1, -0.7], [7, -0.75]], *([[one, -0.1], [0, -5.0]] for one in ids[1:])]
    found = smoke.evaluate(result([{"ids": loops}], max_tokens=200), plain(ids, top))
    assert found["verdict"] == "FAILED"
    assert "2 tokens again and again" in found["reasons"][0]


def test_a_near_tie_is_reported_and_passes():
    """F4 (a): not bit-identical, and said so."""
    top = [[[1, 0.0]], [[2, -0.7], [7, -0.75]], [[3, 0.0]]]
    found = smoke.evaluate(result([{"ids": [1, 7, 3]}]), plain([1, 2, 3], top))
    assert found["verdict"] == "ok"
    assert "part at a near tie: code/a at token 1 (gap 0.05)" in report.identity_line(found)


@pytest.mark.parametrize(
    ("raw", "base", "reason"),
    [
        (result([{"cached_tokens": 5}]), None, "prefix cache"),
        (result([{"ids": [1, 9, 3]}]), plain([1, 2, 3]), "cannot be judged"),
        (result(), plain([1, 2, 3], model_path="/other"), "model_path"),
        (result([{"id": "own/1"}]), plain([1, 2, 3]), "none of the measured prompts"),
    ],
)
def test_what_cannot_be_compared_is_invalid(raw, base, reason):
    """Invariant 8: INVALID, not a number."""
    found = smoke.evaluate(raw, base)
    assert found["verdict"] == "INVALID"
    assert reason in " ".join(found["reasons"])


def test_failed_requests_fail_the_run():
    """F5, F10: an empty answer or a stalled stream is a failure with its reason."""
    found = smoke.evaluate(result([{}, {"id": "code/b", "ok": False, "error": "sent nothing for 60 s", "ids": []}]))
    assert found["verdict"] == "FAILED"
    assert "1 of 2 requests failed; code/b: sent nothing for 60 s" in found["reasons"][0]


def test_no_request_at_all():
    """An empty run is INVALID, not a division by zero."""
    assert smoke.evaluate(result(), None)["identity_note"]
    empty = {**result(), "requests": []}
    assert smoke.evaluate(empty)["verdict"] == "INVALID"


def test_the_table_is_drawn():
    """A failed request, a request without steps and a good one."""
    from rich.console import Console

    rows = [
        {},
        {"id": "code/b", "verify_ct": 0, "accepted_drafts": None},
        {"id": "code/c", "ok": False, "error": "boom"},
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.render(smoke.evaluate(result(rows))))
    text = console.export_text()
    for words in (
        "code/a",
        "boom",
        "FAILED",
        "budget 16",
        "tokens_per_verify_step: completion_tokens / spec_verify_ct",
    ):
        assert words in text


def test_bundled_prompts():
    """At least eight of each regime, no id twice, the same order each time, all regimes in a small selection."""
    for regime in library.REGIMES:
        assert len(library.bundled(regime)) >= 8
    assert {one["kind"] for one in library.bundled("all", 3)} == set(library.REGIMES)
    assert library.bundled("all", 6) == library.bundled()[:6]
    with pytest.raises(ConfigError):
        library.bundled("poetry")


def test_greedy_and_smoke_ask_for_the_same_prompts():
    """Else the baseline would have none of the measured ones."""
    asked = smoke.request({"unit": "x"})
    assert asked["prompts"] == smoke.greedy_request()["prompts"]
    assert asked["max_tokens"] == smoke.greedy_request()["max_tokens"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"text": "a"}\n{"x": 1}\n', ":2"),
        ("nope\n", ":1"),
        ('{"text": ""}\n', ":1"),
        ('{"id":"a","text":"x"}\n' * 2, ""),
        ("", ""),
    ],
)
def test_own_prompts_are_read_strictly(tmp_path, text, where):
    """File and line of the first mistake."""
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        library.from_file(path)
    assert caught.value.where.endswith(where)
