"""The load generator: what it sends, when it stops, what it costs, and that nothing measured is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.bench import load
from ddtree_ops.errors import DdtreeError, TransportError
from ddtree_ops.host.http import environment_line
from ddtree_ops.host.load import load_round
from ddtree_ops.host.load_answer import Generated
from ddtree_ops.host.load_wire import Answer, Events, WireError
from ddtree_ops.host.protocol import ControllerLost, HostError
from ddtree_ops.inventory import Host
from ddtree_ops.remote.connection import connect
from tests.bench import play
from tests.bench.links import DirectLink
from tests.bench.scripted import Cut, Server, Status, speaking

TREE = speaking(per_step=4, step_s=0.005)


def ask(on, count=4, **params):
    """Rows in the order of their prompts, the result, and all events."""
    events = []
    requests = [{"text": f"prompt {index}"} for index in range(count)]
    base = {"server": {"port": on.port}, "requests": requests, "max_tokens": 9, "silence": 10}
    result = load_round({**base, **params}, events.append)
    rows = [event["row"] for event in events if event["kind"] == "request"]
    return sorted(rows, key=lambda row: row["index"]), result, events


def test_a_request_is_measured():
    """Times, tokens, ids, and the server's own counts."""
    with Server(TREE) as server:
        rows, result, _ = ask(server)
    row = rows[0]
    assert (row["ok"], row["tokens"], row["ids"]) == (True, 9, list(range(1, 10)))
    assert (row["verify_ct"], row["accepted_drafts"], row["finish"]) == (2, 6, "length")
    assert (row["prompt_tokens"], row["cached_tokens"], row["first_tokens"]) == (40, 0, 1)
    assert len(row["itl_s"]) == 2
    assert row["ttft_s"] + sum(row["itl_s"]) == pytest.approx(row["total_s"], abs=0.005)
    assert max(row["total_s"] for row in rows) <= result["seconds"] + 1e-6


def test_the_loop_is_closed():
    """Exactly so many at a time: the next one starts when one has ended."""
    with Server(speaking(per_step=4, step_s=0.03)) as server:
        ask(server, 12, concurrency=3)
        assert server.most == 3
        assert len(server.asked) == 12


@pytest.mark.parametrize("incremental", [False, True])
def test_both_kinds_of_streams(incremental):
    """Cumulative parts by default, only the new ids with --incremental-streaming-output."""
    with Server(speaking(per_step=4, incremental=incremental)) as server:
        rows, _, _ = ask(server, 2, max_tokens=30)
    assert [row["ids"] for row in rows] == [list(range(1, 31))] * 2


def test_without_a_stream():
    """For references with candidates, and where even the timing of parts costs too much."""
    with Server(TREE) as server:
        rows, _, _ = ask(server, stream=False, logprobs=2)
    assert rows[0]["top"][0] == [[1, -0.1]]
    assert (rows[0]["ok"], "ttft_s" in rows[0], rows[0]["verify_ct"]) == (True, False, 2)


def test_what_is_sent():
    """Sampling in SGLang's words, a request's own over the round's; a prefix that nobody shares."""
    with Server(TREE) as server:
        requests = [{"text": "a"}, {"input_ids": [1, 2], "sampling": {"temperature": 0.5}}]
        ask(server, requests=requests, isolate="word", sampling={"top_k": 3}, concurrency=2)
        first, second = sorted((asked.body for asked in server.asked), key=lambda body: "text" not in body)
    assert first["sampling_params"] == {"temperature": 0.0, "max_new_tokens": 9, "top_k": 3}
    assert second["sampling_params"]["temperature"] == 0.5
    assert (first["extra_key"], second["extra_key"]) == ("word/0", "word/1")
    assert first["stream"] is True


def test_the_api_key_is_sent_and_told_to_nobody(tmp_path):
    """Neither in a row nor in an event."""
    secrets = tmp_path / "unit.env"
    secrets.write_text(environment_line("SGLANG_DDTREE_API_KEY", "very-secret"))
    with Server(TREE) as server:
        _, result, events = ask(server, server={"port": server.port, "secrets_file": str(secrets)})
        assert server.keys == {"Bearer very-secret"}
    assert "very-secret" not in json.dumps([result, events])


def test_requests_are_told_as_they_end_and_progress_each_second():
    """A cut connection then loses nothing that was measured."""
    with Server(speaking(per_step=1, step_s=0.15)) as server:
        _, _, events = ask(server, 3)
    kinds = [event["kind"] for event in events]
    assert kinds.index("request") < len(kinds) - 3
    progress = [event for event in events if event["kind"] == "progress"]
    assert len(progress) >= 3
    assert progress[-1]["text"].startswith("3 of 3 requests, ")
    assert (progress[-1]["done"], progress[-1]["total"], progress[-1]["tokens"]) == (3, 3, 27)


