"""Corners of the protocol, against a fake server that speaks just enough HTTP; real answers are tested with SGLang."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator

import pytest

from ddtree_ops.host.greedy import Sampling, ask, flush
from ddtree_ops.host.http import Client, HttpTrouble, api_key

META = {"prompt_tokens": 3, "completion_tokens": 0, "cached_tokens": 0}


class Handler(http.server.BaseHTTPRequestHandler):
    """``/generate`` acts as the prompt's text says."""

    flushes = 0

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if self.path == "/flush_cache":
            Handler.flushes += 1
            return self.reply(400 if Handler.flushes < 3 else 200, b"busy")
        mode = body["text"]
        if mode == "refused":
            return self.reply(400, b'{"error": {"message": "return_logprob is not supported"}}')
        if mode == "never":
            time.sleep(3)
            return None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for count in range(0 if mode == "empty" else 4):
            incremental = mode == "incremental"
            ids = [count] if incremental else list(range(count + 1))
            meta = {**META, "completion_tokens": count + 1, "finish_reason": {"type": "length"} if count == 3 else None}
            if mode == "steps":
                meta.update(spec_verify_ct=2, spec_num_correct_drafts=2)
            self.event({"output_ids": ids, "meta_info": meta})
            if mode == "stall" and count == 1:
                time.sleep(3)
            if mode == "slow":
                time.sleep(0.3)
            if mode == "cut" and count == 2:
                return None
        if mode == "error":
            self.event({"error": {"message": "out of memory"}})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def do_GET(self):
        return self.reply(200, json.dumps({"key": self.headers.get("Authorization")}).encode())

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def client() -> Iterator[Client]:
    Handler.flushes = 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  clients hang up on purpose
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Client("0.0.0.0", server.server_address[1], "sk-secret")
    server.shutdown()
    server.server_close()


def once(client: Client, mode: str, silence: float = 1.0):
    return ask(client, {"id": mode, "text": mode}, Sampling({"max_tokens": 4, "silence": silence}))


@pytest.mark.parametrize("mode", ["plain", "incremental", "slow"])
def test_streams_of_both_kinds(client, mode):
    """Cumulative and incremental output give the same tokens; a slow stream lives although it takes longer than the
    limit on silence."""
    row = once(client, mode)
    assert row["ok"]
    assert row["ids"] == [0, 1, 2, 3]
    assert (row["completion_tokens"], row["first_tokens"], row["finish"]) == (4, 1, "length")
    assert row["verify_ct"] == 0


def test_steps(client):
    """Per-request numbers of speculation come from the request's own meta information."""
    row = once(client, "steps")
    assert (row["verify_ct"], row["accepted_drafts"]) == (2, 2)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("stall", "sent nothing for 1 s"),
        ("never", "sent nothing for 1 s"),
        ("cut", "ended before [DONE]"),
        ("empty", "the answer is empty"),
        ("error", "out of memory"),
        ("refused", "answered 400"),
    ],
)
def test_failures_are_rows_with_reasons(client, mode, words):
    """F10, F5: silence, a cut stream, an empty answer and an error are failed requests, each with its own words."""
    row = once(client, mode)
    assert not row["ok"]
    assert words in row["error"]
    assert "sk-secret" not in repr(row)


def test_nobody_listens():
    """A refused connection is told apart from a silent server."""
    with pytest.raises(HttpTrouble) as caught:
        Client("127.0.0.1", 1).get("/health")
    assert caught.value.kind == "refused"


def test_the_key_is_sent(client):
    """As a bearer token."""
    assert client.get("/x").json() == {"key": "Bearer sk-secret"}


def test_a_busy_flush_is_tried_again(client):
    """F1: flush_cache answers 400 while requests run."""
    assert flush(client) == ""
    assert Handler.flushes == 3


def test_the_key_of_a_process(tmp_path):
    """A server that is taken over has its key in its arguments or its environment."""
    import os
    import subprocess
    import sys

    sleeper = [sys.executable, "-c", "import time; time.sleep(30)"]
    for argv, environment in (([*sleeper, "--api-key", "k-1"], {}), (sleeper, {"SGLANG_DDTREE_API_KEY": "k-1"})):
        child = subprocess.Popen(argv, env={**os.environ, **environment})
        try:
            for _ in range(100):
                if api_key("", child.pid):
                    break
                time.sleep(0.02)
            assert api_key("", child.pid) == "k-1"
        finally:
            child.kill()
            child.wait()
    assert api_key(str(tmp_path / "missing")) == ""
