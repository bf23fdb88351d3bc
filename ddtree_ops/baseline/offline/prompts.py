"""Prompts as token ids: JSON lines with ``input_ids``, ``text`` or ``prompt``, or ``messages``.

Text is tokenised as SGLang's ``/generate`` does it. ``chat=True`` makes one user message of each text that does not say
``"raw": true``; messages always go through the chat template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .config import Unsupported


@dataclass(frozen=True)
class Prompt:
    """One prompt; ``regime`` is the kind of text that it asks for."""

    id: str
    ids: list[int]
    regime: str = ""


def read_prompts(path: Path, target: Path, *, chat: bool = False, limit: int | None = None) -> list[Prompt]:
    """Read and tokenise; raises :class:`Unsupported` with file and line for a record that is not understood."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()][:limit]
    except (OSError, UnicodeDecodeError) as error:
        raise Unsupported(f"{path}: {error}") from None
    tokenizer: Any = None
    found: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise Unsupported(f"{path}:{number}: not JSON: {error}") from None
        ids = row.get("input_ids") if isinstance(row, dict) else None
        if ids is None:
            tokenizer = tokenizer or _tokenizer(target)
            ids = _tokenise(row, tokenizer, chat, f"{path}:{number}")
        name = str(row.get("id", number - 1))
        found.append(Prompt(name, [int(token) for token in ids], str(row.get("regime") or row.get("kind") or "")))
    if not found:
        raise Unsupported(f"{path}: no prompts")
    return found


def _tokenise(row: Any, tokenizer: Any, chat: bool, where: str) -> list[int]:
    messages = row.get("messages") if isinstance(row, dict) else None
    text = (row.get("text") or row.get("prompt")) if isinstance(row, dict) else None
    if messages is None and not isinstance(text, str):
        raise Unsupported(f"{where}: needs input_ids, text, prompt or messages")
    if messages is None and chat and not row.get("raw"):
        messages = [{"role": "user", "content": text}]
    if messages is None:
        found: list[int] = tokenizer(text)["input_ids"]
        return found
    filled = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(filled, add_special_tokens=False)["input_ids"]
    return ids


def _tokenizer(target: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(target, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise Unsupported(f"{target}: no tokenizer: {error}") from error


def stop_tokens(target: Path) -> frozenset[int]:
    """The tokens that end an answer: ``eos_token_id`` of the generation config, else of the config."""
    for name in ("generation_config.json", "config.json"):
        path = target / name
        value = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
        if value is not None:
            return frozenset(value if isinstance(value, list) else [value])
    return frozenset()
