"""The bundled prompts, by regime, and prompts of a user's own file.

All bundled prompts were written for this project. Each has two forms: a user's words, which go through the chat
template of the model, and raw text for a model without one. The smoke bench always sends raw text, so that every server
gets the same tokens.
"""

from __future__ import annotations

import itertools
import json
from importlib import resources
from pathlib import Path

from ..errors import ConfigError
from . import records
from .records import Prompt

REGIMES = ("code", "chat", "math")
RawPrompt = dict[str, str]

_RAW = {
    "chat": "User: {}\nAssistant:",
    "math": "Question: {}\nAnswer: ",
    "code": "Task: {}\n\nSolution:\n",
}
_CONTINUE = "Continue this Python code. Answer with code only, beginning where it stops.\n\n```python\n{}\n```"


def prompts(regime: str, count: int = 0) -> tuple[Prompt, ...]:
    """``count`` prompts (0: all, 32 or more) of one regime, with both forms; always the same ones in the same order.

    Raises:
        ConfigError: there is no such regime.
    """
    if regime not in REGIMES:
        raise ConfigError(
            f"unknown regime {regime!r}", where="--regime", next_step=f"one of: all, {', '.join(REGIMES)}"
        )
    text = (resources.files(__package__) / "prompts" / f"{regime}.jsonl").read_text("utf-8")
    completed = "\n".join(json.dumps(_both(json.loads(line), regime)) for line in text.splitlines() if line.strip())
    found = records.parse(completed, f"{regime}.jsonl", regime)
    return found[:count] if count else found


def _both(item: dict[str, str], regime: str) -> dict[str, str]:
    """A bundled record has a user's words (``prompt``) or, code that is to be continued, raw ``text``."""
    if "prompt" in item:
        return {**item, "text": _RAW[regime].format(item["prompt"])}
    return {**item, "prompt": _CONTINUE.format(item["text"].rstrip("\n"))}


def bundled(regime: str = "all", count: int = 0) -> list[RawPrompt]:
    """Raw forms: ``count`` prompts (0: all) of one regime, or of all of them in turn; always in the same order."""
    names = REGIMES if regime == "all" else (regime,)
    lists = [[_raw(one) for one in prompts(name)] for name in names]
    mixed = [prompt for row in itertools.zip_longest(*lists) for prompt in row if prompt is not None]
    return mixed[:count] if count else mixed


def from_file(path: Path) -> list[RawPrompt]:
    """Raw forms of a user's own prompts; see :mod:`.records` for what a file may hold."""
    found = records.read(path)
    if any(one.input_ids for one in found):
        raise ConfigError("`input_ids` cannot be compared as raw text", where=str(path), next_step="give text instead")
    return [_raw(one) for one in found]


def _raw(prompt: Prompt) -> RawPrompt:
    return {"id": prompt.id, "kind": prompt.regime, "text": prompt.text}
