"""The load generator: a closed loop of ``concurrency`` requests against the server of this host.

One thread, one selector, so that what it costs the server's CPU is small and known: ``client`` in the result is its CPU
time. A second thread only carries finished requests to the controller, so that a slow connection does not delay a time
stamp. A request ends with its answer, or when no byte has come for ``silence`` seconds; there is no limit on the length
of an answer, and nothing is sent again. A server that is silent towards everybody twice in a row gets nothing more:
what is left counts as failed.
"""

from __future__ import annotations

import queue
import selectors
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from .greedy import flush as flush_cache
from .http import KEY_NAME, Client, HttpTrouble, read_secrets
from .load_answer import Chatted, Generated, Measured
from .load_wire import Connection, WireError, request_bytes
from .protocol import ControllerLost, Emit, HostError, verb

Row = Dict[str, Any]

SILENCE_SECONDS = 120.0
TELL_SECONDS = 1.0
_LOOK_SECONDS = 0.25  # between two looks at who is silent
_SILENCES = 2  # times that all requests in work went silent together, with no byte in between

SOAK_TOKENS, SOAK_CONCURRENCY = 4, 8


class Wanted:
    """The parameters of ``load_round``, checked."""

    def __init__(self, params: Row) -> None:
        self.requests = [dict(item) for item in params.get("requests") or ()]
        if not self.requests:
            raise HostError("bad_params", "requests must be a list that is not empty", exit=1)
        for index, item in enumerate(self.requests):
            item.setdefault("index", index)
            if not any(item.get(key) for key in ("text", "input_ids", "messages")):
                raise HostError("bad_params", "request %d has no text, input_ids or messages" % index, exit=1)
        self.concurrency = max(1, int(params.get("concurrency") or 1))
        self.sampling: Row = dict(params.get("sampling") or {})
        self.sampling.setdefault("temperature", 0.0)
        self.sampling.setdefault("max_new_tokens", int(params.get("max_tokens") or 128))
        self.stream = bool(params.get("stream", True))
        self.silence = float(params.get("silence") or SILENCE_SECONDS)
        self.isolate = str(params.get("isolate") or "")
        self.logprobs = int(params.get("logprobs") or 0)
        self.keep = [name for name in ("ids", "itl") if params.get(name, True)]

    def body(self, item: Row) -> Tuple[str, Row]:
        """Path and body of one request."""
        sampling = dict(self.sampling, **(item.get("sampling") or {}))
        if item.get("messages"):
            return "/v1/chat/completions", self._chat(item, sampling)
        body: Row = {"sampling_params": sampling, "stream": self.stream}
        body.update({key: item[key] for key in ("text", "input_ids") if item.get(key)})
        if self.isolate:
            body["extra_key"] = "%s/%s" % (self.isolate, item["index"])
        if self.logprobs:
            body.update(return_logprob=True, top_logprobs_num=self.logprobs)
        return "/generate", body

    def _chat(self, item: Row, sampling: Row) -> Row:
        body: Row = {"model": item.get("model") or "default", "messages": item["messages"], "stream": self.stream}
        body["max_tokens"] = sampling.pop("max_new_tokens")
        body.update(sampling)
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.isolate:
            body["extra_key"] = "%s/%s" % (self.isolate, item["index"])
        return body


class Teller(threading.Thread):
    """Carries events to the controller; :attr:`lost` is set when there is nobody any more."""

    def __init__(self, emit: Emit, total: int) -> None:
        super().__init__(daemon=True)
        self._emit = emit
        self._total = total
        self._queue: "queue.Queue[Optional[Row]]" = queue.Queue()
        self._begun = time.monotonic()
        self._done = self._failed = self._tokens = 0
        self.cpu = 0.0
        self.lost: Optional[ControllerLost] = None

    def tell(self, row: Row) -> None:
        """A request has ended."""
        self._queue.put(row)

    def finish(self) -> None:
        """Carry what is left, then end. Raises :class:`ControllerLost`."""
        self._queue.put(None)
        self.join()
        if self.lost:
            raise self.lost

    def run(self) -> None:
        last = 0.0
        try:
            while True:
                try:
                    row = self._queue.get(timeout=TELL_SECONDS)
                except queue.Empty:
                    row = {}
                if row is None:
                    return self._progress()
                if row:
                    self._note(row)
                    self._emit({"kind": "request", "row": row})
                if time.monotonic() - last >= TELL_SECONDS:
                    last = time.monotonic()
                    self._progress()
        except ControllerLost as lost:
            self.lost = lost
        finally:
            self.cpu = time.thread_time()
        return None

    def _note(self, row: Row) -> None:
        self._done += 1
        self._failed += not row["ok"]
        self._tokens += row["tokens"] if row["ok"] else 0

    def _progress(self) -> None:
        seconds = max(time.monotonic() - self._begun, 1e-6)
        text = "%d of %d requests, %.0f tokens/s" % (self._done, self._total, self._tokens / seconds)
        if self._failed:
            text += ", %d failed" % self._failed
        event = {"kind": "progress", "step": "load", "text": text, "done": self._done, "total": self._total}
        self._emit(dict(event, tokens=self._tokens, failed=self._failed))


