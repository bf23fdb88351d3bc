"""The host's end of the channel: framed requests in, framed replies out, heartbeats while a verb runs.

A request is ``{"id": n, "verb": name, "params": {...}}``; it is answered by any number of ``{"id": n, "event":
{...}}`` and then exactly one ``{"id": n, "ok": true, "result": {...}}`` or ``{"id": n, "ok": false, "error": {...}}``.
Requests run one after the other, on the main thread. ``keepalive`` has no reply: it says that the controller lives.
"""

from __future__ import annotations

import errno
import os
import platform
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, Callable, Dict, List, Optional

from .frames import Decoder, FrameError, Message, encode

PROTOCOL = 1
HEARTBEAT_SECONDS = 5.0

Emit = Callable[[Message], None]
Verb = Callable[[Dict[str, Any], Emit], Dict[str, Any]]
LostHook = Callable[[str], None]
Prepare = Callable[[Message], None]


class HostError(Exception):
    """A verb cannot do its work; becomes the ``error`` object of the reply.

    ``exit`` is the exit code that the controller ends with (architecture: exit codes), 4 = nothing was changed.
    """

    def __init__(
        self,
        code: str,
        message: str,
        where: str = "",
        next: str = "",
        exit: int = 4,
        details: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.where = where
        self.next = next
        self.exit = exit
        self.details = dict(details or {})

    def as_dict(self) -> Dict[str, Any]:
        """The ``error`` object."""
        return {
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "next": self.next,
            "exit": self.exit,
            "details": self.details,
        }


class ControllerLost(BaseException):
    """The controller is gone; unwind. Not an ``Exception``, so that a broad ``except`` in a verb cannot swallow it."""


# -- verbs --

VERBS: Dict[str, Verb] = {}


def verb(name: str) -> Callable[[Verb], Verb]:
    """Register ``function(params, emit) -> result`` as the verb ``name``."""

    def register(function: Verb) -> Verb:
        known = VERBS.get(name)
        if known is not None and known.__module__ != function.__module__:
            raise ValueError("verb %r is registered by %s and %s" % (name, known.__module__, function.__module__))
        VERBS[name] = function
        return function

    return register


@verb("ping")
def ping(params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """The host's clock and process, to see that the channel is alive."""
    return {"time": time.time(), "pid": os.getpid()}


def dispatch(name: str, params: Dict[str, Any], emit: Emit) -> Dict[str, Any]:
    """Run one verb; raises :class:`HostError` for a name that is not registered."""
    function = VERBS.get(name)
    if function is None:
        raise HostError("unknown_verb", "the host program has no verb %r" % name, exit=1)
    return function(params, emit)


_OS_TROUBLE = {
    errno.ENOSPC: ("no_space", "no space is left on the device"),
    errno.EDQUOT: ("no_space", "the disk quota is used up"),
    errno.EROFS: ("read_only", "the file system is read-only"),
    errno.EACCES: ("permission", "permission denied"),
    errno.EPERM: ("permission", "operation not permitted"),
}


def describe(error: Exception) -> Dict[str, Any]:
    """The ``error`` object for any exception of a verb: conditions of the host are named, all else is a bug."""
    if isinstance(error, HostError):
        return error.as_dict()
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if isinstance(error, OSError) and error.errno in _OS_TROUBLE:
        code, text = _OS_TROUBLE[error.errno]
        where = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
        return HostError(code, text, where=where, details={"traceback": trace}).as_dict()
    message = "the host program failed: %s: %s" % (type(error).__name__, error)
    return HostError("bug", message, exit=1, details={"traceback": trace}).as_dict()


# -- the controller's absence --

_lost_hooks: List[LostHook] = []
_idle_limit: Optional[float] = None


def on_lost(hook: LostHook) -> None:
    """Call ``hook(reason)`` when the controller is lost; hooks run in reverse order of registration."""
    if hook not in _lost_hooks:
        _lost_hooks.append(hook)


def off_lost(hook: LostHook) -> None:
    """Forget ``hook``; nothing happens if it is not registered."""
    if hook in _lost_hooks:
        _lost_hooks.remove(hook)


def set_idle_limit(seconds: Optional[float]) -> None:
    """Treat the controller as lost after ``seconds`` without any frame (None: wait for ever)."""
    global _idle_limit
    _idle_limit = seconds


class Server:
    """The loop: one reader thread, one heartbeat thread, verbs on the calling thread."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, nonce: str, prepare: Optional[Prepare] = None) -> None:
        self._prepare = prepare
        self._stdin = stdin
        self._stdout = stdout
        self._nonce = nonce
        self._requests: "queue.Queue[Optional[Message]]" = queue.Queue()
        self._write_lock = threading.Lock()
        self._stopped = threading.Event()
        self._running = 0  # id of the request in work
        self._waiting = False
        self._last_frame = time.monotonic()
        self.lost_reason = ""

    def run(self) -> int:
        """Serve until the controller is gone; returns the exit status of the process."""
        for target in (self._read, self._beat):
            threading.Thread(target=target, daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, self._signalled)
        try:
            self._send({"id": 0, "ok": True, "result": hello()})
            while True:
                self._answer(self._next())
        except ControllerLost as lost:
            self.lost_reason = self.lost_reason or str(lost)
        finally:
            self._stopped.set()
        return _run_lost_hooks(self.lost_reason)

    def _next(self) -> Message:
        while True:
            self._waiting = True
            try:
                self._check()
                request = self._requests.get(timeout=1.0 if _idle_limit is not None else None)
            except queue.Empty:
                continue
            finally:
                self._waiting = False
            if request is None:
                raise ControllerLost(self.lost_reason)
            return request

    def _answer(self, request: Message) -> None:
        number = int(request.get("id", 0))

        def emit(event: Message) -> None:
            self._check()
            self._send({"id": number, "event": event})

        self._running = number
        try:
            if self._prepare is not None:
                self._prepare(request)
            result = dispatch(str(request.get("verb")), dict(request.get("params") or {}), emit)
            frame = encode({"id": number, "ok": True, "result": result}, self._nonce)
        except Exception as error:
            frame = encode({"id": number, "ok": False, "error": describe(error)}, self._nonce)
        finally:
            self._running = 0
        self._write(frame)

    def _check(self) -> None:
        if not self.lost_reason and _idle_limit is not None:
            silence = time.monotonic() - self._last_frame
            if silence > _idle_limit:
                self.lost_reason = "no sign of the controller for %.0f s" % silence
        if self.lost_reason:
            raise ControllerLost(self.lost_reason)

    def _send(self, message: Message) -> None:
        self._write(encode(message, self._nonce))

    def _write(self, frame: bytes) -> None:
        try:
            with self._write_lock:
                self._stdout.write(frame)
                self._stdout.flush()
        except (OSError, ValueError) as error:
            self.lost_reason = self.lost_reason or "the reply could not be written: %s" % error
            raise ControllerLost(self.lost_reason) from None

    def _read(self) -> None:
        decoder = Decoder(self._nonce)
        reason = "the controller closed the connection"
        try:
            while True:
                data = self._stdin.read1(65536)  # type: ignore[attr-defined]
                if not data:
                    break
                for message in decoder.feed(data):
                    self._last_frame = time.monotonic()
                    if message.get("verb") != "keepalive":
                        self._requests.put(message)
        except (OSError, ValueError, FrameError) as error:
            reason = "the request could not be read: %s" % error
        self.lost_reason = self.lost_reason or reason
        self._requests.put(None)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            number = self._running
            if number:
                try:
                    self._send({"id": number, "event": {"kind": "heartbeat"}})
                except ControllerLost:
                    return

    def _signalled(self, number: int, _frame: Any) -> None:
        self.lost_reason = self.lost_reason or "the host program received signal %d" % number
        if self._waiting:
            raise ControllerLost(self.lost_reason)


def _run_lost_hooks(reason: str) -> int:
    status = 0
    for hook in list(reversed(_lost_hooks)):
        try:
            hook(reason)
        except Exception:
            status = 1
            traceback.print_exc()
    return status


def hello() -> Dict[str, Any]:
    """What the host program says first: frame id 0."""
    return {
        "protocol": PROTOCOL,
        "python": platform.python_version(),
        "executable": sys.executable,
        "pid": os.getpid(),
        "euid": os.geteuid(),
    }


def claim_streams() -> BinaryIO:
    """Take stdout for frames alone; fd 1 becomes stderr and fd 0 /dev/null, also for children."""
    sys.stdout.flush()
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return stdout


def serve(stdin: BinaryIO, stdout: BinaryIO, nonce: str, prepare: Optional[Prepare] = None) -> int:
    """Answer requests from ``stdin`` on ``stdout`` until the controller is gone.

    ``prepare`` sees each request before its verb is looked up (see ``main.Program``).
    """
    return Server(stdin, stdout, nonce, prepare).run()
