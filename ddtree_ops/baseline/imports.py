"""``baseline import``: results of other implementations, as a summary record and, with recorded rounds, as traces.

What is not understood is refused, not guessed. docs/baseline.md says what was found where.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import ConfigError
from ..jsontext import json_bytes
from . import printed, reference, torchfile
from .imported import Answer, Imported, budget_of, refused
from .trees import trace

SCHEMA = "ddtree-import/1"


def read(path: Path) -> Imported:
    """Read a result file.

    Raises:
        ConfigError: it cannot be read.
        Refused: it is none of the formats, or its parts do not fit each other.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
        if head[:2] == b"PK":
            return reference.interpret(path, torchfile.load(path))
        text = path.read_text("utf-8") if head[:1] != b"\x80" else ""
    except UnicodeDecodeError:
        text = ""
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where=str(path))
    if head[:1] == b"\x80":
        raise refused(path, "a bare pickle (torch's format before 1.6, or another program's)")
    return printed.interpret(path, text)


def summary(found: Imported) -> dict[str, Any]:
    """The summary record: per method prompts, rounds, tokens per verify step (over rounds, and mean over prompts)."""
    plain = [one.seconds_per_token for one in found.methods.get("baseline", ())]
    methods = [_method(name, answers, plain) for name, answers in found.methods.items()]
    for name, figures in found.printed.items():
        row = {"method": name, "budget": None, "prompts": None, "rounds": None, "tokens_per_verify": None}
        methods.append({**row, "speedup": None, **figures})
    return {
        "schema": SCHEMA,
        "source": found.source,
        "file": found.path.name,
        "block_size": found.block_size,
        "conditions": found.conditions,
        "methods": methods,
        "ignored": list(found.ignored),
    }


def _method(name: str, answers: Sequence[Answer], plain: Sequence[float | None]) -> dict[str, Any]:
    rounds = sum(len(one.accepted) for one in answers)
    means = [fmean(one.accepted) for one in answers if one.accepted]
    times = [one.seconds_per_token for one in answers]
    return {
        "method": name,
        "budget": budget_of(name),
        "prompts": len(answers),
        "rounds": rounds,
        "tokens_per_verify": sum(sum(one.accepted) for one in answers) / rounds if rounds else None,
        "mean_over_prompts": fmean(means) if means else None,
        "speedup": _speedup(plain, times),
        "accept_lengths": [one.accepted for one in answers],
    }


def _speedup(plain: Sequence[float | None], times: Sequence[float | None]) -> float | None:
    """Mean time per token of plain decoding over that of the method, as both projects define it."""
    ours, theirs = [one for one in times if one], [one for one in plain if one]
    return fmean(theirs) / fmean(ours) if ours and theirs else None


def write(found: Imported, folder: Path) -> tuple[Path, ...]:
    """Write ``summary.json``, and ``<method>.jsonl`` (``ddtree-trace/1``) for every method with recorded trees."""
    files = {"summary.json": json_bytes(summary(found), indent=2)}
    for name, answers in found.methods.items():
        if any(one.trees for one in answers):
            lines = [trace.to_line(record) for record in reference.records(found, name, answers)]
            files[f"{name}.jsonl"] = "".join(line + "\n" for line in lines).encode("utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
    except OSError as error:
        raise ConfigError(f"the result cannot be written: {error.strerror}", where=str(folder))
    return tuple(folder / name for name in files)