class Round:
    """One round: all requests, at most ``concurrency`` at a time."""

    def __init__(self, wanted: Wanted, client: Client, emit: Emit) -> None:
        self._wanted = wanted
        self._client = client
        self._address = (client.host, client.port)
        self._teller = Teller(emit, len(wanted.requests))
        self._selector = selectors.DefaultSelector()
        self._waiting = [self._packed(item) for item in reversed(wanted.requests)]
        self._active: Dict[int, Tuple[Connection, Measured]] = {}
        self._last_byte = time.monotonic()
        self._next_look = 0.0
        self._silences = 0

    def _packed(self, item: Row) -> Tuple[Row, bytes]:
        """Bodies are made before the clock starts."""
        path, body = self._wanted.body(item)
        return item, request_bytes(self._client.host, self._client.port, path, body, self._client.key)

    def run(self) -> Row:
        """Send everything; returns the figures of the round, without its rows."""
        self._teller.start()
        cpu, started = time.thread_time(), time.monotonic()
        ended = started
        try:
            self._fill()
            while self._active:
                if self._teller.lost:
                    raise self._teller.lost
                for key, _ in self._selector.select(_LOOK_SECONDS):
                    self._serve(key.fd)
                self._end_silent()
                self._fill()
            ended = time.monotonic()
        finally:
            cpu = time.thread_time() - cpu
            for connection, _ in self._active.values():
                connection.close()
            self._selector.close()
            if not self._teller.lost:
                self._teller.finish()
        return {
            "seconds": round(ended - started, 6),
            "client": {"cpu_s": round(cpu + self._teller.cpu, 6), "wall_s": round(ended - started, 6)},
        }

    def _fill(self) -> None:
        if self._silences >= _SILENCES and not self._active:
            self._give_up()
        while self._waiting and len(self._active) < self._wanted.concurrency:
            item, data = self._waiting.pop()
            kind = Chatted if item.get("messages") else Generated
            measured = kind(item, self._wanted.stream, time.monotonic())
            try:
                connection = Connection(self._address, data)
            except WireError as trouble:
                self._tell(measured.row(time.monotonic(), trouble))
                continue
            self._active[connection.socket.fileno()] = (connection, measured)
            self._selector.register(connection.socket, selectors.EVENT_WRITE)

    def _serve(self, number: int) -> None:
        connection, measured = self._active[number]
        try:
            if connection.sending:
                connection.send()
                if not connection.sending:
                    self._selector.modify(connection.socket, selectors.EVENT_READ)
                return
            data = connection.receive()
            if data is None:
                return
            if data:
                self._last_byte, self._silences = time.monotonic(), 0
                measured.feed(data, self._last_byte)
            else:
                measured.end()
            if measured.done:
                self._end(number)
        except WireError as trouble:
            self._end(number, trouble)
        except ValueError as error:
            self._end(number, WireError("broken", "the answer cannot be read: %s" % error))

    def _end_silent(self) -> None:
        now, limit = time.monotonic(), self._wanted.silence
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        silent = [number for number, (_, one) in self._active.items() if now - one.last_byte > limit]
        if silent and now - self._last_byte > limit and len(silent) == len(self._active):
            self._silences += 1
        for number in silent:
            self._end(number, WireError("silent", "no byte came for %g s" % limit))

    def _give_up(self) -> None:
        """The server is silent towards everybody: what waits is not sent."""
        text = "not sent: the server was silent towards all requests twice in a row"
        while self._waiting:
            item, _ = self._waiting.pop()
            now = time.monotonic()
            self._tell(Generated(item, True, now).row(now, WireError("broken", text)))

    def _end(self, number: int, trouble: Optional[WireError] = None) -> None:
        connection, measured = self._active.pop(number)
        self._selector.unregister(connection.socket)
        connection.close()
        self._tell(measured.row(time.monotonic(), trouble))

    def _tell(self, row: Row) -> None:
        for name, key in (("ids", "ids"), ("itl", "itl_s")):
            if name not in self._wanted.keep:
                row.pop(key, None)
        self._teller.tell(row)


