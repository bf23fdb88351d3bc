"""Generated parts of a document, between markers; the rest of it is left alone, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ConfigError

_BEGIN = "<!-- generated: {name}. By `python -m ddtree_ops.roadmap` from benchmarks/results/, not by hand. -->"
_END = "<!-- end: {name} -->"
_BLOCK = re.compile(r"<!-- generated: (?P<name>[a-z-]+)[^\n]*-->\n(?P<body>.*?)(?P<end><!-- end: (?P=name) -->)", re.S)
_ANY = re.compile(r"<!-- (?:generated|end): ([a-z-]+)")


def filled(text: str, blocks: Mapping[str, Sequence[str]], where: str) -> str:
    """``text`` with every marked part made anew.

    Raises :class:`ConfigError`: a marker without its other half, one of an unknown name, or none at all.
    """
    names = [match["name"] for match in _BLOCK.finditer(text)]
    if sorted(_ANY.findall(text)) != sorted([*names, *names]):
        raise ConfigError(
            "a marker of a generated table stands alone or twice",
            where=where,
            next_step="each table needs `<!-- generated: NAME -->` and `<!-- end: NAME -->` on lines of their own",
        )
    for name in names:
        if name not in blocks:
            raise ConfigError(f"no table is named {name!r}", where=where, next_step=f"known: {', '.join(blocks)}")
    if not names:
        raise ConfigError(
            "the document has no marked table",
            where=where,
            next_step=f"put `{_BEGIN.format(name='serving')}` and `{_END.format(name='serving')}` where one is wanted",
        )
    return _BLOCK.sub(lambda match: _made(match["name"], blocks[match["name"]]), text)


def stale(text: str, blocks: Mapping[str, Sequence[str]], where: str) -> list[str]:
    """Names of the parts that are not what the result files say."""
    wanted = {match["name"]: match[0] for match in _BLOCK.finditer(filled(text, blocks, where))}
    return [match["name"] for match in _BLOCK.finditer(text) if match[0] != wanted[match["name"]]]


def _made(name: str, lines: Sequence[str]) -> str:
    return "\n".join([_BEGIN.format(name=name), "", *lines, "", _END.format(name=name)])
