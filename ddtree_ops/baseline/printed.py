"""What z-lab's DFlash benchmark prints: it writes no file, so its output saved as text is read.

Two summaries are known: of its own decoding (throughput of plain decoding and DFlash, their ratio, average acceptance
length) and of a server (throughput, accept length, verify steps).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .imported import Imported, refused

SOURCE = "z-lab/dflash benchmark.py"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"\s*([\d,]+(?:\.\d+)?)"
_OFFLINE = {
    "baseline_tok_per_s": rf"^Baseline throughput:{_NUMBER} tok/s",
    "dflash_tok_per_s": rf"^DFlash throughput:{_NUMBER} tok/s",
    "speedup": rf"^Decoding speedup:{_NUMBER}",
    "tokens_per_verify": rf"^Average Acceptance length:{_NUMBER}",
}
_SERVER = {
    "num_prompts": rf"^Num prompts:{_NUMBER}",
    "concurrency": rf"^Concurrency:{_NUMBER}",
    "seconds": rf"^Latency:{_NUMBER}s",
    "output_tokens": rf"^Output tokens:{_NUMBER}",
    "tok_per_s": rf"^Throughput:{_NUMBER} tok/s",
}
_SERVER_MORE = {"tokens_per_verify": rf"^Accept length:{_NUMBER}", "verify_steps": rf"^Spec verify ct:{_NUMBER}"}


def interpret(path: Path, text: str) -> Imported:
    """The printed figures. Raises :class:`Refused` for other texts, and for a summary that is cut off."""
    plain = _ANSI.sub("", text)
    offline, server = _numbers(plain, _OFFLINE), _numbers(plain, _SERVER)
    if not offline and not server:
        raise refused(path, "neither a torch file nor the printed summary of z-lab's benchmark")
    if offline and server:
        raise refused(path, "it holds the summaries of two runs; give each a file of its own")
    missing = (_OFFLINE.keys() - offline.keys()) if offline else (_SERVER.keys() - server.keys())
    if missing:
        raise refused(path, f"the summary is cut off: no {', '.join(sorted(missing))}")
    if offline:
        histogram = re.search(r"^Acceptance length histogram: \[(.*)\]", plain, re.MULTILINE)
        shares = [float(one) / 100 for one in re.findall(r"([\d.]+)%", histogram.group(1))] if histogram else []
        printed: dict[str, dict[str, Any]] = {
            "baseline": {"tok_per_s": offline["baseline_tok_per_s"]},
            "dflash": {
                "tok_per_s": offline["dflash_tok_per_s"],
                "speedup": offline["speedup"],
                "tokens_per_verify": offline["tokens_per_verify"],
                "histogram": shares,
            },
        }
        return Imported(path, SOURCE, None, {"backend": "transformers or mlx"}, printed=printed)
    words = {name: _word(plain, name) for name in ("Backend", "Dataset")}
    conditions: dict[str, Any] = {name.lower(): word for name, word in words.items()}
    conditions |= {name: int(server[name]) for name in ("num_prompts", "concurrency")}
    found = {"tok_per_s": server["tok_per_s"], **_numbers(plain, _SERVER_MORE)}
    return Imported(path, SOURCE, None, conditions, printed={"server": found})


def _numbers(text: str, patterns: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name, pattern in patterns.items():
        hits = re.findall(pattern, text, re.MULTILINE)
        if hits:
            found[name] = float(hits[-1].replace(",", ""))
    return found


def _word(text: str, name: str) -> str:
    hit = re.search(rf"^{name}:\s+(\S+)", text, re.MULTILINE)
    return hit.group(1) if hit else ""
