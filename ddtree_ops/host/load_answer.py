"""What is measured of one request: from the bytes of its answer to one row.

Two kinds of endpoint: ``/generate`` (token ids, per-request counts of verify steps) and ``/v1/chat/completions`` (text,
reasoning told apart). In a stream, the parts are timed and only the count of tokens is looked for; the last part, which
repeats or completes all others, is decoded once, after the request has ended.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

from .greedy import numbers, top_of
from .load_wire import Answer, Events, WireError

Row = Dict[str, Any]

_COUNT = b'"completion_tokens":'
_ERROR_BYTES = 4000


class Measured:
    """One request on its way; times are seconds of the monotonic clock."""

    def __init__(self, asked: Row, stream: bool, started: float) -> None:
        self.asked = asked
        self.stream = stream
        self.started = started
        self.last_byte = started
        self.done = False
        self._answer = Answer()
        self._events = Events()
        self._times: List[float] = []  # of each part with new tokens
        self._tokens = 0
        self._first_tokens = 0
        self._error = ""
        self._body = bytearray()  # of an answer that is no stream

    def feed(self, data: bytes, now: float) -> None:
        """Bytes that arrived at ``now``. Raises :class:`WireError`."""
        self.last_byte = now
        body = self._answer.feed(data)
        if not body and not self._answer.complete:
            return
        if self.stream and self._answer.status == 200:
            for payload in self._events.feed(body):
                if payload == b"[DONE]":
                    self.done = True
                elif not self.done:
                    self._part(payload, now)
        else:
            self._body += body
        self.done = self.done or (self._answer.complete and not (self.stream and self._answer.status == 200))
        if self._answer.complete and not self.done:
            raise WireError("broken", "the stream ended before [DONE]")

    def end(self) -> None:
        """The server closed the connection. Raises :class:`WireError` if that was too early."""
        if self.done:
            return
        self._answer.end()
        if self.stream and self._answer.status == 200:
            raise WireError("broken", "the stream ended before [DONE]")
        self.done = True

    def _part(self, payload: bytes, now: float) -> None:
        raise NotImplementedError

    def _final(self) -> Row:
        raise NotImplementedError

    def _count(self, tokens: int, now: float) -> None:
        """``tokens`` so far; a part without new ones is not timed."""
        if tokens > self._tokens:
            if not self._times:
                self._first_tokens = tokens
            self._tokens = tokens
            self._times.append(now)

    def row(self, now: float, trouble: Optional[WireError] = None) -> Row:
        """The finished request as one row; ``trouble`` is what ended it, if it did not end by itself."""
        row: Row = {
            "index": self.asked["index"],
            "id": str(self.asked.get("id") or self.asked["index"]),
            "ok": False,
            "outcome": "failed",
            "error": None,
            "tokens": self._tokens,
            "total_s": round((now if trouble else self.last_byte) - self.started, 6),
        }
        if trouble is not None:
            row["outcome"] = "timeout" if trouble.kind == "silent" else "failed"
            row["error"] = trouble.text
            return row
        if self._answer.status != 200:
            row["error"] = "%d: %s" % (self._answer.status, _message(bytes(self._body)))
            return row
        try:
            row.update(self._final())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            row["error"] = "the answer cannot be read: %s: %s" % (type(error).__name__, error)
            return row
        if self._error:
            row["error"] = self._error
        elif row["tokens"] <= 0:
            row.update(outcome="empty", error="the answer has no tokens (finish: %s)" % (row.get("finish") or "none"))
        else:
            row.update(ok=True, outcome="ok")
        if self._times:
            row["ttft_s"] = round(self._times[0] - self.started, 6)
            row["first_tokens"] = self._first_tokens
            row["itl_s"] = [round(b - a, 6) for a, b in zip(self._times, self._times[1:])]
            row["total_s"] = round(max(self._times[-1] - self.started, row["total_s"]), 6)
        return row


class Generated(Measured):
    """``/generate``: cumulative parts by default, new tokens alone with ``--incremental-streaming-output``."""

    def __init__(self, asked: Row, stream: bool, started: float) -> None:
        super().__init__(asked, stream, started)
        self._parts: List[bytes] = []
        self._cumulative = False

    def _part(self, payload: bytes, now: float) -> None:
        if payload.startswith(b'{"error"'):
            self._error = _message(payload)
            return
        before = self._tokens
        self._count(_tokens_of(payload), now)
        if not self._cumulative and before and self._tokens > before:
            # a cumulative part holds all ids so far; a race in the server may even put the next ones in
            self._cumulative = len(json.loads(payload.decode("utf-8")).get("output_ids") or ()) >= self._tokens
            self._parts = [] if self._cumulative else self._parts
        if self._cumulative:
            self._parts = [payload]
        else:
            self._parts.append(payload)

    def _final(self) -> Row:
        payloads = self._parts if self.stream else [bytes(self._body)]
        items = [json.loads(payload.decode("utf-8")) for payload in payloads]
        if not items:
            return {"tokens": 0, "finish": ""}
        if "meta_info" not in items[-1]:
            self._error = _message(payloads[-1])
        meta = dict(items[-1].get("meta_info") or {})
        found = numbers(meta)
        last = list(items[-1].get("output_ids") or ())
        ids = last if len(last) >= found["completion_tokens"] else [i for one in items for i in one["output_ids"]]
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            self._error = "aborted by the server: %s" % (reason.get("message") or "no reason given")
        row: Row = {
            "tokens": found["completion_tokens"],
            "ids": ids[: found["completion_tokens"]],
            "prompt_tokens": found["prompt_tokens"],
            "cached_tokens": found["cached_tokens"],
            "verify_ct": found["verify_ct"] if "spec_verify_ct" in meta else None,
            "accepted_drafts": found["accepted_drafts"],
            "finish": found["finish"],
        }
        if meta.get("reasoning_tokens"):
            row["reasoning_tokens"] = int(meta["reasoning_tokens"])
        if meta.get("output_top_logprobs"):
            row["top"] = top_of(meta)
        return row


class Chatted(Measured):
    """``/v1/chat/completions``: tokens from ``usage``, never from the length of the visible text."""

    def __init__(self, asked: Row, stream: bool, started: float) -> None:
        super().__init__(asked, stream, started)
        self._visible = 0
        self._hidden = 0
        self._usage: Row = {}
        self._finish = ""

    def _part(self, payload: bytes, now: float) -> None:
        item = json.loads(payload.decode("utf-8"))
        if item.get("error"):
            self._error = _message(payload)
            return
        if self._take(item, "delta"):  # without running usage a part counts as one token, until the end tells
            self._count(max(int(self._usage.get("completion_tokens") or 0), self._tokens + 1), now)

    def _take(self, item: Row, key: str) -> bool:
        """Whether the part has text, visible or not."""
        self._usage = dict(item.get("usage") or self._usage)
        new = False
        for choice in item.get("choices") or ():
            said = dict(choice.get(key) or {})
            visible = len(said.get("content") or "")
            hidden = len(said.get("reasoning_content") or said.get("reasoning") or "")
            self._visible, self._hidden = self._visible + visible, self._hidden + hidden
            self._finish = str(choice.get("finish_reason") or self._finish)
            new = new or bool(visible or hidden)
        return new

    def _final(self) -> Row:
        if not self.stream:
            self._take(json.loads(bytes(self._body).decode("utf-8")), "message")
        usage = self._usage
        if not usage and (self._visible or self._hidden):
            self._error = "the answer has no usage: its tokens cannot be counted"
        details = dict(usage.get("completion_tokens_details") or {})
        reasoning = usage.get("reasoning_tokens", details.get("reasoning_tokens"))
        tokens = int(usage.get("completion_tokens") or 0)
        self._first_tokens = min(self._first_tokens, tokens)
        return {
            "tokens": tokens,
            "prompt_tokens": int(usage.get("prompt_tokens") or 0),
            "cached_tokens": int(dict(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            "reasoning_tokens": int(reasoning) if reasoning is not None else (tokens if self._only_hidden else None),
            "visible": bool(self._visible),
            "finish": self._finish,
        }

    @property
    def _only_hidden(self) -> bool:
        return bool(self._hidden and not self._visible)


def _tokens_of(payload: bytes) -> int:
    """The count of completion tokens in a part, without decoding it. Generated text cannot imitate it: its quotes are
    escaped, and the server's own numbers stand behind it."""
    at = payload.rfind(_COUNT)
    if at <= 0 or payload[at - 1 : at] == b"\\":
        return int(dict(json.loads(payload.decode("utf-8")).get("meta_info") or {}).get("completion_tokens") or 0)
    digits = payload[at + len(_COUNT) : at + len(_COUNT) + 12].lstrip()
    end = 0
    while digits[end : end + 1].isdigit():
        end += 1
    return int(digits[:end] or 0)


def _message(body: bytes) -> str:
    """The server's own words in an error."""
    text = body[:_ERROR_BYTES].decode("utf-8", "replace").strip()
    try:
        found: Any = json.loads(text)
        while isinstance(found, dict):
            found = found.get("error") or found.get("message") or found.get("detail") or ""
        return (str(found) or text)[:300]
    except ValueError:
        return text[:300] or "no text"
