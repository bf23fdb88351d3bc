"""One HTTP exchange over a socket that never blocks: request out, answer in, cut into its parts as bytes arrive.

The load generator shares its host with the server that it measures, so this is no general client: one request per
connection, nothing is parsed that is not needed, and all the time of one request is spent in ``recv``.
"""

from __future__ import annotations

import errno
import json
import socket
from typing import Any, Dict, List, Optional, Tuple

READ_BYTES = 256 * 1024
_HEADER_LIMIT = 64 * 1024


class WireError(Exception):
    """The connection or the answer is broken; ``kind`` as in :class:`.http.HttpTrouble`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def request_bytes(host: str, port: int, path: str, body: Any, key: str = "") -> bytes:
    """A POST of ``body`` as JSON; the server is asked to close the connection after its answer."""
    data = json.dumps(body, separators=(",", ":")).encode("utf-8")
    lines = [
        "POST %s HTTP/1.1" % path,
        "Host: %s:%d" % ("[%s]" % host if ":" in host else host, port),
        "Content-Type: application/json",
        "Content-Length: %d" % len(data),
        "Accept: */*",
        "Connection: close",
    ]
    if key:
        lines.append("Authorization: Bearer " + key)
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


class Answer:
    """The answer's bytes, fed as they come: status, then body parts with the transfer encoding taken off."""

    def __init__(self) -> None:
        self.status = 0
        self.complete = False
        self._head = bytearray()
        self._chunked = False
        self._left: Optional[int] = None  # of the body or of the chunk; None: until the connection closes
        self._raw = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The part of the body that ``data`` completes. Raises :class:`WireError` for what is no HTTP."""
        if not self.status:
            data = self._header(data)
            if not self.status:
                return b""
        if self._chunked:
            return self._chunks(data)
        if self._left is None:
            return data
        part = data[: self._left]
        self._left -= len(part)
        self.complete = not self._left
        return part

    def end(self) -> None:
        """The connection was closed. Raises :class:`WireError` if the answer was not complete by then."""
        if self.status and not self._chunked and self._left is None:
            self.complete = True
        if not self.complete:
            what = "its answer was complete" if self.status else "it answered"
            raise WireError("broken", "the server closed the connection before %s" % what)

    def _header(self, data: bytes) -> bytes:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > _HEADER_LIMIT:
                raise WireError("broken", "the head of the answer does not end")
            return b""
        lines = bytes(self._head[:end]).decode("latin-1").split("\r\n")
        rest = bytes(self._head[end + 4 :])
        version, _, status = lines[0].partition(" ")
        if not version.startswith("HTTP/") or not status[:3].isdigit():
            raise WireError("broken", "the answer is not HTTP: %r" % lines[0][:60])
        fields: Dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        if status[:3] == "100":
            self._head = bytearray()
            return self._header(rest)
        self._chunked = "chunked" in fields.get("transfer-encoding", "").lower()
        if not self._chunked and fields.get("content-length", "").isdigit():
            self._left = int(fields["content-length"])
            self.complete = not self._left
        self.status = int(status[:3])
        return rest

    def _chunks(self, data: bytes) -> bytes:
        self._raw += data
        parts: List[bytes] = []
        while not self.complete:
            end = self._raw.find(b"\r\n")
            if end < 0:
                break
            try:
                size = int(bytes(self._raw[:end]).split(b";")[0], 16)
            except ValueError:
                raise WireError("broken", "a chunk has no length: %r" % bytes(self._raw[:40])) from None
            if len(self._raw) < end + 2 + size + 2:
                break
            parts.append(bytes(self._raw[end + 2 : end + 2 + size]))
            del self._raw[: end + 2 + size + 2]
            self.complete = size == 0
        return b"".join(parts)


class Events:
    """Cuts the body of an event stream into the ``data:`` payloads that are complete."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> List[bytes]:
        """Payloads in order; ``[DONE]`` is one of them."""
        text = (self._buffer + data).replace(b"\r\n", b"\n")
        blocks = text.split(b"\n\n")
        self._buffer = blocks.pop()
        found = []
        for block in blocks:
            lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found


class Connection:
    """A socket to the server and what still has to be sent."""

    def __init__(self, address: Tuple[str, int], data: bytes) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._unsent = memoryview(data)
        self._connecting = True
        self._address = address
        try:
            self.socket.connect(address)
        except BlockingIOError:
            pass
        except OSError as error:
            self.socket.close()
            raise self._trouble(error) from None

    @property
    def sending(self) -> bool:
        """Whether the request is not out yet."""
        return bool(self._unsent)

    def send(self) -> None:
        """Send what the socket takes now. Raises :class:`WireError`."""
        if self._connecting:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise self._trouble(OSError(code, "connect"))
            self._connecting = False
        try:
            self._unsent = self._unsent[self.socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as error:
            raise self._trouble(error) from None

    def receive(self) -> Optional[bytes]:
        """What has arrived; ``b""`` at the end, None when there is nothing. Raises :class:`WireError`."""
        try:
            return self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        """Drop the connection; a server ends the generation that nobody reads."""
        self.socket.close()

    def _trouble(self, error: OSError) -> WireError:
        where = "%s:%d" % self._address
        if error.errno == errno.ECONNREFUSED:
            return WireError("refused", "nothing listens on %s" % where)
        return WireError("broken", "%s: %s" % (where, error))