def test_a_lost_controller_ends_the_load():
    """Nobody reads it: requests are dropped, the server is left alone."""

    def emit(event):
        raise ControllerLost("gone")

    with Server(speaking(per_step=1, step_s=0.05)) as server:
        requests = [{"text": str(index)} for index in range(50)]
        started = time.monotonic()
        with pytest.raises(ControllerLost):
            load_round({"server": {"port": server.port}, "requests": requests, "max_tokens": 9}, emit)
        assert time.monotonic() - started < 5
        assert len(server.asked) < 10


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([Status(500, "boom")], "500: boom"),
        ([Cut()], "before it answered"),
        ([{"output_ids": [1], "meta_info": {"completion_tokens": 1}}, Cut()], "closed the connection"),
        ([Status(200, "no JSON")], "ended before [DONE]"),
        ([{"object": "error", "message": "context length exceeded"}], "context length exceeded"),
    ],
)
def test_failures_have_their_reason(parts, words):
    """Listed, and none is sent again."""
    with Server(lambda server, asked: iter(parts)) as server:
        rows, _, _ = ask(server, 2)
        assert len(server.asked) == 2
    assert [row["ok"] for row in rows] == [False, False]
    assert words in rows[0]["error"]


def test_nobody_listens():
    """A server that is gone in the middle: refused, at once."""
    with Server(TREE) as server:
        pass
    rows, _, _ = ask(server)
    assert [row["outcome"] for row in rows] == ["failed"] * 4
    assert "nothing listens" in rows[0]["error"]


def test_text_that_imitates_the_servers_numbers():
    """The count of tokens is looked for in bytes; generated text cannot contain it unescaped."""

    def script(server, asked):
        for count in (1, 2, 3):
            meta = {"prompt_tokens": 9, "completion_tokens": count, "finish_reason": None}
            evil = 'x","meta_info":{"completion_tokens":999}} "completion_tokens":888'
            yield {"text": evil, "output_ids": list(range(count)), "meta_info": meta}
            time.sleep(0.002)

    with Server(script) as server:
        rows, _, _ = ask(server, 1)
    assert (rows[0]["tokens"], rows[0]["first_tokens"], len(rows[0]["itl_s"])) == (3, 1, 2)
    payload = json.dumps({"meta_info": {"completion_tokens": 3}, "text": 'say "completion_tokens":7'}).encode()
    one = Generated({"index": 0}, True, 0.0)
    one._part(payload, 1.0)
    assert one._tokens == 3


def test_bad_parameters_are_named():
    """By the index of the request."""
    with pytest.raises(HostError, match="request 1 has no text"):
        load_round({"server": {"port": 1}, "requests": [{"text": "a"}, {"x": 1}]}, print)
    with pytest.raises(HostError, match="not empty"):
        load_round({"server": {"port": 1}, "requests": []}, print)
    with pytest.raises(HostError, match="a service, or a server"):
        load_round({"requests": [{"text": "a"}]}, print)


def test_it_costs_little_beside_the_server():
    """C=32 on two cores must not be bound by the generator: its CPU time per part of a stream is far below a
    millisecond (about 0.06 ms on the machine where this was written), so 32 streams of 100 parts a second cost a fifth
    of one core."""
    with Server(speaking(per_step=4, step_s=0.02)) as server:
        _, result, _ = ask(server, 64, concurrency=32, max_tokens=65)
        assert server.most == 32
    parts = 64 * 17
    assert result["client"]["cpu_s"] / parts < 0.0005


# -- the wire --


BODY = b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'


def chunked(body, sizes):
    found, rest = [], body
    for size in sizes:
        part, rest = rest[:size], rest[size:]
        if part:
            found.append(b"%x\r\n%s\r\n" % (len(part), part))
    if rest:
        found.append(b"%x\r\n%s\r\n" % (len(rest), rest))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(found) + b"0\r\n\r\n"


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), max_size=6), st.lists(st.integers(1, 30), max_size=20))
def test_any_cut_of_the_bytes_gives_the_same_events(sizes, cuts):
    """Chunks and packets end where they like, also inside a header, a chunk's length or an event."""
    data = chunked(BODY, sizes)
    answer, events, found = Answer(), Events(), []
    for cut in [*cuts, len(data)]:
        part, data = data[:cut], data[cut:]
        found += events.feed(answer.feed(part)) if part else []
    assert found == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]
    assert (answer.status, answer.complete) == (200, True)


