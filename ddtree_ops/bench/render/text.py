"""Numbers and untrusted words on their way to a page.

Prompts, tokens, model names, paths and error texts come from hosts and users. :func:`visible` shows what would
otherwise act or hide (control characters, terminal escapes, bidirectional overrides, lone surrogates); the template's
autoescaping and :func:`md` keep what is left from being read as markup.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

DASH = "–"
_MARKDOWN = re.compile(r"[\\`*\[\]<>|~&$]|^#|(?<!\w)_|_(?!\w)")
_GAP = "\u202f"  # between thousands
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def visible(value: Any, limit: int = 0) -> str:
    """``value`` as one line in which nothing acts: hidden characters as ``\\n``, ``\\x1b``, ``\\u202e``.

    Args:
        limit: Longest result in characters (0: any); what is cut off is marked by an ellipsis.
    """
    text = "".join(_shown(char) for char in str(value))
    return text if not limit or len(text) <= limit else text[: limit - 1] + "…"


def _shown(char: str) -> str:
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def md(value: Any, limit: int = 0) -> str:
    """``value`` as literal text inside Markdown, table cells included; numbers without gaps, so that they are found."""
    return _MARKDOWN.sub(r"\\\g<0>", visible(value, limit).replace(_GAP, ""))


def number(value: float | int | None, digits: int = 1) -> str:
    """With thousands apart by a thin space; a dash where there is no number."""
    return DASH if value is None else f"{value:,.{digits}f}".replace(",", _GAP)


def short(value: float | None) -> str:
    """About three figures, for axes and table cells: 0.0213, 1.52, 38.4, 1 204."""
    if value is None:
        return DASH
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2 if size >= 0.1 else 4
    return number(value, digits)


def ratio(value: float | None) -> str:
    """``1.16×``."""
    return DASH if value is None else f"{value:.2f}×"


def plural(count: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
