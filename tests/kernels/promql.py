"""A small reader of PromQL: enough of the grammar to tell a query that cannot work from one that can.

Binary operators are read without precedence: what is looked for are the selectors, and what is done to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

RANGE_FUNCTIONS = {"rate", "increase", "irate"}
FUNCTIONS = {*RANGE_FUNCTIONS, "scalar", "clamp_max", "clamp_min"}
AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
OPERATORS = {"+", "-", "*", "/", ">", "<", ">=", "<=", "==", "!="}
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<mark>=~|!~|>=|<=|==|!=|[-+*/<>=(){},]))"
)


@dataclass
class Query:
    """What a query reads: metric -> labels that it matches, and the labels that its result can have."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def read(text: str) -> Query:
    """Read a query; raises ``ValueError`` where it makes no sense."""
    tokens, place = [], 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None or found.end() == place:
            raise ValueError(f"{text[place : place + 20]!r} in {text!r}")
        tokens.append((str(found.lastgroup), found.group(str(found.lastgroup))))
        place = found.end()
    reader = _Reader(tokens)
    reader.expression()
    if reader.tokens:
        raise ValueError(f"left over: {reader.tokens}")
    return reader.query


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.query = tokens, Query()

    def next(self) -> tuple[str, str]:
        if not self.tokens:
            raise ValueError("the query ends too early")
        return self.tokens.pop(0)

    def peek(self) -> str:
        return self.tokens[0][1] if self.tokens else ""

    def take(self, wanted: str) -> None:
        found = self.next()[1]
        if found != wanted:
            raise ValueError(f"{found!r} where {wanted!r} belongs")

    def expression(self) -> None:
        self.operand()
        while self.peek() in OPERATORS:
            self.next()
            if self.peek() in ("on", "ignoring"):
                self.next()
                self.labels()
                if self.peek() in ("group_left", "group_right"):
                    self.next()
            self.operand()

    def operand(self, in_range_function: bool = False) -> None:
        kind, word = self.next()
        if kind == "number":
            return
        if word == "(":
            self.expression()
            self.take(")")
            return
        if kind != "name":
            raise ValueError(f"{word!r} where a value belongs")
        if word in AGGREGATIONS:
            if self.peek() in ("by", "without"):
                self.next()
                self.query.grouped |= set(self.labels())
            self.take("(")
            self.expression()
            self.take(")")
        elif self.peek() == "(":
            if word not in FUNCTIONS:
                raise ValueError(f"no function {word!r}")
            self.take("(")
            self.operand(word in RANGE_FUNCTIONS) if word in RANGE_FUNCTIONS else self.expression()
            self.take(")")
        else:
            self.selector(word, in_range_function)

    def selector(self, name: str, wants_range: bool) -> None:
        matched = self.query.metrics.setdefault(name, set())
        if self.peek() == "{":
            self.next()
            while self.peek() != "}":
                kind, label = self.next()
                operator, value = self.next()[1], self.next()
                if kind != "name" or operator not in ("=", "!=", "=~", "!~") or value[0] != "text":
                    raise ValueError(f"{label}{operator}{value[1]} is no matcher")
                matched.add(label)
                if self.peek() == ",":
                    self.next()
            self.take("}")
        has_range = bool(self.tokens) and self.tokens[0][0] == "range"
        if has_range:
            self.next()
        if has_range != wants_range:
            raise ValueError(f"{name} {'needs a' if wants_range else 'takes no'} range here")

    def labels(self) -> list[str]:
        self.take("(")
        found = []
        while self.peek() != ")":
            kind, label = self.next()
            if kind != "name":
                raise ValueError(f"{label!r} is no label")
            found.append(label)
            if self.peek() == ",":
                self.next()
        self.take(")")
        return found