def client_of(params: Row) -> Client:
    """The server to ask: a ``service``, or a ``server`` of ``address``, ``port`` and perhaps ``secrets_file``."""
    if params.get("service"):
        from .runner import service_of

        return service_of(params).client()
    server = dict(params.get("server") or {})
    if not server.get("port"):
        raise HostError("bad_params", "load needs a service, or a server with a port", exit=1)
    secrets = str(server.get("secrets_file") or "")
    key = read_secrets(secrets).get(KEY_NAME, "") if secrets else ""
    return Client(str(server.get("address") or "127.0.0.1"), int(server["port"]), key)


@verb("load_round")
def load_round(params: Row, emit: Emit) -> Row:
    """One round of load; each request comes as an event ``{"kind": "request", "row": ...}`` as soon as it has ended.

    Args (in ``params``):
        service, server: Whom to ask, see :func:`client_of`.
        requests: ``text``, ``input_ids`` or ``messages`` each; ``id``, ``index``, ``sampling`` (its own) if wanted.
        concurrency, max_tokens, sampling (SGLang's names), silence (s), stream (default true).
        flush: Empty the prefix cache first; the result tells whether the server did.
        isolate: A word new to the server: requests then share no prefix with any other (``extra_key``).
        logprobs: Candidates per position that come back as ``top``; give ``stream: false`` with it.
        ids, itl: Whether rows hold token ids and times between chunks (default true).

    Result: ``seconds``, ``client``, ``flushed``, ``flush_error``, ``time``.
    """
    wanted, client = Wanted(params), client_of(params)
    trouble = ""
    if params.get("flush"):
        trouble = flush_cache(client)
    started = time.time()
    result = Round(wanted, client, emit).run()
    result.update(time=round(started, 3), flushed=bool(params.get("flush")) and not trouble, flush_error=trouble)
    return result


def soak(client: Client, prompts: List[Row], count: int, silence: float, emit: Emit) -> Row:
    """``count`` short requests, eight at a time: servers that answer a hundred and then hang have been seen.

    Result: ``requests``, ``seconds``, and in ``failed`` index, outcome and error of those that were not answered.
    """
    failed: List[Row] = []

    def listen(event: Row) -> None:
        row = event.get("row") or {}
        if event["kind"] == "progress":
            emit(dict(event, step="soak"))
        elif not row["ok"]:
            failed.append({key: row[key] for key in ("index", "outcome", "error")})

    requests = [dict(prompts[index % len(prompts)], index=index) for index in range(count)]
    wanted = {"requests": requests, "concurrency": SOAK_CONCURRENCY, "max_tokens": SOAK_TOKENS, "silence": silence}
    result = Round(Wanted(wanted), client, listen).run()
    return {
        "requests": count,
        "seconds": result["seconds"],
        "failed": sorted(failed, key=lambda one: int(one["index"])),
    }


@verb("load_flush")
def load_flush(params: Row, emit: Emit) -> Row:
    """Empty the prefix cache of ``service`` or ``server``: ``flushed``, and in ``error`` what it said if it did not."""
    trouble = flush_cache(client_of(params))
    return {"flushed": not trouble, "error": trouble}


@verb("load_tokens")
def load_tokens(params: Row, emit: Emit) -> Row:
    """Token ids of ``prompts`` (``text`` or ``messages`` each) by the server's own tokenizer and chat template.

    So every arm gets the same tokens, and chats are measured through ``/generate``, which counts verify steps. Result:
    ``ids``, a list per prompt. Raises ``no_tokenize`` (exit 4) where the server cannot.
    """
    client, found = client_of(params), []
    for index, item in enumerate(params.get("prompts") or ()):
        if item.get("input_ids"):
            found.append(list(item["input_ids"]))
            continue
        body: Row = {"messages": item["messages"]} if item.get("messages") else {"prompt": item["text"]}
        try:
            reply = client.request("POST", "/tokenize", body, timeout=60.0)
            ids: Any = reply.json().get("tokens") if reply.status == 200 else None
        except (HttpTrouble, AttributeError) as trouble:
            raise HostError("no_tokenize", "prompt %d cannot be tokenized: %s" % (index, trouble)) from None
        if not isinstance(ids, list) or not ids:
            raise HostError(
                "no_tokenize",
                "prompt %d cannot be tokenized: the server answered %d" % (index, reply.status),
                where=client.url + "/tokenize",
                next="give prompts as text, or a model with a chat template",
                details={"answer": reply.text()},
            )
        found.append([int(token) for token in ids])
    return {"ids": found}
