"""Result files as they are committed. Several shapes are known; a file of another shape is listed, never guessed at.

=========  ==========================================================================================
serving    ``rows`` of ``target, arm, budget, concurrency, temperature, tok_per_s, tokens_per_verify, step_ms, runs``
kernels    ``rows`` of ``what, bs, …, graph_us, chained_us``
other      anything else
=========  ==========================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import ConfigError
from ..model import Value

Kind = Literal["serving", "kernels", "other"]


class Run(Value, frozen=True, kw_only=True):
    """One pass over the prompts."""

    tok_per_s: float
    prompts: int | None = None


class Row(Value, frozen=True, kw_only=True):
    """One arm at one concurrency; ``runs`` are the passes that the median was taken of."""

    target: str
    arm: str
    concurrency: int
    budget: int | str | None = None
    temperature: float = 0.0
    tok_per_s: float | None = None
    tokens_per_verify: float | None = None
    step_ms: float | None = None
    prompts: int | None = None
    runs: tuple[Run, ...] = ()

    @property
    def asked(self) -> int | None:
        """Prompts per pass: of the row, else of its runs."""
        return self.prompts if self.prompts is not None else next((run.prompts for run in self.runs), None)

    @property
    def is_tree(self) -> bool:
        """Whether this is plain DDTREE at a budget, and not a variant of it (a chain, another way to commit)."""
        named = self.arm in ("ddtree", f"ddtree-{self.budget}")
        return named and (isinstance(self.budget, int) or self.budget == "auto")


class Result(Value, frozen=True, kw_only=True):
    """One file. ``date``: when, as far as the file says; files sort by it."""

    name: str
    kind: Kind
    date: str
    conditions: dict[str, Any] = msgspec.field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    kernels: tuple[dict[str, Any], ...] = ()
    what: str = ""


def read(folder: Path) -> list[Result]:
    """All files of ``folder``, the oldest first. Raises :class:`ConfigError` for one that is not JSON."""
    return sorted((_read(path) for path in folder.glob("*.json")), key=lambda one: (one.date, one.name))


def _read(path: Path) -> Result:
    try:
        found = msgspec.json.decode(path.read_bytes())
        if not isinstance(found, dict):
            raise msgspec.ValidationError("not an object")
        return _result(path.name, found)
    except (msgspec.MsgspecError, OSError) as error:
        raise ConfigError("a result file cannot be read", where=str(path), why=str(error)) from error


def _result(name: str, found: dict[str, Any]) -> Result:
    rows = [row for row in found.get("rows") or () if isinstance(row, dict)]
    date = str(found.get("merged") or found.get("date") or name[:10])
    conditions = found.get("conditions")
    told = conditions if isinstance(conditions, dict) else {}
    if rows and all({"target", "arm", "concurrency", "tok_per_s"} <= row.keys() for row in rows):
        cells = tuple(msgspec.convert(row, Row) for row in rows)
        return Result(name=name, date=date, kind="serving", conditions=told, rows=cells)
    if rows and all({"what", "graph_us"} <= row.keys() for row in rows):
        return Result(name=name, date=date, kind="kernels", conditions=_machine(found), kernels=tuple(rows))
    return Result(name=name, date=date, kind="other", conditions=told, what=_about(found))


def _machine(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("gpu", "torch", "triton", "cuda") if name in found}


def _about(found: dict[str, Any]) -> str:
    """What a file of another shape holds, in its own words, else by its keys."""
    return str(found.get("what") or f"no rows of a known shape; it has {', '.join(list(found)[:8])}")


def offline(conditions: dict[str, Any], target: str) -> dict[str, float]:
    """Tokens per verify step of the offline decoder: ``linear`` and budgets (as text); empty where not recorded.

    ``conditions.offline_reference`` (or ``offline``) is ``{"linear": 2.31, "tree 16": 2.98, …}``, or that per target.
    """
    found = conditions.get("offline_reference") or conditions.get("offline") or {}
    found = found.get(target, found) if isinstance(found, dict) else {}
    return {
        str(name).removeprefix("tree").strip(" -"): float(value)
        for name, value in found.items()
        if isinstance(value, int | float)
    }
