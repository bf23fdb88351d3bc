"""A real HTTP server that answers as a test says: the field cases of the bench are played on it.

It speaks as SGLang does: ``/generate`` streams cumulative events in chunked encoding, ``/flush_cache``, ``/health``,
``/tokenize``, ``/v1/chat/completions``. A *script* is a function of the request that yields what to send; the ready
ones below are enough for most cases. Nothing here knows the load generator.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any]


@dataclass
class Status:
    """An answer that is no stream."""

    code: int
    body: Any = ""


@dataclass
class Wait:
    """Nothing is sent for so long; the socket stays open."""

    seconds: float


@dataclass
class Cut:
    """The connection is closed in the middle."""


@dataclass
class Asked:
    """One request as the server sees it; ``number`` counts from 0."""

    number: int
    path: str
    body: Event

    @property
    def text(self) -> str:
        return str(self.body.get("text") or self.body.get("input_ids") or self.body.get("messages"))

    @property
    def max_tokens(self) -> int:
        return int(self.body.get("sampling_params", {}).get("max_new_tokens") or self.body.get("max_tokens") or 8)


Part = Event | Status | Wait | Cut
Script = Callable[["Server", Asked], Iterator[Part]]


@dataclass
class Server:
    """Use as a context manager; ``port`` is where it listens then."""

    script: Script
    health: int = 200
    flush: Sequence[int] = (200,)  # statuses in turn; the last one stays
    arguments: Event = field(default_factory=dict)
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    flushes: int = 0
    keys: set[str] = field(default_factory=set)  # what the Authorization header said
    seen: set[str] = field(default_factory=set)  # prompts in the prefix cache
    most: int = 0  # requests at the same time
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Server:
        handler = type("Bound", (Handler,), {"scripted": self})
        ThreadingHTTPServer.request_queue_size = 128
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()

    def cached(self, asked: Asked) -> int:
        """Prompt tokens that the prefix cache has; the prompt is in it from now on."""
        key = f"{asked.body.get('extra_key') or ''}|{asked.text}"
        with self.lock:
            known = key in self.seen
            self.seen.add(key)
        return prompt_tokens(asked) - 1 if known else 0


def prompt_tokens(asked: Asked) -> int:
    ids = asked.body.get("input_ids")
    return len(ids) if ids else 40


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.scripted
        if self.path in ("/health", "/health_generate"):
            self.reply(server.health, "")
        elif self.path in ("/server_info", "/get_server_info"):
            self.reply(200, {"version": "0.5.17", "dtype": "bfloat16", **server.arguments})
        else:
            self.reply(404, "")

    def do_POST(self) -> None:
        server = self.scripted
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path.startswith("/flush_cache"):
            status = server.flush[min(server.flushes, len(server.flush) - 1)]
            server.flushes += 1
            if status == 200:
                server.seen.clear()
            return self.reply(
                status, "Cache flushed." if status == 200 else "Flush cache failed: requests are running."
            )
        if self.path == "/tokenize":
            text = body.get("prompt") or "".join(str(one["content"]) for one in body["messages"])
            return self.reply(200, {"tokens": [ord(letter) for letter in text], "count": len(text)})
        with server.lock:
            asked = Asked(len(server.asked), self.path, body)
            server.keys.add(self.headers.get("Authorization") or "")
            server.asked.append(asked)
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            self.play(server.script(server, asked), bool(body.get("stream")))
        except OSError:
            pass  # the client went away
        finally:
            with server.lock:
                server.now -= 1
        return None

    def play(self, parts: Iterator[Part], stream: bool) -> None:
        self.close_connection = True
        open_stream, last = False, None
        for part in parts:
            if isinstance(part, Status):
                return self.reply(part.code, part.body)
            if isinstance(part, Cut):
                self.wfile.flush()
                return None
            if isinstance(part, Wait):
                self.scripted.stopping.wait(part.seconds)
                continue
            last = part
            if stream:
                if not open_stream:
                    self.head()
                    open_stream = True
                self.chunk(b"data: " + json.dumps(part, separators=(",", ":")).encode() + b"\n\n")
        if not stream:
            return self.reply(200, last)
        if not open_stream:
            self.head()
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")
        return None

    def head(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def reply(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


# -- scripts --


def speaking(
    *,
    per_step: int = 1,
    step_s: float = 0.0,
    first_s: float = 0.0,
    speculates: bool | None = None,
    ids: Callable[[Asked, int], int] | None = None,
    tokens: int = 0,
    gap: Callable[[Asked, int], list[tuple[int, float]]] | None = None,
    incremental: bool = False,
    cache: bool = True,
) -> Script:
    """A healthy server: one prefill token, then ``per_step`` tokens each ``step_s`` seconds.

    ``ids`` gives the token at a position, ``gap`` its candidates ``(token, log-probability)``.
    """
    counts = per_step > 1 if speculates is None else speculates
    token = ids or (lambda asked, at: at % 50 + 1)

    def script(server: Server, asked: Asked) -> Iterator[Part]:
        total = tokens or asked.max_tokens
        cached = server.cached(asked) if cache else 0
        if first_s:
            yield Wait(first_s)
        done, steps = 0, 0
        while done < total:
            if done and step_s:
                time.sleep(step_s)
            new = min(total - done, per_step if done else 1)
            start, done, steps = done, done + new, steps + (1 if done else 0)
            said = [token(asked, at) for at in range(0 if not incremental else start, done)]
            meta: Event = {
                "id": str(asked.number),
                "finish_reason": {"type": "length", "length": total} if done == total else None,
                "prompt_tokens": prompt_tokens(asked),
                "completion_tokens": done,
                "cached_tokens": cached,
            }
            if counts and steps:
                meta.update(spec_verify_ct=steps, spec_num_correct_drafts=max(0, done - 1 - steps))
            if asked.body.get("return_logprob"):
                found = [(gap(asked, at) if gap else [(token(asked, at), -0.1)]) for at in range(done)]
                meta["output_top_logprobs"] = [[[score, one, None] for one, score in pos] for pos in found]
            yield {"text": "x" * done, "output_ids": said, "meta_info": meta}

    return script
