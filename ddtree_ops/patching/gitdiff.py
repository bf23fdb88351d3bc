"""Writing diffs that ``git apply`` and ``git am`` read, byte for byte reproducible."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .linediff import Change, diff
from .text import git_blob_id

CONTEXT = 3
_NO_NEWLINE = b"\\ No newline at end of file\n"
_FUNCTION = re.compile(rb"^[A-Za-z_$]")  # git's default for the text after @@


@dataclass(frozen=True)
class FileDiff:
    """One file's diff: absent before or after is ``None``."""

    path: str
    before: bytes | None
    after: bytes | None


def file_diff(change: FileDiff) -> bytes:
    """``diff --git`` section of one file; empty when nothing changes."""
    if change.before == change.after:
        return b""
    path = change.path
    old_id = git_blob_id(change.before) if change.before is not None else "0" * 40
    new_id = git_blob_id(change.after) if change.after is not None else "0" * 40
    head = [f"diff --git a/{path} b/{path}"]
    if change.before is None:
        head += ["new file mode 100644", f"index {old_id}..{new_id}"]
    elif change.after is None:
        head += ["deleted file mode 100644", f"index {old_id}..{new_id}"]
    else:
        head += [f"index {old_id}..{new_id} 100644"]
    body = hunks(change.before or b"", change.after or b"")
    if body:
        head += [
            "--- " + (f"a/{path}" if change.before is not None else "/dev/null"),
            "+++ " + (f"b/{path}" if change.after is not None else "/dev/null"),
        ]
    return "\n".join(head).encode() + b"\n" + body


def hunks(before: bytes, after: bytes) -> bytes:
    """Unified hunks with three lines of context."""
    a, b = split_on_lf(before), split_on_lf(after)
    return b"".join(_hunk(a, b, group) for group in _groups(diff(a, b)))


def split_on_lf(data: bytes) -> list[bytes]:
    """Lines as git sees them: a lone CR does not end one."""
    *whole, rest = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def unified(changes: Sequence[FileDiff]) -> str:
    """Git-format diff of several files as text, for reading; undecodable bytes are escaped."""
    return b"".join(map(file_diff, changes)).decode("utf-8", "backslashreplace")


def mail(
    *,
    subject: str,
    body: str,
    author: str,
    date: str,
    number: int,
    total: int,
    changes: Sequence[FileDiff],
) -> bytes:
    """One ``git format-patch`` style file for ``git am``."""
    diffs = b"".join(map(file_diff, changes))
    text = f"From: {author}\nDate: {date}\nSubject: [PATCH {number}/{total}] {subject}\n"
    text += "MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n"
    text += f"\n{body.strip()}\n---\n{diffstat(changes)}\n"
    content = text.encode() + diffs + b"-- \nddtree-ops\n\n"
    name = hashlib.sha1(content, usedforsecurity=False).hexdigest()  # git am reads the line, not the name
    return f"From {name} Mon Sep 17 00:00:00 2001\n".encode() + content


def diffstat(changes: Sequence[FileDiff]) -> str:
    """Lines added and removed per file, as ``git format-patch`` prints them."""
    counts = {change.path: added_removed(change) for change in changes}
    width = max(map(len, counts), default=0)
    rows = [
        f" {path.ljust(width)} | {plus + minus} {'+' * plus}{'-' * minus}" for path, (plus, minus) in counts.items()
    ]
    plus, minus = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0)
    files = f" {len(counts)} file{'s' if len(counts) != 1 else ''} changed"
    if plus:
        files += f", {plus} insertion{'s' if plus != 1 else ''}(+)"
    if minus:
        files += f", {minus} deletion{'s' if minus != 1 else ''}(-)"
    return "\n".join([*rows, files]) + "\n"


def added_removed(change: FileDiff) -> tuple[int, int]:
    """Inserted and removed lines of one file."""
    found = diff(split_on_lf(change.before or b""), split_on_lf(change.after or b""))
    return sum(c.b1 - c.b0 for c in found), sum(c.a1 - c.a0 for c in found)


def _groups(changes: Sequence[Change]) -> list[list[Change]]:
    """Changes close enough to share a hunk."""
    groups: list[list[Change]] = []
    for change in changes:
        if groups and change.a0 - groups[-1][-1].a1 <= 2 * CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _hunk(a: Sequence[bytes], b: Sequence[bytes], group: Sequence[Change]) -> bytes:
    lead = min(CONTEXT, group[0].a0)
    start_a, start_b = group[0].a0 - lead, group[0].b0 - lead
    stop_a = min(group[-1].a1 + CONTEXT, len(a))
    stop_b = group[-1].b1 + stop_a - group[-1].a1
    rows: list[bytes] = []
    position = start_a
    for change in group:
        rows += [b" " + line for line in a[position : change.a0]]
        rows += [b"-" + line for line in a[change.a0 : change.a1]]
        rows += [b"+" + line for line in b[change.b0 : change.b1]]
        position = change.a1
    rows += [b" " + line for line in a[position:stop_a]]
    body = b"".join(row if row.endswith(b"\n") else row + b"\n" + _NO_NEWLINE for row in rows)
    section = next((line for line in reversed(a[:start_a]) if _FUNCTION.match(line)), b"")
    title = b" " + section.rstrip()[:80] if section else b""
    head = f"@@ -{_range(start_a, stop_a)} +{_range(start_b, stop_b)} @@".encode()
    return head + title.rstrip() + b"\n" + body


def _range(start: int, stop: int) -> str:
    count = stop - start
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"
