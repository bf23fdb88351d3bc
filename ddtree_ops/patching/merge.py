"""Three-way merge of one file in memory: base = the series' origin, ours = host bytes, theirs = the series' result.

Line level, as ``diff3`` and ``git merge-file`` do it: changes of the two sides that overlap or touch are a conflict,
unless they are identical. A clean merge is only text; ``checks.require`` then decides whether it means what it should.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PatchConflict
from .anchors import parse
from .linediff import Change, diff
from .text import has_crlf, show, split_lines, to_lf


@dataclass(frozen=True)
class Conflict:
    """A region that both sides changed differently; line numbers are 0-based, half-open."""

    base: tuple[bytes, ...]
    ours: tuple[bytes, ...]
    theirs: tuple[bytes, ...]
    base_line: int
    ours_line: int


@dataclass(frozen=True)
class Merge:
    """The result of a merge: lines, or the conflicts that prevent it."""

    lines: tuple[bytes, ...]
    conflicts: tuple[Conflict, ...]

    @property
    def data(self) -> bytes:
        """The merged bytes; only meaningful without conflicts."""
        return b"".join(self.lines)


def merge_lines(base: Sequence[bytes], ours: Sequence[bytes], theirs: Sequence[bytes]) -> Merge:
    """Merge three line sequences."""
    mine, other = diff(base, ours), diff(base, theirs)
    result: list[bytes] = []
    conflicts: list[Conflict] = []
    position = 0  # in base
    while mine or other:
        group_mine, group_other = _next_group(mine, other)
        every = [*group_mine, *group_other]
        start, stop = min(c.a0 for c in every), max(c.a1 for c in every)
        result.extend(base[position:start])
        ours_part = _side(ours, group_mine, base, start, stop)
        theirs_part = _side(theirs, group_other, base, start, stop)
        if not group_other or ours_part == theirs_part:
            result.extend(ours_part)
        elif not group_mine:
            result.extend(theirs_part)
        else:
            shift = group_mine[0].b0 - group_mine[0].a0
            conflicts.append(
                Conflict(tuple(base[start:stop]), tuple(ours_part), tuple(theirs_part), start, start + shift)
            )
            result.extend(ours_part)
        position = stop
    result.extend(base[position:])
    return Merge(tuple(result), tuple(conflicts))


def merge_file(path: str, base: bytes, ours: bytes, theirs: bytes) -> bytes:
    """The merged file, in the host's own line endings.

    Raises:
        PatchConflict: for the first region that both sides changed, with base, ours, theirs, function and line.
    """
    crlf = has_crlf(ours) and not has_crlf(base)
    if crlf and ours.count(b"\r\n") != ours.count(b"\n"):
        raise PatchConflict(
            f"{path} mixes line endings",
            where=path,
            why="some lines end in CRLF and some in LF, so the file's own style is unknown",
            next_step="give the file one style on the host, then plan again",
            details={"file": path},
        )
    merged = merge_lines(split_lines(base), split_lines(to_lf(ours) if crlf else ours), split_lines(theirs))
    if merged.conflicts:
        raise conflict_error(path, ours, merged.conflicts[0], len(merged.conflicts))
    return merged.data.replace(b"\n", b"\r\n") if crlf else merged.data


def conflict_error(path: str, ours: bytes, conflict: Conflict, total: int = 1) -> PatchConflict:
    """The refusal that shows both sides of a region and where it is on the host."""
    line = conflict.ours_line + 1
    function = enclosing(ours, line)
    more = f" ({total} regions conflict; the first is shown)" if total > 1 else ""
    return PatchConflict(
        f"the host's {path} was changed where the patch goes{more}",
        where=f"{path}:{line} in {function}",
        why="the operator's lines and the patch's lines do not go together",
        next_step="nothing was changed; move the local edit away from these lines, or deploy from a pristine copy",
        details={
            "file": path,
            "function": function,
            "line": line,
            "base": show(conflict.base),
            "ours": show(conflict.ours),
            "theirs": show(conflict.theirs),
            "conflicts": total,
        },
    )


def enclosing(data: bytes, line: int) -> str:
    """Dotted name of the class and function around a 1-based line; ``<module>`` outside of any."""
    try:
        node: ast.AST = parse(data)
    except (SyntaxError, ValueError):
        return "<unparsable>"
    trail: list[str] = []
    while True:
        inner = next((child for child in _definitions(node) if child.lineno <= line <= (child.end_lineno or 0)), None)
        if inner is None:
            return ".".join(trail) or "<module>"
        trail.append(inner.name)
        node = inner


def _definitions(node: ast.AST) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    found: list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = []
    pending = list(ast.iter_child_nodes(node))
    while pending:
        child = pending.pop()
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(child)
        else:
            pending.extend(ast.iter_child_nodes(child))
    return found


def _next_group(mine: list[Change], other: list[Change]) -> tuple[list[Change], list[Change]]:
    """Take the first changes off both lists that overlap or touch each other in the base."""
    groups: tuple[list[Change], list[Change]] = ([], [])
    sides = (mine, other)
    first = 0 if mine and (not other or mine[0].a0 <= other[0].a0) else 1
    stop = sides[first][0].a1
    groups[first].append(sides[first].pop(0))
    grown = True
    while grown:
        grown = False
        for side, group in zip(sides, groups, strict=True):
            while side and side[0].a0 <= stop:
                stop = max(stop, side[0].a1)
                group.append(side.pop(0))
                grown = True
    return groups


def _side(lines: Sequence[bytes], group: Sequence[Change], base: Sequence[bytes], start: int, stop: int) -> list[bytes]:
    """One side's text for ``base[start:stop]``."""
    if not group:
        return list(base[start:stop])
    before = group[0].a0 - start
    after = stop - group[-1].a1
    return list(lines[group[0].b0 - before : group[-1].b1 + after])
