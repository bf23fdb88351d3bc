"""Reading git-format patches and applying them exactly: no fuzz, no offset, no whitespace rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, Line, PatchedFile, PatchSet

from ..errors import PatchDamaged
from .gitdiff import split_on_lf

_BYTES = "latin-1"  # one character per byte, both ways


@dataclass(frozen=True)
class HunkLines:
    """One hunk: 0-based start in the old file, its old and its new lines."""

    start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True)
class FilePatch:
    """The hunks of one file, ascending; ``path`` is as written behind ``a/``."""

    path: str
    hunks: tuple[HunkLines, ...]

    def apply(self, before: bytes) -> bytes:
        """The file with all hunks applied.

        Raises:
            PatchDamaged: a hunk's old lines are not exactly at their place.
        """
        lines = split_on_lf(before)
        result: list[bytes] = []
        position = 0
        for hunk in self.hunks:
            stop = hunk.start + len(hunk.old)
            if hunk.start < position or tuple(lines[hunk.start : stop]) != hunk.old:
                raise PatchDamaged(
                    f"a hunk of the patch does not fit {self.path}",
                    where=f"{self.path}:{hunk.start + 1}",
                    why="the recorded lines are not at the recorded place, so patch and base do not belong together",
                    next_step="restore patches/ from the release of ddtree-ops, or make the series again",
                )
            result += [*lines[position : hunk.start], *hunk.new]
            position = stop
        return b"".join([*result, *lines[position:]])

    def old_lines(self) -> dict[int, bytes]:
        """0-based line of the old file -> line, as far as the hunks show it."""
        return {hunk.start + i: line for hunk in self.hunks for i, line in enumerate(hunk.old)}


def parse(name: str, data: bytes) -> tuple[FilePatch, ...]:
    """The file patches of one patch file.

    Raises:
        PatchDamaged: CRLF, no final newline, a hunk longer or shorter than its header says, nothing to apply,
            renames or binary parts.
    """
    if b"\r\n" in data:
        raise _damaged(
            name, "the patch has CRLF line endings", "it went through an editor or a checkout that rewrites them"
        )
    if not data.endswith(b"\n"):
        raise _damaged(name, "the patch has no final newline", "its end is missing")
    if not data.endswith(b"-- \nddtree-ops\n\n"):
        raise _damaged(
            name, "the patch does not end with its signature", "its end is missing or something was appended"
        )
    try:
        parsed = PatchSet(data.decode(_BYTES))
    except UnidiffParseError as problem:
        raise _damaged(name, "the patch cannot be read", str(problem))
    if not parsed:
        raise _damaged(name, "the patch changes no file", "no diff was found in it")
    return tuple(_file(name, item) for item in parsed)


def _file(name: str, item: PatchedFile) -> FilePatch:
    if item.is_rename or item.is_binary_file or item.is_removed_file:
        raise _damaged(
            name, f"the patch does more than change {item.path}", "renames, removals and binaries are not ours"
        )
    return FilePatch(item.path, tuple(map(_hunk, item)))


def _hunk(hunk: Hunk) -> HunkLines:
    old = _lines(hunk, lambda line: line.is_context or line.is_removed)
    new = _lines(hunk, lambda line: line.is_context or line.is_added)
    start = hunk.source_start - 1 if hunk.source_length else hunk.source_start
    return HunkLines(start, old, new)


def _lines(hunk: Hunk, wanted: Callable[[Line], bool]) -> tuple[bytes, ...]:
    rows: list[bytes] = []
    kept = False
    for line in hunk:
        if line.line_type == "\\":  # "No newline at end of file" speaks of the line above
            if kept:
                rows[-1] = rows[-1].removesuffix(b"\n")
            continue
        kept = wanted(line)
        if kept:
            rows.append(line.value.encode(_BYTES))
    return tuple(rows)


def _damaged(name: str, what: str, why: str) -> PatchDamaged:
    return PatchDamaged(
        what,
        where=name,
        why=why,
        next_step="restore patches/ from the release of ddtree-ops, or make the series again: ddtree-ops patch create",
    )
