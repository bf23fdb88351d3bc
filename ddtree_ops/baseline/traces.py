"""Trace files (``ddtree-trace/1``) as values: requests with their rounds in order, every record checked.

A line that is cut, of another schema, or whose arrays do not fit each other is an error with file and line: what is
damaged must not be compared.
"""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .trees import trace

Round = trace.TraceRound


@dataclass
class Request:
    """One request of a trace; ``announced`` is None in traces that do not say which prompt it was."""

    req: str
    announced: trace.TraceRequest | None = None
    answer: trace.TraceAnswer | None = None
    rounds: list[Round] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Digest of the prompt, "" when unknown."""
        return self.announced.prompt_sha256 if self.announced else ""

    @property
    def name(self) -> str:
        """The asker's name of the prompt, else the request's."""
        return (self.announced.id if self.announced else "") or self.req

    @property
    def whole(self) -> bool:
        """Whether the rounds follow the prompt without a gap from the first on."""
        return bool(self.rounds) and self.announced is not None and self.rounds[0].start == self.announced.prompt_len

    @cached_property
    def run(self) -> list[Round]:
        """The rounds up to the first gap, each starting where the one before ended.

        A gap is no damage: a server that retracts a request takes it up again with a prefill, which emits a token, too.
        """
        for index, (before, after) in enumerate(itertools.pairwise(self.rounds), 1):
            if after.start != before.start + len(before.emitted) or after.bonus_in != before.bonus_out:
                return self.rounds[:index]
        return self.rounds

    @cached_property
    def output(self) -> list[int]:
        """New tokens of :attr:`run`: its first root, then all that was emitted."""
        if not self.rounds:
            return list(self.answer.ids) if self.answer else []
        return [self.rounds[0].bonus_in, *(token for one in self.run for token in one.emitted)]


@dataclass(frozen=True)
class Trace:
    """A whole file."""

    path: Path
    header: trace.TraceHeader
    requests: tuple[Request, ...]

    @property
    def rounds(self) -> Iterator[Round]:
        """All rounds, request by request."""
        return (one for request in self.requests for one in request.rounds)


_KINDS: Mapping[str, Any] = {
    "header": trace.TraceHeader,
    "request": trace.TraceRequest,
    "round": trace.TraceRound,
    "answer": trace.TraceAnswer,
}


def load(path: Path) -> Trace:
    """Read a trace file.

    Raises:
        ConfigError: it cannot be read, is cut off, of another schema or inconsistent (``where`` is ``file:line``).
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is cut off, or not text"
        raise ConfigError(f"the trace cannot be read: {reason}", where=str(path), next_step=_HINT)
    header: trace.TraceHeader | None = None
    requests: dict[str, Request] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _record(line, f"{path}:{number}", cut=number == len(lines))
        if isinstance(record, trace.TraceHeader):
            header = header or record
            continue
        request = requests.setdefault(record.req, Request(record.req))
        _add(request, record, f"{path}:{number}")
    if header is None:
        raise _damaged("the first record is not a header", str(path))
    return Trace(path, header, tuple(requests.values()))


_HINT = "record it again (`ddtree-ops baseline record`), or give a trace that DDTREE_TRACE wrote"


def _damaged(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, next_step=_HINT, code="trace_damaged")


def _record(line: str, where: str, *, cut: bool) -> Any:
    try:
        data = json.loads(line)
    except ValueError:
        raise _damaged("the trace is cut off" if cut else "a line of the trace is not JSON", where)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != trace.SCHEMA:
        raise _damaged(f"not a {trace.SCHEMA} record: schema is {schema!r}", where)
    kind = _KINDS.get(data.get("kind"))
    if kind is None:
        raise _damaged(f"a record of unknown kind {data.get('kind')!r}", where)
    try:
        return kind(**data)
    except TypeError as error:
        raise _damaged(f"a record with other fields: {str(error).split('__init__() ')[-1]}", where)


def _add(request: Request, record: Any, where: str) -> None:
    if isinstance(record, trace.TraceRequest):
        request.announced = request.announced or record
    elif isinstance(record, trace.TraceAnswer):
        request.answer = record
    else:
        problem = _problem(record)
        if problem:
            raise _damaged(f"round {record.round} of {record.req}: {problem}", where)
        request.rounds.append(record)


def _problem(one: Round) -> str:
    """What does not fit in a round; "" when all does."""
    size = len(one.token)
    columns: dict[str, list[Any]] = {"parent": one.parent, "depth": one.depth, "target": one.target}
    columns |= {name: one.extra[name] for name in ("gap", "top") if name in one.extra}
    if one.ids:
        columns |= {"rank": one.rank, "score_q32": one.score_q32}
    odd = [name for name, column in columns.items() if len(column) != size]
    if odd or not size:
        return f"{', '.join(odd) or 'token'} and token have different lengths"
    if one.token[0] != one.bonus_in or one.parent[0] != 0:
        return "its root is not the token before"
    if any(not 0 <= one.parent[node] < node for node in range(1, size)):
        return "a node comes before its parent"
    if len(one.ids) != len(one.lp_bits) or any(map(lambda ids, bits: len(ids) != len(bits), one.ids, one.lp_bits)):
        return "candidates and log-probabilities differ in shape"
    if not one.accepted or one.accepted[0] != 0 or not all(0 <= node < size for node in one.accepted):
        return "its path does not begin at the root"
    return "" if len(one.emitted) == len(one.accepted) else "as many tokens must be emitted as nodes are accepted"
