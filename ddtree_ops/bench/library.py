"""The bundled prompts, by regime, and prompts of a user's own file.

All bundled prompts were written for this project. They are sent as raw text to ``/generate`` (no chat template), so
that every server gets the same tokens and per-request numbers come back with the answer.
"""

from __future__ import annotations

import itertools
import json
from importlib import resources
from pathlib import Path

from ..errors import ConfigError

REGIMES = ("code", "chat", "math")
Prompt = dict[str, str]


def bundled(regime: str = "all", count: int = 0) -> list[Prompt]:
    """``count`` prompts (0: all) of one regime, or of all of them in turn; always the same ones in the same order."""
    if regime != "all" and regime not in REGIMES:
        raise ConfigError(
            f"unknown regime {regime!r}", where="--regime", next_step=f"one of: all, {', '.join(REGIMES)}"
        )
    names = REGIMES if regime == "all" else (regime,)
    folder = resources.files(__package__) / "prompts"
    lists = [_parse((folder / f"{name}.jsonl").read_text("utf-8"), f"{name}.jsonl", name) for name in names]
    mixed = [prompt for row in itertools.zip_longest(*lists) for prompt in row if prompt is not None]
    return mixed[:count] if count else mixed


def from_file(path: Path) -> list[Prompt]:
    """Prompts of a JSON-lines file: ``text``, and perhaps ``id`` and ``kind``, per line."""
    try:
        return _parse(path.read_text("utf-8"), str(path), "own")
    except OSError as error:
        raise ConfigError(f"the prompts cannot be read: {error.strerror}", where=str(path)) from error


def _parse(text: str, origin: str, kind: str) -> list[Prompt]:
    found: list[Prompt] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            prompt = item["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "a line is no JSON object with a `text`", where=f"{origin}:{number}", why=str(error)
            ) from error
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError("`text` must be a text that is not empty", where=f"{origin}:{number}")
        name = str(item.get("id") or f"{kind}/{number}")
        found.append({"id": name, "kind": str(item.get("kind") or kind), "text": prompt})
    if not found:
        raise ConfigError("no prompts", where=origin)
    repeated = sorted({one["id"] for one in found if sum(other["id"] == one["id"] for other in found) > 1})
    if repeated:
        raise ConfigError(f"the prompt id {repeated[0]!r} stands twice", where=origin)
    return found
