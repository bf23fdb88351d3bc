"""Source files as bytes and lines: one way of splitting, newline style kept, nothing re-encoded.

Lines are split as Python's tokenizer does (LF, CRLF, lone CR) and keep their endings, so that ``b"".join(lines)`` is
always the input. (``bytes.splitlines`` agrees; ``str.splitlines`` does not: it also splits on form feeds and U+2028.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MAX_REPORTED = 12  # lines of a region that an error message shows


def sha256(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def git_blob_id(data: bytes) -> str:
    """The object name git gives to a file with this content (SHA-1 object format)."""
    head = b"blob %d\0" % len(data)
    return hashlib.sha1(head + data, usedforsecurity=False).hexdigest()


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their endings; the last one may have none."""
    return data.splitlines(keepends=True)


def ending(line: bytes) -> bytes:
    """The line's ending: CRLF, LF, CR or nothing."""
    if line.endswith(b"\r\n"):
        return b"\r\n"
    return line[-1:] if line.endswith((b"\n", b"\r")) else b""


def bare(line: bytes) -> bytes:
    """The line without its ending."""
    end = ending(line)
    return line[: -len(end)] if end else line


def newline_style(lines: Sequence[bytes], near: int = 0) -> bytes:
    """The ending of the line at ``near``, else of the first line that has one, else LF."""
    for line in (*lines[near : near + 1], *lines):
        end = ending(line)
        if end:
            return end
    return b"\n"


def has_crlf(data: bytes) -> bool:
    """Whether any line ends in CRLF."""
    return b"\r\n" in data


def to_lf(data: bytes) -> bytes:
    """The content with CRLF turned into LF; used to recognise a file, never to write one."""
    return data.replace(b"\r\n", b"\n")


def show(lines: Sequence[bytes]) -> str:
    """Lines for an error message or a JSON document; what is not UTF-8 is escaped."""
    text = [bare(line).decode("utf-8", "backslashreplace") for line in lines[:MAX_REPORTED]]
    if len(lines) > MAX_REPORTED:
        text.append(f"... ({len(lines) - MAX_REPORTED} more lines)")
    return "\n".join(text)
