"""Frames and the host's loop, without a network."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.host import protocol
from ddtree_ops.host.frames import MAGIC, Decoder, FrameError, encode
from ddtree_ops.host.protocol import HostError

NONCE = "0123456789abcdef"
MESSAGES = st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=40) | st.none(), max_size=4)


@given(st.lists(st.tuples(st.binary(max_size=30), MESSAGES), max_size=5), st.binary(max_size=30), st.integers(1, 50))
def test_any_messages_in_any_noise_and_any_pieces_come_back(
    parts: list[tuple[bytes, dict[str, Any]]], tail: bytes, piece: int
) -> None:
    stream = b"".join(noise + encode(message, NONCE) for noise, message in parts) + tail
    decoder = Decoder(NONCE)
    got = [message for at in range(0, len(stream), piece) for message in decoder.feed(stream[at : at + piece])]
    assert got == [message for _, message in parts]
    assert decoder.noise <= sum(len(noise) for noise, _ in parts) + len(tail)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_never_another_message(position: int, change: int) -> None:
    """Whatever one damaged byte does, it must not yield a message that was not sent."""
    message = {"id": 7, "ok": True, "result": {"found": [], "text": "x" * 50}}
    frame = bytearray(encode(message, NONCE))
    frame[position % len(frame)] ^= change
    try:
        got = Decoder(NONCE).feed(bytes(frame))
    except FrameError:
        return
    assert got in ([], [message])


@given(st.integers(0, 200))
def test_a_cut_frame_is_never_a_message(count: int) -> None:
    frame = encode({"id": 1, "ok": True, "result": {}}, NONCE)
    decoder = Decoder(NONCE)
    got = decoder.feed(frame[:count])
    assert got == ([] if count < len(frame) else [{"id": 1, "ok": True, "result": {}}])
    assert decoder.partial == (len(MAGIC) + len(NONCE) + 1 <= count < len(frame))


def test_frames_of_another_run_are_noise() -> None:
    """A shell that echoes, or a second program on the same terminal, must not be taken for our host."""
    decoder = Decoder(NONCE)
    foreign = encode({"id": 1}, "f" * 16)
    assert decoder.feed(foreign + encode({"id": 2}, NONCE)) == [{"id": 2}]
    assert decoder.noise == len(foreign)
    assert decoder.noise_head == foreign


def test_short_last_words_are_noise() -> None:
    """`This account is currently not available.` must not wait for ever as a possible start of a frame."""
    decoder = Decoder(NONCE)
    decoder.feed(b"not available")
    decoder.finish()
    assert decoder.noise_head == b"not available"


def test_noise_is_kept_only_at_its_head() -> None:
    decoder = Decoder(NONCE)
    for _ in range(20):
        decoder.feed(b"n" * 100_000)
    assert decoder.noise > 1_900_000
    assert len(decoder.noise_head) == 4096


@pytest.mark.parametrize(
    "header", [b"-5 0123456789abcdef\n", b"99999999999 0123456789abcdef\n", b"5 0123\n", b"x" * 100]
)
def test_impossible_headers_are_damage(header: bytes) -> None:
    with pytest.raises(FrameError):
        Decoder(NONCE).feed(MAGIC + NONCE.encode() + b" " + header)


def test_surrogates_travel_as_ascii() -> None:
    name = os.fsdecode(b"caf\xe9")
    frame = encode({"name": name}, NONCE)
    (back,) = Decoder(NONCE).feed(frame)
    assert os.fsencode(back["name"]) == b"caf\xe9"


# -- verbs and errors --


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry, hooks and limit of the test's own."""
    monkeypatch.setattr(protocol, "VERBS", dict(protocol.VERBS))
    monkeypatch.setattr(protocol, "_lost_hooks", [])
    monkeypatch.setattr(protocol, "_idle_limit", None)


@pytest.mark.usefixtures("registry")
def test_two_modules_cannot_own_one_verb() -> None:
    def other(params: dict[str, Any], emit: protocol.Emit) -> dict[str, Any]:
        return {}

    with pytest.raises(ValueError, match=r"registered by ddtree_ops\.host\.protocol and"):
        protocol.verb("ping")(other)


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, "no_space"), (errno.EROFS, "read_only"), (errno.EACCES, "permission"), (errno.EDQUOT, "no_space")],
)
def test_conditions_of_the_host_are_no_bugs(number: int, code: str) -> None:
    """A full disk shown as "this is a bug in ddtree-ops" sends the reader the wrong way."""
    shown = protocol.describe(OSError(number, os.strerror(number), b"/var/lib/caf\xe9"))
    assert (shown["code"], shown["exit"]) == (code, 4)
    assert os.fsencode(shown["where"]) == b"/var/lib/caf\xe9"


def test_any_other_exception_is_a_bug_with_its_traceback() -> None:
    shown = protocol.describe(OSError(errno.ELOOP, "loop"))
    assert (shown["code"], shown["exit"]) == ("bug", 1)
    assert "loop" in shown["details"]["traceback"]


