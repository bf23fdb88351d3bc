"""Which rounds of two traces can be compared: same prompt, same tokens so far, same place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..errors import ConfigError
from .traces import Request, Round, Trace
from .trees import definition

Path = tuple[int, ...]


@dataclass(frozen=True)
class Matched:
    """One prompt in both traces; ``equal`` counts the new tokens that both agree on before the first difference."""

    a: Request
    b: Request

    @cached_property
    def compared(self) -> int:
        """New tokens that both have."""
        return min(len(self.a.output), len(self.b.output))

    @cached_property
    def equal(self) -> int:
        """Length of the common beginning."""
        pairs = zip(self.a.output, self.b.output, strict=False)
        return next((index for index, (left, right) in enumerate(pairs) if left != right), self.compared)

    @property
    def differs(self) -> bool:
        """Whether both have a token at the first place where they do not agree."""
        return self.equal < self.compared

    def rounds(self) -> Iterator[tuple[Round, Round]]:
        """Pairs of rounds with the same context: they start at the same place, before the first difference."""
        first = self.a.rounds[0].start if self.a.rounds else 0
        theirs = {one.start: one for one in self.b.run}
        for one in self.a.run:
            if one.start in theirs and one.start - first < self.equal:
                yield one, theirs[one.start]


def match(a: Trace, b: Trace) -> list[Matched]:
    """Requests of the same prompt, every one of ``b`` with the first of ``a``.

    Raises:
        ConfigError: no prompt is in both, or a trace does not say which prompts it holds.
    """
    for side in (a, b):
        if not any(request.digest for request in side.requests):
            raise ConfigError(
                "the trace does not say which prompts it holds",
                where=str(side.path),
                why="it has no request records",
                next_step="record it with this version",
                code="trace_without_prompts",
            )
    ours: dict[str, Request] = {}
    for request in a.requests:
        if request.whole:
            ours.setdefault(request.digest, request)
    found = [Matched(ours[one.digest], one) for one in b.requests if one.whole and one.digest in ours]
    if not found:
        raise ConfigError(
            "the traces have no prompt in common",
            where=f"{a.path} and {b.path}",
            why=f"{len(ours)} and {len(b.requests)} requests, compared by the digest of their prompt's tokens",
            next_step="record both from the same prompts (and the same chat template)",
            code="other_prompts",
        )
    return found


class Nodes:
    """The nodes of a round's tree by their path of tokens, and scores of any path under its candidates."""

    def __init__(self, one: Round, most: int | None = None) -> None:
        self.round = one
        size = len(one.token) if most is None else min(len(one.token), most + 1)
        paths: list[Path] = [()]
        for node in range(1, size):
            paths.append((*paths[one.parent[node]], one.token[node]))
        self.paths = paths
        self.index = {path: node for node, path in enumerate(paths)}
        self._rows = [
            {token: definition.quantise(value) for token, value in zip(ids, values, strict=True)}
            for ids, values in zip(one.ids, one.log_probs(), strict=True)
        ]

    @property
    def boundary(self) -> float | None:
        """Score of the last node, in nats: what is not in the tree scores at most this. None without candidates."""
        return self.score(self.paths[-1]) if len(self.paths) > 1 else None

    def score(self, path: Path) -> float | None:
        """Log-probability of a path in nats; None where a token is not among the candidates of its depth."""
        if len(path) > len(self._rows):
            return None
        values = [row.get(token) for row, token in zip(self._rows, path, strict=False)]
        known = [value for value in values if value is not None]
        return sum(known) / 2.0**definition.SCORE_SHIFT if len(known) == len(path) else None
