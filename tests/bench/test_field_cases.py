"""The field cases of the bench (F1 to F10): what people met, played on a scripted server, and what the tool must say.

Each test states its case. Verdicts: ``ok``; INVALID (measured, must not be quoted; exit 8); FAILED (identity; exit 8);
Unhealthy (exit 9). What is found before any change (drafters, hybrid targets, flags): ``tests/service/test_fit.py`` and
``tests/kernels/test_settings_and_limits.py``.
"""

from __future__ import annotations

import time

import msgspec
import pytest

from ddtree_ops.bench import arms, identity, intervals, load, smoke
from ddtree_ops.bench.results import summarise
from ddtree_ops.errors import Unhealthy
from ddtree_ops.host import greedy
from ddtree_ops.host.http import Client
from ddtree_ops.host.load import soak
from tests.bench import play
from tests.bench.links import DirectLink
from tests.bench.scripted import Asked, Cut, Server, Status, Wait, speaking

STEP = 0.01
PLAIN = speaking(per_step=1, step_s=STEP)
TREE = speaking(per_step=4, step_s=STEP)


def changed(plan=play.PLAN, **more):
    return msgspec.structs.replace(plan, **more)


# -- F1: the radix cache --


def without_keys(server, asked):
    """A server that knows no ``extra_key``: prompts of earlier requests are in its cache."""
    asked.body.pop("extra_key", None)
    return TREE(server, asked)


def test_f1_a_second_run_is_as_cold_as_the_first():
    """Case: the second bench run hits the radix cache. Right: emptied before each round, nothing shared: ok."""
    summary, rows = play.play({"ddtree": TREE})
    assert summary.verdict == "ok", summary.why
    assert all(row.flushed for row in rows)
    assert summary.cells[0].cached_share == 0.0


def test_f1_a_flush_that_fails_makes_a_cold_run_invalid():
    """Case: /flush_cache answers 400, prompts come from the cache. Right: INVALID with the share; the flush is told."""
    summary, rows = play.play({"ddtree": Server(without_keys, flush=(400,))})
    assert summary.verdict == "INVALID"
    assert "97.5 % of the prompt tokens came from the prefix cache in a run declared cold" in summary.why[0]
    assert "requests are running" in rows[0].notes[0]
    assert summary.headline[0].startswith("INVALID")


def test_f1_without_a_flush_unshared_prefixes_keep_it_cold():
    """Case: the flush fails although nothing runs. Right: requests share no prefix: ok, with a note, cached 0."""
    summary, _ = play.play({"ddtree": Server(TREE, flush=(400,))})
    assert summary.verdict == "ok", summary.why
    assert "prefix cache was not emptied" in summary.cells[0].notes[0]


def test_f1_a_flush_that_is_refused_while_busy_is_tried_again():
    """Case: 400 for a moment. Right: the flush that counts is the one that the server confirmed."""
    with Server(TREE, flush=(400, 400, 200)) as server:
        assert play.one_round(server).flushed
        assert server.flushes == 3


def test_f1_a_warm_run_says_so_and_arms_follow_one_protocol():
    """Case: declared warm. Right: cached tokens are recorded and not held against it; no arm is flushed."""
    servers = {"ar": Server(without_keys), "ddtree": Server(without_keys)}
    summary, _ = play.play(servers, changed(cold=False))
    assert summary.cells[1].cached_share > 0.9
    assert all("prefix cache" not in why for why in summary.why)
    assert [server.flushes for server in servers.values()] == [0, 0]
    with Server(TREE) as tree, Server(PLAIN) as plain:
        play.one_round(tree)
        play.one_round(plain, arm="ar", budget=None)
        assert tree.flushes == plain.flushes == 1


# -- F2: warm-up --


def test_f2_the_published_sequence():
    """Case: five identical runs gave 1187, 7653, 10996, 11174, 11266 tokens/s. Right: the first four are discarded (the
    last two of them agree within 3 %); their mean of about 8.5 k is never formed."""
    warm = intervals.Warmup()
    for value in (1187, 7653, 10996, 11174, 11266):
        if warm.done:
            break
        warm.add(value)
    assert warm.values == [1187, 7653, 10996, 11174]
    assert warm.converged


