"""Values as JSON text, also those that JSON and terminals cannot carry as they are: paths that are not UTF-8."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

_SURROGATE = re.compile("[\ud800-\udfff]")


def printable(text: str) -> str:
    """``text`` with bytes that are not UTF-8 (lone surrogates, as ``os.fsdecode`` makes them) written ``\\xNN``."""
    return text if text.isascii() else _SURROGATE.sub(_escaped, text)


def json_bytes(value: Any, *, indent: int = 0, order: Literal["sorted"] | None = None) -> bytes:
    """``value`` (any msgspec struct, or what it consists of) as JSON; ``indent`` ends it with a newline too."""
    try:
        data = msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        data = msgspec.json.encode(cleaned(msgspec.to_builtins(value)), order=order)
    return msgspec.json.format(data, indent=indent) + b"\n" if indent else data


def cleaned(value: Any) -> Any:
    """Plain dicts, lists and strings with every string :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in value]
    return value


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"
