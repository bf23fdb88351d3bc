"""Resolving an anchor on real source: by syntax tree, then by line, so that formatting stays as it is.

Works on bytes: any encoding that Python reads, LF or CRLF, tabs or spaces. What cannot be decided without doubt is an
:class:`~ddtree_ops.errors.AnchorNotFound` that says how far the anchor went.
"""

from __future__ import annotations

import ast
import textwrap
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..errors import AnchorNotFound
from . import match
from .recipe import Anchor, Edit, Position
from .text import bare, newline_style, split_lines

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def parse(data: bytes) -> ast.Module:
    """The syntax tree; what Python would only warn about in somebody else's file is none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data)


@dataclass(frozen=True)
class Source:
    """One Python file: its bytes, lines and syntax tree."""

    path: str
    data: bytes

    @cached_property
    def lines(self) -> list[bytes]:
        """Lines with their endings."""
        return split_lines(self.data)

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree.

        Raises:
            AnchorNotFound: when the file is not valid Python.
        """
        try:
            return parse(self.data)
        except (SyntaxError, ValueError) as problem:
            line = getattr(problem, "lineno", None)
            raise AnchorNotFound(
                f"{self.path} is not valid Python",
                where=f"{self.path}:{line}" if line else self.path,
                why=str(problem),
                next_step="repair the file on the host, or name another copy of SGLang",
            ) from problem

    @cached_property
    def logical_ends(self) -> list[int]:
        """1-based rows on which a logical line ends, ascending."""
        rows = (bare(line) + b"\n" for line in self.lines)
        tokens = tokenize.tokenize(lambda: next(rows, b""))
        return [token.end[0] for token in tokens if token.type == tokenize.NEWLINE]


@dataclass(frozen=True)
class Site:
    """Where an anchor is in one file: insert before 0-based line ``line`` with this indentation."""

    path: str
    scope: str  # Class.function, or <module>
    line: int
    indent: bytes
    newline: bytes


@dataclass(frozen=True)
class Insertion:
    """Lines to insert before 0-based line ``site.line``."""

    edit: str
    site: Site
    lines: tuple[bytes, ...]


def find_scope(source: Source, anchor: Anchor) -> tuple[match.Scope, str]:
    """The class, function or module that an anchor names, with its dotted name.

    Raises:
        AnchorNotFound: absent, or defined more than once.
    """
    scope: match.Scope = source.tree
    trail: list[str] = []
    for name in anchor.class_.split(".") if anchor.class_ else ():
        scope = _one(source, anchor, match.definitions(scope, name, (ast.ClassDef,)), "class", name, trail)
        trail.append(name)
    if not anchor.functions:
        return scope, ".".join(trail) or "<module>"
    present = [name for name in anchor.functions if match.definitions(scope, name.split(".")[0], _FUNCTIONS)]
    for name in (present or anchor.functions)[0].split("."):
        scope = _one(source, anchor, match.definitions(scope, name, _FUNCTIONS), "function", name, trail)
        trail.append(name)
    return scope, ".".join(trail)


def resolve(source: Source, anchor: Anchor, position: Position = "before") -> Site:
    """The insertion point that an anchor names in this file.

    Raises:
        AnchorNotFound: the file does not parse, or class, function or statement is absent, ambiguous, or stands where
            nothing can be inserted (an ``elif``, a one-line suite, several statements in a line).
    """
    scope, name = find_scope(source, anchor)
    if not anchor.statement:
        return _into(source, anchor, scope, name)
    found = find_statement(source, anchor, scope, name)
    if position == "into":
        return _into(source, anchor, found.node, name)
    first = min((found.node.lineno, *(d.lineno for d in getattr(found.node, "decorator_list", ()))))
    row = source.lines[first - 1]
    indent = row[: len(row) - len(row.lstrip(b" \t"))]
    if position == "before":
        start = source.lines[found.node.lineno - 1][: found.node.col_offset]
        if start.strip(b" \t"):
            raise _not_found(source, anchor, f"line {first} holds something else before the statement")
        line = _above_comments(source.lines, first - 1, indent)
    else:
        line = found.node.end_lineno or first
        rest = bare(source.lines[line - 1])[found.node.end_col_offset or 0 :].strip()
        if rest and not rest.startswith(b"#"):
            raise _not_found(source, anchor, f"line {line} holds something else after the statement")
    return Site(source.path, name, line, indent, newline_style(source.lines, first - 1))


