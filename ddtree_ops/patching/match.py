"""Finding classes, functions and statements in a syntax tree; ``...`` in a pattern is a wildcard."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IGNORED = {"ctx", "type_comment", "kind", "type_params"}
_WITH_BODY = {"body", "orelse", "finalbody", "handlers", "decorator_list"}


@dataclass(frozen=True)
class Block:
    """A list of statements in one suite, and the statement or scope that owns it."""

    owner: ast.AST
    field: str  # body, orelse, finalbody, ...
    statements: Sequence[ast.stmt]


@dataclass(frozen=True)
class Found:
    """A statement with its place in its block."""

    node: ast.stmt
    block: Block
    index: int


def blocks(scope: Scope) -> Iterator[Block]:
    """Every suite that belongs to the scope itself; nested functions and classes are their own scopes."""
    pending: list[Block] = [Block(scope, "body", scope.body)]
    while pending:
        block = pending.pop(0)
        yield block
        for statement in block.statements:
            if not isinstance(statement, _DEFINITIONS):
                pending.extend(_suites(statement))


def _suites(node: ast.AST) -> Iterator[Block]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            yield Block(node, field, value)
        elif isinstance(value, list):  # except handlers, match cases
            for item in value:
                if isinstance(item, (ast.excepthandler, ast.match_case)):
                    yield from _suites(item)


def definitions(scope: Scope, name: str, kinds: tuple[type[ast.AST], ...]) -> list[Scope]:
    """Classes or functions called ``name`` defined directly in the scope (also under its ``if`` and ``try``)."""
    return [
        statement
        for block in blocks(scope)
        for statement in block.statements
        if isinstance(statement, _DEFINITIONS) and isinstance(statement, kinds) and statement.name == name
    ]


def is_elif(node: ast.stmt, block: Block, lines: Sequence[bytes]) -> bool:
    """Whether an ``if`` is written as ``elif``; nothing can be inserted before it."""
    if not (isinstance(node, ast.If) and block.field == "orelse" and isinstance(block.owner, ast.If)):
        return False
    return lines[node.lineno - 1][node.col_offset :].startswith(b"elif")


def statements(scope: Scope, pattern: ast.stmt) -> list[Found]:
    """Statements of the scope that match the pattern, in source order."""
    found = [
        Found(statement, block, index)
        for block in blocks(scope)
        for index, statement in enumerate(block.statements)
        if matches(pattern, statement)
    ]
    return sorted(found, key=lambda item: (item.node.lineno, item.node.col_offset))


def sequences(scope: Scope, pattern: Sequence[ast.stmt]) -> list[Found]:
    """Places where the pattern's statements follow each other in one block; the first statement of each place."""
    width = len(pattern)
    return [
        Found(block.statements[index], block, index)
        for block in blocks(scope)
        for index in range(len(block.statements) - width + 1)
        if all(map(matches, pattern, block.statements[index : index + width]))
    ]


def parse_statement(text: str) -> ast.stmt:
    """The single statement of a pattern."""
    return ast.parse(text).body[0]


def matches(pattern: ast.AST, node: ast.AST) -> bool:
    """Whether ``node`` is what ``pattern`` says; positions, comments and layout do not count."""
    if _any_expression(pattern):
        return isinstance(node, ast.expr)
    if type(pattern) is not type(node):
        return False
    any_body = _any_body(pattern)
    for field, wanted in ast.iter_fields(pattern):
        if field in _IGNORED or (any_body and field in _WITH_BODY):
            continue
        if not _same(wanted, getattr(node, field)):
            return False
    return True


def _same(wanted: object, actual: object) -> bool:
    if isinstance(wanted, ast.AST):
        return isinstance(actual, ast.AST) and matches(wanted, actual)
    if isinstance(wanted, list):
        return isinstance(actual, list) and len(wanted) == len(actual) and all(map(_same, wanted, actual))
    return type(wanted) is type(actual) and wanted == actual


def _any_expression(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _any_body(node: ast.AST) -> bool:
    body = getattr(node, "body", None)
    return (
        isinstance(body, list) and len(body) == 1 and isinstance(body[0], ast.Expr) and _any_expression(body[0].value)
    )
