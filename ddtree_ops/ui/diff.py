"""Unified diffs for people."""

from __future__ import annotations

from rich.text import Text

_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("diff ", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


def coloured(diff: str) -> Text:
    """``diff`` with the usual colours; the text itself is unchanged."""
    text = Text()
    for line in diff.splitlines(keepends=True):
        style = next((style for start, style in _STYLES if line.startswith(start)), "")
        text.append(line, style=style)
    return text


def counts(diff: str) -> tuple[int, int]:
    """Added and removed lines of a unified diff."""
    lines = [line for line in diff.splitlines() if not line.startswith(("+++", "---"))]
    return sum(line.startswith("+") for line in lines), sum(line.startswith("-") for line in lines)
