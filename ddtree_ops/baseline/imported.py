"""What a result file of another implementation holds, and the refusal of one that is not understood."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Refused

METHOD = re.compile(r"^(?:(baseline)|(dflash)|ddtree_tb(\d+))$")


@dataclass(frozen=True)
class Answer:
    """One prompt decoded with one method; ``accepted`` has the tokens of every round, the root counted."""

    prompt: list[int]
    output: list[int]
    accepted: list[int]
    seconds_per_token: float | None
    trees: list[Any] | None = None


@dataclass(frozen=True)
class Imported:
    """A result file: ``methods`` by name in the file's order; ``printed`` are figures that were only printed."""

    path: Path
    source: str
    block_size: int | None
    conditions: dict[str, Any]
    methods: dict[str, list[Answer]] = field(default_factory=dict)
    printed: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def refused(path: Path, why: str) -> Refused:
    """The error for a file, and why."""
    return Refused(
        "this result file is not understood",
        where=str(path),
        why=why,
        next_step="what is understood stands in docs/baseline.md; nothing was guessed",
        code="not_understood",
    )


def budget_of(method: str) -> int | None:
    """The tree budget in a method's name."""
    found = METHOD.match(method)
    return int(found.group(3)) if found and found.group(3) else None