def test_f2_jit_slow_first_rounds_are_discarded_and_shown():
    """Case: the first rounds compile. Right: not in the figure, but in the report, in order."""

    def script(server, asked):
        slow = {0: 0.3, 1: 0.1}.get(asked.number // 4, 0.0)
        if slow:
            yield Wait(slow)
        yield from TREE(server, asked)

    summary, _ = play.play({"ddtree": script}, changed(agree=0.5, warmup_most=8))
    (cell,) = summary.cells
    assert summary.verdict == "ok", summary.why
    assert len(cell.warmup) >= 4
    assert cell.warmup[0] < cell.warmup[1] < 0.7 * cell.warmup[-1]
    assert cell.tok_per_s.low > 1.5 * cell.warmup[1]


def test_f2_a_server_that_never_settles_is_invalid():
    """Case: speed goes up and down. Right: cap, INVALID, the values are named."""

    def script(server, asked):
        if asked.number // 4 % 2:
            yield Wait(0.2)
        yield from TREE(server, asked)

    summary, _ = play.play({"ddtree": script}, changed(agree=0.1))
    assert summary.verdict == "INVALID"
    assert "warm-up did not converge within 10 % in 4 rounds (tokens/s: " in summary.why[0]


# -- F3: what accept length means --


def replies(tokens, verify_ct, drafts):
    def script(server, asked):
        meta = {
            "prompt_tokens": 40,
            "completion_tokens": tokens,
            "cached_tokens": 0,
            "finish_reason": {"type": "length"},
        }
        meta |= {"spec_verify_ct": verify_ct, "spec_num_correct_drafts": drafts, "spec_accept_length": 9.9}
        yield {"output_ids": list(range(tokens)), "meta_info": meta}
        time.sleep(0.01)

    return script


def test_f3_both_numbers_under_their_own_names():
    """Case: completion_tokens=100, spec_verify_ct=25, correct drafts=75, and a server average of 9.9 from its warm-up.
    Right: tokens_per_verify=4.00 and accepted_drafts=3.00, from the requests' own counts."""
    server = Server(replies(100, 25, 75), arguments={"avg_spec_accept_length": 9.9})
    summary, _ = play.play({"ddtree": server})
    (cell,) = summary.cells
    assert (cell.tokens_per_verify.median, cell.accepted_drafts.median) == (4.0, 3.0)
    assert "not from the server's running average" in summary.definitions["tokens_per_verify"]
    assert "4.00 tokens per verify step" in summary.headline[0]


def test_f3_a_request_cut_in_the_middle_of_a_block():
    """Case: max_tokens ends the answer inside a block: 10 tokens, 3 steps, 8 accepted drafts. Right: tokens that were
    given per step; drafts beyond the end are the server's count; the definition says so."""
    cell = play.play({"ddtree": replies(10, 3, 8)})[0].cells[0]
    assert cell.tokens_per_verify.median == pytest.approx(10 / 3)
    assert cell.accepted_drafts.median == pytest.approx(8 / 3)


def test_f3_no_verify_step_is_inactive_speculation():
    """Case: spec_verify_ct=0. Right: INVALID "speculation inactive", no figure, no ZeroDivisionError."""
    summary, _ = play.play({"ddtree": replies(12, 0, 0)})
    assert summary.verdict == "INVALID"
    assert "speculation inactive" in summary.why[0]
    assert summary.cells[0].tokens_per_verify is None
    assert summary.cells[0].tok_per_s is not None


def test_f3_a_control_that_speculates_is_no_control():
    """Case: the "plain" server was started with a drafter. Right: INVALID."""
    summary, _ = play.play({"ar": TREE, "ddtree": TREE})
    assert "its server speculates" in summary.why[0]
    assert all(cell.speedup_vs_ar is None for cell in summary.cells)


# -- F4: greedy answers that differ --


def tie(margin):
    """Candidates of the plain server: token 5 or 6 at position 7, so far apart."""

    def gap(asked, at):
        ours = at % 50 + 1
        return [(ours, -0.5), (99, -0.5 - margin), (98, -6.0)] if at == 7 else [(ours, -0.1), (98, -4.0)]

    return gap


def parts_at(*numbers):
    """Another token at position 7 of the prompts with these numbers, other tokens after it."""

    def ids(asked: Asked, at: int) -> int:
        parted = int(asked.text.rpartition(" ")[2]) in numbers and at >= 7
        return (99 if at == 7 else 60 + at) if parted else at % 50 + 1

    return ids


def judged(margin, ours=(), floor=(), count=50, **more):
    """Identity over ``count`` prompts: the reference one by one, the floor at concurrency 8, DDTREE at 2."""
    asked = play.prompts(count)
    with Server(speaking(gap=tie(margin))) as plain:
        sampling = greedy.Sampling({"max_tokens": 12})
        client = Client("127.0.0.1", plain.port)
        answers = [greedy.ask(client, {"id": one.id, "text": one.text}, sampling, logprobs=True) for one in asked]
    with Server(speaking(ids=parts_at(*floor))) as plain:
        again = play.one_round(plain, asked=asked, arm="ar", budget=None, concurrency=8, kind="floor")
    with Server(speaking(per_step=4, ids=parts_at(*ours), **more)) as tree:
        row = play.one_round(tree, asked=asked)
    return identity.report({"answers": answers}, [again, row], dtype="bfloat16")


def test_f4_a_near_tie_on_one_of_fifty_prompts():
    """Cases (a) and (c): first divergence at a margin of 0.001. Right: ok, "not bit-identical: 1 prompt, all at near
    ties", with position and gap; never "lossless"."""
    found = judged(1e-3, ours=(3,))
    assert found.verdict == "ok"
    (pair,) = found.pairs
    assert "49 of 50 answers equal" in pair.text
    assert "not bit-identical: 1 prompt, all at near ties (chat/3 at token 7, gap 0.001)" in pair.text
    parted = next(one for one in pair.comparisons if one.outcome == "near_tie")
    assert (parted.index, parted.plain, parted.ours, parted.regime) == (7, 8, 99, "chat")
    assert parted.gap == parted.top2 == pytest.approx(1e-3)
    assert "lossless" not in msgspec.json.encode(found).decode()


def test_f4_a_wide_gap_is_a_suspected_bug():
    """Case (b): divergence at a margin of 2.0. Right: FAILED, "verify bug suspected", first index and margin."""
    found = judged(2.0, ours=(3,))
    assert found.verdict == "FAILED"
    assert "1 differ at a wide gap, verify bug suspected: chat/3 at token 7, gap 2" in found.why[0]


def test_f4_the_floor_is_measured_and_shown_first():
    """Case (d): plain decoding differs from itself at another batch size. Right: the floor has it, with its own count,
    and what differs in the same way is no fault of the tree."""
    found = judged(1e-3, ours=(3,), floor=(3, 4))
    assert (found.floor.concurrency, found.floor.counts["near_tie"]) == (8, 2)
    assert (found.verdict, found.why) == ("ok", ())


def test_f4_a_floor_with_wide_gaps_leaves_nothing_to_judge():
    """Case (d), worse: plain decoding parts from itself at a wide gap. Right: INVALID, nobody is blamed."""
    found = judged(2.0, ours=(3,), floor=(4,))
    assert found.verdict == "INVALID"
    assert "plain decoding parts from itself at a wide gap" in found.why[0]


def test_f4_without_a_floor_it_is_said():
    """Case: only concurrency 1 was measured. Right: the missing control is named."""
    with Server(speaking(per_step=4)) as tree:
        row = play.one_round(tree)
    answers = [{"id": one.id, "ids": list(row.requests[0].ids), "finish": "length"} for one in row.requests]
    found = identity.report({"answers": answers}, [row], dtype="bfloat16")
    assert "no floor" in found.why[0]
    assert identity.report({"answers": answers}, [], dtype="bfloat16").verdict == "INVALID"


# -- F5: thinking models --


def thinking(key="reasoning_content", usage=12, spoken=""):
    def script(server, asked):
        for count in range(12):
            yield {"choices": [{"delta": {"content": None, key: f"hm {count}"}, "finish_reason": None}]}
            time.sleep(0.005)
        yield {"choices": [{"delta": {"content": spoken or None}, "finish_reason": "length"}]}
        if usage is not None:
            yield {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": usage, "reasoning_tokens": usage}}

    return script


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_f5_no_visible_token_is_not_no_throughput(key):
    """Case: all deltas are reasoning, content null, finish=length. Right: tokens from usage, a figure, and the note."""
    asked = {"chat": play.prompts(form="messages")}
    summary, rows = play.play({"ar": thinking(key)}, asked=asked)
    assert summary.verdict == "ok", summary.why
    assert rows[0].requests[0].tokens == rows[0].requests[0].reasoning_tokens == 12
    assert rows[0].requests[0].visible is False
    assert summary.cells[0].tok_per_s.median > 0
    assert "no answer has visible text: all 48 tokens are reasoning" in summary.cells[0].notes[0]


def test_f5_visible_and_hidden_text_are_told_apart():
    """Case: a word after much reasoning. Right: no note."""
    with Server(thinking(spoken="so.")) as server:
        row = play.one_round(server, asked=play.prompts(form="messages"), arm="ar", budget=None)
    assert row.requests[0].visible is True
    assert not row.notes


def empty(server, asked):
    if "messages" in asked.body:
        yield {"choices": [{"delta": {"content": ""}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 0}}
    else:
        meta = {"prompt_tokens": 40, "completion_tokens": 0, "finish_reason": {"type": "stop"}}
        yield {"output_ids": [], "meta_info": meta}


@pytest.mark.parametrize("form", ["messages", "text"])
def test_f5_truly_no_token_is_a_failed_request(form):
    """Case: empty content, usage 0. Right: counted as empty, listed, INVALID; no division by zero."""
    summary, _ = play.play({"ar": empty}, asked={"chat": play.prompts(form=form)})
    (cell,) = summary.cells
    assert (cell.empty, cell.tok_per_s, summary.verdict) == (8, None, "INVALID")
    assert "the answer has no tokens (finish: stop)" in cell.failures[0]


def test_f5_text_without_usage_is_not_counted_by_its_length():
    """Case: a server that sends no usage. Right: failed, and why."""
    with Server(thinking(usage=None)) as server:
        row = play.one_round(server, asked=play.prompts(form="messages"), arm="ar", budget=None)
    assert row.verdict == "invalid"
    assert "no usage" in row.requests[0].error


# -- F6: the drafter of another target --


def test_f6_a_drafter_of_another_target_is_named():
    """Case: configs fit, but nearly every draft is refused. Right: a note with the number, and the loss comes first."""
    useless = speaking(per_step=1, step_s=4 * STEP, speculates=True)
    summary, _ = play.play({"ar": PLAIN, "ddtree": useless})
    tree = summary.cells[1]
    assert tree.tokens_per_verify.median == pytest.approx(12 / 11)
    assert "drafter that was trained for another target" in tree.notes[-1]
    assert summary.headline[0].startswith("SLOWER than plain decoding: chat: DDTREE budget 16 0.")


# -- F7: budgets, page sizes, memory --

REFUSAL = "DDTREE: page_size must be 1 with --ddtree-budget 64, not 64"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (lambda server, asked: iter([Status(400, {"error": {"message": REFUSAL}})]), f"400: {REFUSAL}"),
        (lambda server, asked: iter([{"error": {"message": REFUSAL, "code": 400}}]), REFUSAL),
        (
            lambda server, asked: iter([Status(503, "CUDA out of memory: graph capture, width 257 x bs 64")]),
            "width 257",
        ),
        (lambda server, asked: iter([Cut()]), "closed the connection before it answered"),
    ],
)
def test_f7_the_servers_own_words_are_kept(script, words):
    """Case: a request breaks a limit of budget, page size or memory. Right: INVALID with what the server said."""
    summary, _ = play.play({"ddtree": script})
    assert summary.verdict == "INVALID"
    assert words in summary.why[0]
    assert summary.cells[0].failed == 8


def test_f7_an_abort_in_the_stream_is_a_failure():
    """Case: tokens flow, then the scheduler aborts the request. Right: failed, its tokens are in no rate."""

    def script(server, asked):
        parts = list(TREE(server, asked))
        parts[-1]["meta_info"]["finish_reason"] = {"type": "abort", "message": "KV cache pool is full"}
        yield from parts

    with Server(script) as server:
        row = play.one_round(server)
    assert (row.requests[0].ok, row.requests[0].tokens > 0) == (False, True)
    assert "KV cache pool is full" in row.why[0]


def test_f7_a_baseline_under_other_limits_is_no_baseline():
    """Case: DDTREE limits max_running_requests, plain decoding does not. Right: the difference is named."""
    ours = {"max_running_requests": 8, "page_size": 1, "speculative_algorithm": "DDTREE"}
    plain = {"max_running_requests": 64, "page_size": 1, "speculative_algorithm": None}
    assert arms.differences(ours, plain) == ("max_running_requests 64 instead of 8",)


# -- F8: good in one regime only --


def test_f8_a_regime_that_loses_stands_in_the_first_line():
    """Case: code gains much, chat loses. Right: chat is on the first line, every regime has its own figure; no
    pooled one hides it."""

    def tree(server, asked):
        per_step, step = (6, STEP) if "code" in asked.text else (2, 8 * STEP)
        yield from speaking(per_step=per_step, step_s=step)(server, asked)

    summary, _ = play.play({"ar": PLAIN, "ddtree": tree}, regimes=("code", "chat"))
    assert summary.verdict == "ok", summary.why
    assert summary.headline[0].startswith("SLOWER than plain decoding: chat: ")
    assert "code" not in summary.headline[0]
    assert [line.split(",")[0] for line in summary.headline[1:]] == ["code", "chat"]
    speedups = {cell.regime: cell.speedup_vs_ar.median for cell in summary.cells if cell.arm == "ddtree"}
    assert speedups["chat"] < 1.0 < speedups["code"]
    assert {cell.regime for cell in summary.cells} == {"code", "chat"}


def test_f8_a_missing_chat_template_is_said():
    """Case: chats are sent to a model without a template. Right: raw text for every arm, and the note."""

    class NoTemplate(DirectLink):
        def call(self, verb, params=None, **more):
            if any("messages" in one for one in params["prompts"]):
                params = {**params, "server": {"port": 1}}  # /tokenize refuses
            return super().call(verb, params, **more)

    asked = play.prompts(2, form="messages")
    with Server(TREE) as server:
        with_template, none = load.resolved(DirectLink(), play.target(server), asked)
        raw, note = load.resolved(NoTemplate(), play.target(server), asked)
    assert none == ""
    assert with_template[0].request(0)["input_ids"]
    assert note.startswith("no chat template: chats are sent as raw text")
    assert raw[0].request(0)["input_ids"] == [ord(letter) for letter in asked[0].text]


# -- F9: hybrid targets --


def test_f9_corrupted_answers_fail_however_fast_they_are():
    """Case: a tree verify step corrupts the state of a hybrid target; fluent, repetitive, fast. Right: FAILED."""
    asked = play.prompts(4)

    def corrupted(request_: Asked, at: int) -> int:
        return at % 211 + 1 if at < 20 else 7 + at % 3

    answer = list(range(1, 201))
    top = [[[token, -0.1], [500, -9.0]] for token in answer]
    answers = [{"id": one.id, "ids": answer, "top": top, "finish": "length"} for one in asked]
    with Server(speaking(per_step=50, ids=corrupted)) as server:
        row = play.one_round(server, changed(max_tokens=200), asked)
    assert row.verdict == "ok"  # nothing in its speed tells
    found = identity.report({"answers": answers}, [row], dtype="bfloat16")
    assert found.verdict == "FAILED"
    assert "verify bug suspected: chat/0 at token 20" in found.why[0]
    assert "4 answers repeat themselves where plain decoding does not; chat/0: 3 tokens again and again" in found.why[0]


def test_f9_a_model_that_repeats_itself_anyway_is_not_blamed():
    """Case: a small target loops in plain decoding, too. Right: ok."""
    ids = [1, 2, 3] * 60
    answers = [{"id": "chat/0", "ids": ids, "finish": "length"}]
    with Server(speaking(per_step=4, ids=lambda asked, at: at % 3 + 1)) as server:
        row = play.one_round(server, changed(max_tokens=180), play.prompts(1))
    found = identity.report({"answers": answers}, [row], dtype="bfloat16")
    assert (found.verdict, found.pairs[0].comparisons[0].loop) == ("ok", "")


# -- F10: liveness and time-outs --

QUICK = changed(silence_s=0.5)


def never(server, asked):
    yield Wait(30)


def stalls(server, asked):
    for number, part in enumerate(TREE(server, asked)):
        if number == 2 and asked.text.endswith(" 1"):
            yield Wait(30)
        yield part


def test_f10_health_without_tokens_is_unhealthy():
    """Case (a): 200 on /health, /generate never answers. Right: Unhealthy (exit 9) with the index; timed out; not sent
    again."""
    with Server(never) as server:
        row = play.one_round(server, QUICK)
        assert len(server.asked) == 4
    assert [one.outcome for one in row.requests] == ["timeout"] * 4
    with pytest.raises(Unhealthy, match=r"request 0: no byte came for 0\.5 s") as caught:
        load.require_answered(row)
    assert caught.value.exit_code == 9


def test_f10_a_long_answer_is_not_a_silent_one():
    """Case (b): the first token late, then steadily, far longer than the limit altogether. Right: ok."""
    slow = speaking(per_step=4, first_s=0.3, step_s=0.3, tokens=29)
    with Server(slow) as server:
        row = play.one_round(server, changed(silence_s=1.0), play.prompts(2))
    assert row.verdict == "ok", row.why
    assert row.seconds > 2.0
    assert 0.3 <= row.requests[0].ttft_s < 1.0


def test_f10_a_stream_that_stalls_midway_is_found():
    """Case (c): tokens, then nothing, the socket stays open. Right: that request timed out, the others count."""
    with Server(stalls) as server:
        row = play.one_round(server, QUICK)
    assert [one.outcome for one in row.requests].count("timeout") == 1
    assert row.verdict == "invalid"
    assert "request 1" in row.why[0]
    with pytest.raises(Unhealthy, match="1 of 4 requests"):
        load.require_answered(row)


def test_f10_tokens_count_and_not_the_health_check():
    """Case (d): /health says 503 while tokens flow. Right: ok."""
    with Server(TREE, health=503) as server:
        row = play.one_round(server)
        load.require_answered(row)
    assert row.verdict == "ok"


def test_f10_a_server_that_hangs_after_a_hundred_requests():
    """Case: healthy for 100 requests. Right: more than 150 are sent once, and the first that hangs is named."""

    def script(server, asked):
        if asked.number >= 100:
            yield Wait(30)
        yield from speaking(per_step=4)(server, asked)

    with Server(script) as server:
        row = load.soak(DirectLink(), play.target(server), play.prompts(), changed(silence_s=0.3))
        assert len(server.asked) < 120  # a server that is silent towards everybody is not asked for ever
    assert len(row.requests) == load.SOAK_REQUESTS > 150
    with pytest.raises(Unhealthy, match=r"60 of 160 requests were not answered; request (9|10)\d: no byte"):
        load.require_answered(row)
    with Server(TREE) as server:
        load.require_answered(load.soak(DirectLink(), play.target(server), play.prompts(), play.PLAN))


def test_f10_the_smoke_of_a_deploy_sends_as_many():
    """The same case in a deploy. Right: the smoke bench fails, and with it the deploy."""

    def script(server, asked):
        if asked.number >= 100:
            yield Wait(30)
        yield from speaking(per_step=4)(server, asked)

    asked = [{"id": one.id, "text": one.text} for one in play.prompts()]
    with Server(script) as server:
        soaked = soak(Client("127.0.0.1", server.port), asked, 160, 0.3, lambda event: None)
    first = soaked["failed"][0]["index"]
    assert (len(soaked["failed"]), 92 < first < 108) == (60, True)  # eight are on their way at a time
    request = smoke.request({"unit": "x"}, soak=load.SOAK_REQUESTS)
    assert request["soak"] > 150
    report = smoke.evaluate({"requests": [], "soak": soaked})
    assert report["verdict"] == "FAILED"
    assert report["reasons"][0].startswith(f"60 of 160 short requests were not answered; request {first}: no byte")


def test_f10_time_outs_are_in_no_throughput():
    """Case: one of four stalls. Right: the cell's rate is over what finished; failures have their reason."""
    with Server(stalls) as server:
        row = play.one_round(server, QUICK)
    cell = summarise(play.of_plan(play.PLAN), [row]).cells[0]
    assert cell.tok_per_s.median == pytest.approx(36 / row.seconds)
    assert (cell.timed_out, cell.valid) == (1, False)
    assert "no byte came for 0.5 s" in cell.failures[0]