def test_other_encodings_of_the_body():
    """With a length, and until the connection closes; an early end is an error in both."""
    answer = Answer()
    assert answer.feed(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbus") == b"bus"
    with pytest.raises(WireError, match="before its answer was complete"):
        answer.end()
    assert (answer.feed(b"y"), answer.complete, answer.status) == (b"y", True, 503)
    answer = Answer()
    assert answer.feed(b"HTTP/1.0 200 OK\r\n\r\nall") == b"all"
    answer.end()
    assert answer.complete


@pytest.mark.parametrize("data", [b"SSH-2.0-x\r\n\r\n", b"x" * 70000, b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_is_said(data):
    """Another service on the port."""
    with pytest.raises(WireError):
        Answer().feed(data)


# -- the controller's side --


class Broken(DirectLink):
    """The connection is lost when two requests have been told."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def call(self, verb, params=None, *, timeout=600.0, on_event=None):
        told = []

        def hear(event):
            on_event(event)
            told.append(event["kind"])
            if told.count("request") == 2:
                raise ControllerLost("cut")

        try:
            return super().call(verb, params, timeout=timeout, on_event=hear)
        except ControllerLost:
            raise self.error from None


@pytest.mark.parametrize("error", [TransportError("the connection broke"), KeyboardInterrupt()])
def test_a_cut_round_keeps_what_was_measured(error):
    """Connection or Ctrl-C: the row says that it is not whole, and the error goes on."""
    kept = []
    setting = load.Setting(arm="ddtree", budget=16, regime="chat", concurrency=1)
    with Server(TREE) as server, pytest.raises(type(error)):
        load.measure(Broken(error), play.target(server), setting, play.prompts(), play.PLAN, cut=kept.append)
    (row,) = kept
    assert (len(row.requests), row.verdict, row.cut) == (2, "invalid", True)
    assert row.why[0].startswith("cut after 2 of 4 requests: ")
    assert row.requests[0].ids


def test_an_error_before_the_first_request_is_no_row():
    """A host that refuses the parameters has measured nothing."""
    kept = []
    setting = load.Setting(arm="ddtree", regime="chat", concurrency=1)
    with pytest.raises(DdtreeError):
        load.measure(DirectLink(), {}, setting, play.prompts(), play.PLAN, cut=kept.append)
    assert kept == []


def test_through_a_real_channel():
    """The bundled program in a process of its own, as on a host; the row is the same, and events come meanwhile."""
    with Server(TREE) as server, connect(Host(name="here", transport="local")) as link:
        heard = []
        setting = load.Setting(arm="ddtree", budget=16, regime="chat", concurrency=2)
        prompts, note = load.resolved(link, play.target(server), play.prompts(form="messages"))
        row = load.measure(link, play.target(server), setting, prompts, play.PLAN, on_event=heard.append)
        assert server.asked[0].body["input_ids"]
    assert (note, row.verdict, len(row.requests)) == ("", "ok", 4)
    assert [event["kind"] for event in heard].count("request") == 4
    assert row.client.busy < 0.9


def test_a_channel_that_dies_in_the_middle():
    """The host's process is killed: what had ended by then is a row; the server gets no further requests."""
    kept, heard = [], []
    with Server(speaking(per_step=1, step_s=0.03)) as server, connect(Host(name="here", transport="local")) as link:
        pid = link.call("ping", timeout=60)["pid"]

        def hear(event):
            heard.append(event)
            if event["kind"] == "request" and len(heard) > 1:
                os.kill(pid, signal.SIGKILL)

        setting = load.Setting(arm="ddtree", budget=16, regime="chat", concurrency=1)
        many = play.prompts(40)
        with pytest.raises(TransportError):
            load.measure(link, play.target(server), setting, many, play.PLAN, on_event=hear, cut=kept.append)
        asked = len(server.asked)
        threading.Event().wait(0.5)
        assert len(server.asked) <= asked + 1
    assert len(kept[0].requests) >= 1
    assert kept[0].why[0].startswith("cut after ")


def test_ids_for_every_arm_are_asked_once():
    """Prompts that have ids are left alone; without /tokenize at all, raw text stays and the note says it."""
    with Server(TREE) as server:
        given_ids = [type(one)(id=one.id, input_ids=(1, 2)) for one in play.prompts(2)]
        assert load.resolved(DirectLink(), play.target(server), given_ids) == (tuple(given_ids), "")
    gone, note = load.resolved(DirectLink(), play.target(server), play.prompts(2, form="messages"))
    assert note.startswith("no chat template")
    assert gone[0].request(0).keys() == {"index", "id", "text"}