class Loop:
    """A running server in a thread, with pipes."""

    def __init__(self) -> None:
        request, self._request = os.pipe()
        self._reply, reply = os.pipe()
        self.requests = os.fdopen(self._request, "wb", buffering=0)
        self.replies = os.fdopen(self._reply, "rb", buffering=0)
        self._stdin, self._stdout = os.fdopen(request, "rb"), os.fdopen(reply, "wb")
        self.server = protocol.Server(self._stdin, self._stdout, NONCE)
        self.status: list[int] = []
        self.thread = threading.Thread(target=lambda: self.status.append(self.server.run()))
        self.thread.start()
        self.decoder = Decoder(NONCE)
        self.waiting: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.requests.write(encode(message, NONCE))

    def next(self) -> dict[str, Any]:
        while not self.waiting:
            self.waiting += self.decoder.feed(self.replies.read(65536))
        return self.waiting.pop(0)

    def end(self) -> None:
        self.requests.close()
        self.thread.join(10)
        for pipe in (self.replies, self._stdin, self._stdout):
            try:
                pipe.close()
            except OSError:
                continue


@pytest.fixture
def loop(registry: None) -> Iterator[Loop]:
    made = Loop()
    assert made.next()["id"] == 0
    yield made
    made.end()
    assert not made.thread.is_alive()


def test_events_then_exactly_one_reply(loop: Loop) -> None:
    @protocol.verb("count")
    def count(params: dict[str, Any], emit: protocol.Emit) -> dict[str, Any]:
        for number in range(params["to"]):
            emit({"kind": "progress", "done": number})
        return {"counted": params["to"]}

    loop.send({"id": 5, "verb": "count", "params": {"to": 3}})
    assert [loop.next()["event"]["done"] for _ in range(3)] == [0, 1, 2]
    assert loop.next() == {"id": 5, "ok": True, "result": {"counted": 3}}


def test_result_that_is_no_json_is_an_error_reply(loop: Loop) -> None:
    """Else the controller would wait for a reply that never comes."""

    @protocol.verb("odd")
    def odd(params: dict[str, Any], emit: protocol.Emit) -> dict[str, Any]:
        return {"set": {1, 2}}

    loop.send({"id": 1, "verb": "odd"})
    reply = loop.next()
    assert reply["ok"] is False
    assert "not JSON serializable" in reply["error"]["message"]


def test_host_error_keeps_its_fields(loop: Loop) -> None:
    @protocol.verb("refuse")
    def refuse(params: dict[str, Any], emit: protocol.Emit) -> dict[str, Any]:
        raise HostError("locked", "another run", where="/lock", next="wait", exit=5, details={"pid": 3})

    loop.send({"id": 1, "verb": "refuse"})
    assert loop.next()["error"] == {
        "code": "locked",
        "message": "another run",
        "where": "/lock",
        "next": "wait",
        "exit": 5,
        "details": {"pid": 3},
    }


def test_keepalive_has_no_reply(loop: Loop) -> None:
    loop.send({"id": 0, "verb": "keepalive"})
    loop.send({"id": 9, "verb": "ping"})
    assert loop.next()["id"] == 9


def test_hooks_run_backwards_once_and_one_that_fails_stops_none(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    protocol.on_lost(lambda reason: seen.append("first " + reason))

    def broken(reason: str) -> None:
        raise RuntimeError("hook")

    def removed(reason: str) -> None:
        seen.append("removed")

    protocol.on_lost(broken)
    protocol.on_lost(removed)
    protocol.off_lost(removed)
    loop.end()
    assert seen == ["first the controller closed the connection"]
    assert loop.status == [1]
    assert "RuntimeError: hook" in capsys.readouterr().err


def test_emit_ends_a_verb_whose_controller_is_gone(loop: Loop) -> None:
    """A wait of half an hour must not go on for nobody; a broad `except Exception` must not swallow the news."""
    gone = threading.Event()
    seen: list[str] = []

    @protocol.verb("wait")
    def wait(params: dict[str, Any], emit: protocol.Emit) -> dict[str, Any]:
        loop.requests.close()
        while True:
            time.sleep(0.01)
            try:
                emit({"kind": "progress"})
            except Exception:
                seen.append("swallowed")
            except protocol.ControllerLost:
                gone.set()
                raise

    loop.send({"id": 1, "verb": "wait"})
    assert gone.wait(5)
    loop.thread.join(5)
    assert seen == []
    assert loop.status == [0]


def test_damaged_request_is_not_run(loop: Loop) -> None:
    frame = bytearray(encode({"id": 1, "verb": "ping"}, NONCE))
    frame[-1] ^= 1
    loop.requests.write(bytes(frame))
    loop.thread.join(5)
    assert "could not be read" in loop.server.lost_reason


def test_encode_is_one_header_line() -> None:
    head = io.BytesIO(encode({"id": 1}, NONCE)).readlines()[:2]
    assert head[0] == b"\n"
    assert head[1].split()[:2] == [b"DDTREE-OPS", NONCE.encode()]
