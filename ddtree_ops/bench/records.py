"""Prompts from a file, in the forms that people have them in; whatever is not understood is refused with its line.

One record per line (JSON lines), or one JSON array of records. A record is one of::

    {"prompt": "…"}                                  words of a user, sent through the chat template
    {"messages": [{"role": "user", "content": "…"}]}   a chat up to the turn that is to be answered
    {"text": "…"}                                    raw text, no template
    {"input_ids": [1, 2, 3]}                         tokens
    {"conversations": [{"from": "human", "value": "…"}, …]}   ShareGPT: up to the first human turn
    {"custom_id": "…", "body": {"messages": […]}}    OpenAI batch; also body.prompt and body.input

and may have ``id`` and ``regime`` (``kind``). Settings of sampling in a record are not used: a run has its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..model import Value

OWN = "own"  # the regime of prompts that do not name theirs
FORMS = "`prompt`, `messages`, `text`, `input_ids`, `conversations` (ShareGPT) or `body` (OpenAI batch)"

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}

Message = dict[str, str]


class Prompt(Value, frozen=True, kw_only=True):
    """One prompt; ``messages`` is what is meant, ``text`` the raw form for a model without a chat template."""

    id: str
    regime: str = OWN
    text: str = ""
    messages: tuple[Message, ...] = ()
    input_ids: tuple[int, ...] = ()

    def request(self, index: int) -> dict[str, Any]:
        """As the load generator takes it: ids if known, else the chat, else raw text."""
        found: dict[str, Any] = {"index": index, "id": self.id}
        if self.input_ids:
            return {**found, "input_ids": list(self.input_ids)}
        return {**found, "messages": list(self.messages)} if self.messages else {**found, "text": self.text}

    def raw(self) -> Prompt:
        """The same without its chat form, to be sent as raw text."""
        return msgspec.structs.replace(self, messages=())


def read(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file. Raises :class:`ConfigError`: file, line (or record) and what is wrong with it."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the prompts cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("the prompts are not UTF-8", where=str(path), why=str(error)) from error
    return parse(text, str(path))


def parse(text: str, origin: str, regime: str = OWN) -> tuple[Prompt, ...]:
    """The prompts in ``text``; ``origin`` names it in errors, ``regime`` is that of records without their own."""
    found = tuple(_prompt(item, where, number, regime) for number, where, item in _records(text, origin))
    if not found:
        raise ConfigError("no prompts", where=origin, next_step=f"one JSON object per line, with {FORMS}")
    seen: set[str] = set()
    for one in found:
        if one.id in seen:
            raise ConfigError(f"the prompt id {one.id!r} stands twice", where=origin)
        seen.add(one.id)
    return found


def digest(prompts: Sequence[Prompt]) -> str:
    """SHA-256 over ids, regimes and contents in order: two runs with the same one asked the same."""
    return hashlib.sha256(msgspec.json.encode(list(prompts))).hexdigest()


def flattened(messages: Sequence[Message]) -> str:
    """A chat as raw text that ends where the assistant is to speak."""
    names = {"user": "User", "assistant": "Assistant", "system": "System"}
    lines = [f"{names.get(one['role'], one['role'])}: {one['content']}\n" for one in messages]
    return "".join(lines) + "Assistant:"


def _records(text: str, origin: str) -> Iterator[tuple[int, str, Any]]:
    if text.lstrip().startswith("["):
        items = _json(text, origin)
        yield from ((number, f"{origin}: record {number}", item) for number, item in enumerate(items, 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, f"{origin}:{number}", _json(line, f"{origin}:{number}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError("not JSON", where=where, why=str(error)) from error


def _prompt(item: Any, where: str, number: int, regime: str) -> Prompt:
    if not isinstance(item, dict):
        raise ConfigError(f"a record must be an object with {FORMS}", where=where)
    name = str(item.get("regime") or item.get("kind") or regime)
    identity = str(item.get("id") or item.get("custom_id") or f"{name}/{number}")
    for key, reader in _READERS.items():
        if key in item:
            return msgspec.structs.replace(reader(item, where), id=identity, regime=name)
    raise ConfigError(
        f"a record has none of {FORMS}", where=where, why=f"it has {', '.join(sorted(item)) or 'nothing'}"
    )


def _of_ids(item: Mapping[str, Any], where: str) -> Prompt:
    ids = item["input_ids"]
    if not isinstance(ids, list) or not ids or any(type(one) is not int or one < 0 for one in ids):
        raise ConfigError("`input_ids` must be a list of token ids that is not empty", where=where)
    return Prompt(id="", input_ids=tuple(ids))


def _of_messages(item: Mapping[str, Any], where: str) -> Prompt:
    messages = item["messages"]
    if not isinstance(messages, list) or not messages:
        raise ConfigError("`messages` must be a list that is not empty", where=where)
    return _chat([_message(one, "role", "content", where) for one in messages], where)


def _of_conversations(item: Mapping[str, Any], where: str) -> Prompt:
    turns = item["conversations"]
    if not isinstance(turns, list) or not turns:
        raise ConfigError("`conversations` must be a list that is not empty", where=where)
    found: list[Message] = []
    for turn in turns:
        message = _message(turn, "from", "value", where)
        if message["role"] == "assistant" and not found:
            continue  # some collections begin in the middle of a talk
        found.append(message)
        if message["role"] == "user":
            return _chat(found, where)
    raise ConfigError("the conversation has no turn of a human", where=where)


def _of_body(item: Mapping[str, Any], where: str) -> Prompt:
    body = item["body"]
    for key, reader in (("messages", _of_messages), ("prompt", _of_text), ("input", _of_text)):
        if isinstance(body, dict) and key in body:
            return reader({key: body[key]}, where)
    raise ConfigError("`body` must be an object with `messages`, `prompt` or `input`", where=where)


def _of_text(item: Mapping[str, Any], where: str) -> Prompt:
    ((key, text),) = ((key, item[key]) for key in ("text", "prompt", "input") if key in item)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"`{key}` must be a text that is not empty", where=where)
    return Prompt(id="", text=text)


def _of_words(item: Mapping[str, Any], where: str) -> Prompt:
    """``prompt``: a user's words; a ``text`` beside it is their raw form."""
    words = _of_text({"prompt": item["prompt"]}, where).text
    raw = _of_text({"text": item["text"]}, where).text if "text" in item else ""
    chat = _chat([{"role": "user", "content": words}], where)
    return msgspec.structs.replace(chat, text=raw or chat.text)


def _message(turn: Any, role: str, content: str, where: str) -> Message:
    if not isinstance(turn, dict) or not isinstance(turn.get(content), str):
        raise ConfigError(f"a turn must be an object with `{role}` and a text in `{content}`", where=where)
    name = _ROLES.get(str(turn.get(role)))
    if name is None:
        raise ConfigError(f"unknown `{role}` {turn.get(role)!r}", where=where, why=f"known: {', '.join(_ROLES)}")
    return {"role": name, "content": turn[content]}


def _chat(messages: Sequence[Message], where: str) -> Prompt:
    if not any(one["role"] == "user" and one["content"].strip() for one in messages):
        raise ConfigError("the chat has no text of a user", where=where)
    kept = list(messages)
    while kept[-1]["role"] == "assistant":
        kept.pop()  # the answer that a data set has is not asked for
    return Prompt(id="", messages=tuple(kept), text=flattened(kept))


_READERS: Mapping[str, Callable[[Mapping[str, Any], str], Prompt]] = {
    "prompt": _of_words,
    "messages": _of_messages,
    "text": _of_text,
    "input_ids": _of_ids,
    "conversations": _of_conversations,
    "body": _of_body,
}