def find_statement(source: Source, anchor: Anchor, scope: match.Scope, name: str) -> match.Found:
    """The one statement that the anchor's pattern names in a scope."""
    pattern = match.parse_statement(anchor.statement)
    every = match.statements(scope, pattern)
    usable = [item for item in every if not match.is_elif(item.node, item.block, source.lines)]
    if len(usable) == 1:
        return usable[0]
    what = f"statement `{anchor.statement.strip()}`"
    if usable:
        rows = ", ".join(str(item.node.lineno) for item in usable)
        raise _not_found(source, anchor, f"{_kind(scope)} {name} has it {len(usable)} times (lines {rows})")
    if every:
        raise _not_found(source, anchor, f"{what} is an elif (line {every[0].node.lineno})")
    raise _not_found(source, anchor, f"{_kind(scope)} {name} exists, {what} does not")


def render(edit: Edit, site: Site) -> tuple[bytes, ...]:
    """The edit's lines as they stand in the file: indentation and line ending of the site."""
    tabs = b"\t" in site.indent
    rows = []
    text = textwrap.dedent(edit.insert).strip("\n").split("\n")
    for row in [""] * (edit.blank == "before") + text + [""] * (edit.blank == "after"):
        body = row.lstrip(" ")
        depth = len(row) - len(body)
        lead = b"\t" * (depth // 4) + b" " * (depth % 4) if tabs else b" " * depth
        rows.append((site.indent + lead + body.encode() if body else b"") + site.newline)
    return tuple(rows)


def place(source: Source, edit: Edit) -> Insertion:
    """Resolve an edit's anchor and render its lines."""
    site = resolve(source, edit, edit.position)
    return Insertion(edit.id, site, render(edit, site))


def insert(source: Source, insertions: Sequence[Insertion]) -> bytes:
    """The file with all insertions made; every byte that was there stays, in its order."""
    by_line: dict[int, list[Insertion]] = {}
    for insertion in insertions:
        by_line.setdefault(insertion.site.line, []).append(insertion)
    result: list[bytes] = []
    for number, line in enumerate([*source.lines, b""]):
        for insertion in by_line.get(number, ()):
            if result and not result[-1].endswith((b"\n", b"\r")):  # the file has no final newline
                result.append(insertion.site.newline)
                result.extend((*insertion.lines[:-1], bare(insertion.lines[-1])))
            else:
                result.extend(insertion.lines)
        result.append(line)
    return b"".join(result)


def _into(source: Source, anchor: Anchor, owner: ast.AST, name: str) -> Site:
    """The start of a suite: after the header, and after the docstring if there is one."""
    body: list[ast.stmt] = getattr(owner, "body", [])
    if not body:
        raise _not_found(source, anchor, "it has no body")
    first = body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = docstring and isinstance(first.value.value, str)  # type: ignore[attr-defined]
    row = source.lines[first.lineno - 1]
    if row[: first.col_offset].strip(b" \t"):
        raise _not_found(source, anchor, f"its body stands on the header's line ({first.lineno})")
    if docstring:
        line = first.end_lineno or first.lineno
    else:
        start = getattr(owner, "lineno", 0)
        line = next((end for end in source.logical_ends if end >= start), 0) if start else 0
    return Site(source.path, name, line, row[: first.col_offset], newline_style(source.lines, max(line - 1, 0)))


def _above_comments(lines: Sequence[bytes], line: int, indent: bytes) -> int:
    """Move up over the comment lines that belong to the statement, so that they stay together."""
    while line > 0 and lines[line - 1].startswith(indent + b"#"):
        line -= 1
    return line


def _one(
    source: Source, anchor: Anchor, found: list[match.Scope], kind: str, name: str, trail: list[str]
) -> match.Scope:
    if len(found) == 1:
        return found[0]
    inside = f"{'.'.join(trail)} exists, " if trail else ""
    if found:
        rows = ", ".join(str(getattr(item, "lineno", 0)) for item in found)
        raise _not_found(source, anchor, f"{kind} {name} is defined {len(found)} times (lines {rows})")
    raise _not_found(source, anchor, f"{inside}{kind} {name} does not")


def _kind(scope: match.Scope) -> str:
    if isinstance(scope, ast.ClassDef):
        return "class"
    return "module" if isinstance(scope, ast.Module) else "function"


def _not_found(source: Source, anchor: Anchor, why: str) -> AnchorNotFound:
    name = anchor.id if isinstance(anchor, Edit) else str(anchor)
    return AnchorNotFound(
        f"anchor {name} not found",
        where=str(anchor),
        why=why,
        next_step="compare with the supported releases: ddtree-ops patch check",
        details={"file": source.path, "anchor": name, "why": why},
    )
