"""`locate-source` on a 100-column terminal and as JSON."""

from __future__ import annotations

import io
import json

import msgspec
from rich.console import Console

from ddtree_ops.jsontext import json_bytes
from ddtree_ops.source import releases, verdict
from ddtree_ops.source.wanted import WantedService
from ddtree_ops.ui import locate
from tests.source.builders import ENV, SERIES, altered, checkout, copy, host


def shown(facts: object, found: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    locate.show(console, facts, found, host="pro6000")  # type: ignore[arg-type]
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_table_and_sentence() -> None:
    """One row per copy, the live one first and marked; the sentence; evidence; warnings. No line over 100 columns."""
    old = checkout(git={"dirty": ("a.py", "b.py")})
    facts = releases.with_versions(host(copies=(old, copy())), SERIES)
    text = shown(facts, verdict.decide(facts, WantedService(environment=ENV), SERIES))
    assert max(map(len, text.splitlines())) <= 100
    live = next(line for line in text.splitlines() if line.lstrip().startswith("live"))
    for word in (ENV, "wheel", "0.5.13.post1", "v1"):
        assert word in live
    other = next(line for line in text.splitlines() if "checkout" in line and "0.5.10.post1" in line)
    assert other.index("0.5.10") == live.index("0.5.13")
    flat = " ".join(text.split())
    for words in (
        "main aaaaaaaaa",
        "2 modified",
        "The service imports SGLang 0.5.13.post1",
        "Evidence",
        "pip install -e",
    ):
        assert words in flat


def test_refusal_says_where_and_next() -> None:
    """The reason, every place that was looked at, and the next step."""
    facts = releases.with_versions(host(copies=(copy("0.5.10.post1"),)), SERIES)
    text = " ".join(shown(facts, verdict.decide(facts, WantedService(environment=ENV), SERIES)).split())
    for words in ("Refused: SGLang 0.5.10.post1", "looked at", "dflash_worker.py", "next", "0.5.11 or newer"):
        assert words in text


def test_paths_that_are_not_utf8_can_be_shown_and_encoded() -> None:
    """Bytes that are not UTF-8 travel as lone surrogates; neither the terminal nor JSON can take those."""
    facts = host(copies=(altered(copy(), root="/root/caf\udce9/sglang"),))
    found = verdict.decide(facts, WantedService(environment=ENV), SERIES)
    shown(facts, found).encode("utf-8")
    document = locate.body(facts, found)
    assert "caf\\xe9" in json.dumps(msgspec.json.decode(json_bytes(document))).replace("\\\\", "\\")
