"""Frames: how messages travel on a byte stream that may also carry noise.

A frame is ``\\nDDTREE-OPS <nonce> <nbytes> <first 16 hex of the body's sha256>\\n`` and a body of zlib-compressed
JSON. Whatever else arrives on the stream (an rc file that prints, a stray ``print``) is noise: counted and skipped.
Host and controller use the same :class:`Decoder`, so both ends agree by construction.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any, Dict, List, Optional

MAGIC = b"\nDDTREE-OPS "
MAX_FRAME = 256 * 1024 * 1024
_HEADER_LIMIT = 64  # longest "<nbytes> <16 hex>" that is believed
_NOISE_KEPT = 4096

Message = Dict[str, Any]


class FrameError(Exception):
    """A frame that carries our nonce is damaged."""


def encode(message: Message, nonce: str) -> bytes:
    """``message`` as one frame. Paths that are not UTF-8 travel as lone surrogates, escaped by JSON."""
    body = zlib.compress(json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii"), 6)
    digest = hashlib.sha256(body).hexdigest()[:16]
    return MAGIC + ("%s %d %s\n" % (nonce, len(body), digest)).encode("ascii") + body


class Decoder:
    """Incremental reader of frames; ``noise`` counts the bytes outside of them, ``noise_head`` keeps the first ones."""

    def __init__(self, nonce: str) -> None:
        self._magic = MAGIC + nonce.encode("ascii") + b" "
        self._buffer = bytearray()
        self._body: Optional[List[Any]] = None  # [nbytes, digest] once the header is read
        self.noise = 0
        self.noise_head = b""

    @property
    def partial(self) -> bool:
        """True in the middle of a frame: an end of the stream here is a truncation."""
        return self._body is not None or self._buffer.startswith(self._magic)

    def feed(self, data: bytes) -> List[Message]:
        """The messages completed by ``data``. Raises :class:`FrameError` on a damaged frame."""
        self._buffer += data
        messages: List[Message] = []
        while True:
            if self._body is None and not self._header():
                return messages
            nbytes, digest = self._body or (0, "")
            if len(self._buffer) < nbytes:
                return messages
            body = bytes(self._buffer[:nbytes])
            del self._buffer[:nbytes]
            self._body = None
            messages.append(_decode_body(body, digest))

    def finish(self) -> None:
        """The stream has ended: what waits for the rest of a frame's start is noise."""
        if not self.partial:
            self._skip(len(self._buffer))

    def _header(self) -> bool:
        start = self._buffer.find(self._magic)
        if start < 0:
            self._skip(max(0, len(self._buffer) - len(self._magic) + 1))
            return False
        self._skip(start)
        end = self._buffer.find(b"\n", len(self._magic))
        if end < 0:
            if len(self._buffer) > len(self._magic) + _HEADER_LIMIT:
                raise FrameError("a frame header does not end")
            return False
        text = bytes(self._buffer[len(self._magic) : end]).decode("ascii", "replace")
        del self._buffer[: end + 1]
        nbytes, _, digest = text.partition(" ")
        if not nbytes.isdigit() or int(nbytes) > MAX_FRAME or len(digest) != 16:
            raise FrameError("a frame header reads %r" % text[:_HEADER_LIMIT])
        self._body = [int(nbytes), digest]
        return True

    def _skip(self, count: int) -> None:
        if count:
            self.noise += count
            room = _NOISE_KEPT - len(self.noise_head)
            self.noise_head += bytes(self._buffer[: min(count, room)])
            del self._buffer[:count]


def _decode_body(body: bytes, digest: str) -> Message:
    if hashlib.sha256(body).hexdigest()[:16] != digest:
        raise FrameError("a frame's content does not have the hash of its header")
    try:
        message = json.loads(zlib.decompress(body).decode("ascii"))
    except (zlib.error, ValueError) as error:
        raise FrameError("a frame cannot be decoded: %s" % error) from error
    if not isinstance(message, dict):
        raise FrameError("a frame holds %s, not an object" % type(message).__name__)
    return message
