"""One conversation with the program on the host: calls, events, deadlines.

Two threads drain the two output streams the whole time, so neither side can block on a full window; a third sends a
sign of life, because inside a transaction the host treats a silent controller as lost and undoes its work.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from ..errors import DdtreeError, TransportError, from_remote
from ..host.frames import Decoder, FrameError, encode
from ..host.protocol import PROTOCOL
from .bundle import CORE, Bundle

SILENCE = 25.0  # seconds without a byte while a call runs; the host beats every 5 s
STARTUP = 40.0  # seconds until the first word
KEEPALIVE = 20.0  # seconds between two signs of life to the host
_STDERR_KEPT = 64 * 1024
_CHUNK = 65536

OnEvent = Callable[[dict[str, Any]], None]
StartupFailure = Callable[[int | None, str, str], DdtreeError]


class Stream(Protocol):
    """A running helper: an SSH channel or a child process. Reads block and return ``b""`` at the end."""

    def read(self, size: int) -> bytes:
        """Bytes of stdout."""

    def read_error(self, size: int) -> bytes:
        """Bytes of stderr."""

    def write(self, data: bytes) -> None:
        """Send all of ``data`` to stdin; OSError when that is impossible or takes too long."""

    def close_input(self) -> None:
        """End of stdin: the helper finishes by itself."""

    def wait(self, timeout: float) -> int | None:
        """Exit status, None when it is not known in time."""

    def abandon(self) -> None:
        """Drop the connection at once."""


class Link:
    """The open conversation with one host; made by :func:`ddtree_ops.remote.connection.connect`.

    One call runs at a time. ``hello`` is what the program said first (Python version, pid, euid), set once the
    first call returned.
    """

    def __init__(
        self,
        stream: Stream,
        nonce: str,
        host: str,
        *,
        program: Bundle,
        on_event: OnEvent | None = None,
        startup_failure: StartupFailure | None = None,
        silence: float = SILENCE,
    ) -> None:
        self.host = host
        self._program = program
        self._sent = set(CORE)  # modules that the host has
        self.silence = silence
        self.hello: dict[str, Any] = {}
        self.bytes_sent = 0
        self.bytes_received = 0
        self._stream = stream
        self._nonce = nonce
        self._on_event = on_event
        self._startup_failure = startup_failure
        self._decoder = Decoder(nonce)
        self._messages: queue.SimpleQueue[dict[str, Any] | DdtreeError] = queue.SimpleQueue()
        self._stderr = bytearray()
        self._heard = time.monotonic()
        self._number = 0
        self._calling = threading.Lock()
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._broken: DdtreeError | None = None
        self._noise_told = False
        self._threads = [
            threading.Thread(target=target, name=f"ddtree-ops {host} {target.__name__}", daemon=True)
            for target in (self._drain, self._drain_error, self._keep_alive)
        ]

    def start(self, preamble: bytes) -> Link:
        """Send the program; its first word is awaited by the first call, so that no round trip is lost."""
        for thread in reversed(self._threads[:2]):  # the reader of stdout waits for that of stderr when both end
            thread.start()
        self._write(preamble)
        self._threads[2].start()
        return self

    # -- calls --

    def call(
        self,
        verb: str,
        params: dict[str, Any] | None = None,
        *,
        timeout: float | None = 600.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Run ``verb`` on the host and return its result.

        Args:
            timeout: Seconds for the whole call, None for as long as the host shows life. Besides, no byte for
                :attr:`silence` seconds ends the call.
            on_event: Receives the events that the verb emits, on this thread (not the heartbeats).

        Raises:
            TransportError: the connection broke, was silent or too slow, or a frame is damaged. The link is closed, so
                an open transaction is undone by the host itself.
            DdtreeError: what the verb reported, as :func:`ddtree_ops.errors.from_remote` maps it.
        """
        with self._calling:
            self._number += 1
            number = self._number
            self._heard = time.monotonic()
            end = None if timeout is None else self._heard + timeout
            request = {"id": number, "verb": verb, "params": params or {}, **self._modules(verb)}
            self._write(encode(request, self._nonce))
            while True:
                message = self._next(verb, end, timeout)
                if message.get("id") == 0:
                    self._greet(message)
                elif message.get("id") == number and "event" in message:
                    self._tell(message["event"], on_event)
                elif message.get("id") == number:
                    return self._result(message)

    def ping(self, timeout: float = 30.0) -> float:
        """Seconds of one round trip through the host program."""
        start = time.monotonic()
        self.call("ping", timeout=timeout)
        return time.monotonic() - start

    @property
    def stderr(self) -> str:
        """The last 64 KiB that the host wrote to stderr."""
        return bytes(self._stderr).decode("utf-8", "replace")

    @property
    def noise(self) -> int:
        """Bytes on the host's stdout that are none of ours (rc files that print)."""
        return self._decoder.noise

    def close(self) -> None:
        """End the conversation: the helper sees the end of its stdin, undoes what is open, and exits."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._broken is None:
            self._stream.close_input()
            self._stream.wait(30.0)
        self._stream.abandon()
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(2.0)

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside a call --

    def _modules(self, verb: str) -> dict[str, Any]:
        """The modules of the program that ``verb`` needs and the host does not have yet."""
        load, needed = self._program.needed(verb)
        missing = sorted(needed - self._sent)
        self._sent |= needed
        return {"load": load, "modules": {name: self._program.modules[name] for name in missing}} if missing else {}

    def _next(self, verb: str, end: float | None, timeout: float | None) -> dict[str, Any]:
        while True:
            if self._broken is not None and self._messages.empty():
                raise self._broken
            try:
                message = self._messages.get(timeout=0.5)
            except queue.Empty:
                now = time.monotonic()
                limit = self.silence if self.hello else max(self.silence, STARTUP)
                if now - self._heard > limit:
                    raise self._break(
                        f"{self.host} said nothing for {limit:.0f} s during {verb}", "the host or the network hangs"
                    )
                if end is not None and now > end:
                    raise self._break(f"{verb} on {self.host} took longer than {timeout:.0f} s", "the call's limit")
                continue
            if isinstance(message, DdtreeError):
                self._broken = message
                raise message
            return message

    def _greet(self, message: dict[str, Any]) -> None:
        self.hello = dict(message.get("result") or {})
        if self.hello.get("protocol") != PROTOCOL:
            raise self._break(f"the program on {self.host} speaks protocol {self.hello.get('protocol')}", "a bug")

    def _tell(self, event: dict[str, Any], on_event: OnEvent | None) -> None:
        listener = on_event or self._on_event
        if listener is None or event.get("kind") == "heartbeat":
            return
        listener(event)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.noise and not self._noise_told and self._on_event is not None:
            self._noise_told = True
            self._on_event({"kind": "warning", "text": f"{self.host}: the shell's start-up files print to stdout",
                            "stdout_noise": self.noise})  # fmt: skip
        if message.get("ok"):
            return dict(message.get("result") or {})
        error = from_remote(message.get("error") or {})
        error.details.setdefault("host", self.host)
        raise error

    def _break(self, what: str, why: str, next_step: str = "") -> DdtreeError:
        tail = "\n".join(self.stderr.strip().splitlines()[-8:])
        error = TransportError(
            what,
            where=self.host,
            why=f"{why}; the host said: {tail}" if tail else why,
            next_step=next_step or "run `ddtree-ops status`: it tells what the host is in",
        )
        self._broken = error
        self._stream.abandon()
        return error

    # -- threads --

    def _write(self, data: bytes) -> None:
        if self._closed.is_set():
            raise TransportError("the connection is closed", where=self.host)
        try:
            with self._writing:
                self._stream.write(data)
                self.bytes_sent += len(data)
        except (OSError, ValueError) as error:
            self._threads[0].join(2.0)  # let the reader say why it ended: that is the better message
            if self._messages.empty() and self._broken is None:
                raise self._break(f"the connection to {self.host} broke", f"a request could not be sent: {error}")

    def _drain(self) -> None:
        try:
            while data := self._stream.read(_CHUNK):
                self._heard = time.monotonic()
                self.bytes_received += len(data)
                for message in self._decoder.feed(data):
                    self._messages.put(message)
        except FrameError as error:
            self._messages.put(TransportError(f"a reply of {self.host} is damaged: {error}", where=self.host))
            self._stream.abandon()
            return
        except (OSError, ValueError) as error:
            self._messages.put(TransportError(f"the connection to {self.host} broke: {error}", where=self.host))
            return
        if self._closed.is_set():
            return
        try:
            self._messages.put(self._ended())
        except Exception as error:  # whatever goes wrong in this thread, the caller must not wait for it
            self._messages.put(DdtreeError(f"the end of the connection to {self.host} was not understood: {error!r}"))

    def _ended(self) -> DdtreeError:
        status = self._stream.wait(2.0)
        self._threads[1].join(1.0)
        self._decoder.finish()
        tail = "\n".join(self.stderr.strip().splitlines()[-8:])
        if self.bytes_received == self.noise and not self._decoder.partial and self._startup_failure is not None:
            noise = self._decoder.noise_head.decode("utf-8", "replace")
            return self._startup_failure(status, self.stderr, noise)
        cut = " in the middle of a reply" if self._decoder.partial else ""
        return TransportError(
            f"the connection to {self.host} ended{cut}",
            where=self.host,
            why=tail or ("it was cut" if status is None else f"the program on the host ended with status {status}"),
            next_step="run `ddtree-ops status`: it tells what the host is in",
            details={"status": status, "stderr": tail},
        )

    def _drain_error(self) -> None:
        try:
            while data := self._stream.read_error(_CHUNK):
                self._stderr += data
                del self._stderr[:-_STDERR_KEPT]
        except (OSError, ValueError):
            return

    def _keep_alive(self) -> None:
        frame = encode({"id": 0, "verb": "keepalive"}, self._nonce)
        while not self._closed.wait(KEEPALIVE):
            try:
                with self._writing:
                    self._stream.write(frame)
            except (OSError, ValueError):
                return
