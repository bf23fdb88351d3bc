"""``ddtree-trace/1``: one JSON line per verify round, so that serving and offline runs can be compared round by round.

The first line is a header. A request's prompt (its length and digest) stands before its rounds; offline runs add its
whole answer behind them. Log-probabilities travel as the bit patterns of their float32 values and scores as decimal
strings, because JSON numbers would round them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .definition import Tree

SCHEMA = "ddtree-trace/1"
TIE_RULE = "score-desc/rank-lex/prefix-first/q32"


def float_bits(value: float) -> int:
    """Return the bit pattern of ``value`` as float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def bits_float(bits: int) -> float:
    """Return the float32 value of a bit pattern."""
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@dataclass(frozen=True)
class TraceHeader:
    """What the rounds of one file have in common."""

    model: str
    draft: str
    engine: str
    version: str
    block_size: int
    budget: int
    tie_rule: str = TIE_RULE
    dtype: str = ""
    schema: str = SCHEMA
    kind: str = "header"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceRequest:
    """A request, before its first round; ``prompt_sha256`` is :func:`prompt_digest`, ``id`` the asker's own name."""

    req: str
    prompt_len: int
    prompt_sha256: str
    temperature: float = 0.0
    id: str = ""
    regime: str = ""
    schema: str = SCHEMA
    kind: str = "request"


@dataclass(frozen=True)
class TraceAnswer:
    """A finished request: its new tokens, cut at the first stop token or at the limit; ``rounds`` = verify steps."""

    req: str
    ids: list[int]
    rounds: int
    finish: str
    schema: str = SCHEMA
    kind: str = "answer"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TraceRound:
    """One verify round of one request.

    ``ids`` and ``lp_bits`` are ``[D][K]``; ``token``, ``parent``, ``depth``, ``rank``, ``score_q32`` and ``target``
    have one entry per node, root first, padding left out; ``accepted`` holds node indices, root first; ``start`` is
    the number of committed tokens before the round.

    ``extra`` may hold ``mode`` (tree, chain, linear, ar), ``budget`` and ``depth_limit`` of this tree, ``temperature``,
    ``adjusted`` (true where penalties, a bias or a grammar changed the target's logits);
    ``gap`` and ``top``, per node, the distance of the target's two best logits and the best one itself; ``t_us``.
    """

    req: str
    round: int
    start: int
    bonus_in: int
    ids: list[list[int]]
    lp_bits: list[list[int]]
    token: list[int]
    parent: list[int]
    depth: list[int]
    rank: list[int]
    score_q32: list[str]
    target: list[int]
    accepted: list[int]
    emitted: list[int]
    bonus_out: int
    schema: str = SCHEMA
    kind: str = "round"
    extra: dict[str, Any] = field(default_factory=dict)

    def tree(self) -> Tree:
        """Return the recorded tree."""
        scores = tuple(int(text) for text in self.score_q32)
        return Tree(tuple(self.token), tuple(self.parent), tuple(self.depth), tuple(self.rank), scores)

    def log_probs(self) -> list[list[float]]:
        """Return the candidates' log-probabilities, ``[D][K]``."""
        return [[bits_float(bits) for bits in row] for row in self.lp_bits]


Record = TraceHeader | TraceRequest | TraceRound | TraceAnswer


def prompt_digest(ids: Sequence[int]) -> str:
    """Return the digest by which two traces know that they saw the same prompt: sha256 of its ids, comma separated."""
    return hashlib.sha256(",".join(map(str, ids)).encode("ascii")).hexdigest()[:16]


def to_line(record: Record) -> str:
    """Return a record as one JSON line, without the line end."""
    return json.dumps(asdict(record), separators=(",", ":"))


def read_rounds(lines: Iterable[str]) -> Iterator[TraceRound]:
    """Yield the rounds of a trace; raises ``ValueError`` on a record of another schema."""
    for line in lines:
        data = json.loads(line)
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} record: schema is {data.get('schema')!r}")
        if data.get("kind") == "round":
            yield TraceRound(**data)


def score_strings(scores: Sequence[int]) -> list[str]:
    """Return integer scores as decimal strings."""
    return [str(score) for score in scores]
