#!/usr/bin/env python3
"""Merge shards of ``measure.py`` into one result file: medians over all passes of all starts, with every run beside.

    merge.py shard.jsonl ... --condition gpu="NVIDIA H200" --condition sglang=0.5.17 --out RESULT.json

The result's rows: {target, arm, budget, concurrency, temperature, tok_per_s, tokens_per_verify, step_ms, runs}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 2
_CELL = ("target", "arm", "budget", "concurrency", "temperature")
_RUN = ("start", "pass", "prompts", "tokens", "verify_steps", "cached_tokens", "wall_s", "tok_per_s")


def middle(runs: list[dict[str, Any]], name: str) -> float | None:
    """Return the median of a figure, ``None`` where no run has it."""
    values = [run[name] for run in runs if run.get(name) is not None]
    return round(statistics.median(values), 4) if values else None


def merge(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per cell."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        cells[tuple(line[name] for name in _CELL)].append(line)
    rows = []
    for cell, runs in cells.items():
        row: dict[str, Any] = dict(zip(_CELL, cell, strict=True))
        row["budget"] = int(row["budget"]) if str(row["budget"]).isdigit() else row["budget"]
        for name in ("tok_per_s", "tokens_per_verify", "step_ms"):
            row[name] = middle(runs, name)
        row["runs"] = [{name: run[name] for name in _RUN} for run in runs]
        rows.append(row)
    return rows


def main() -> None:
    """Parse arguments, merge, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("shards", type=Path, nargs="+")
    parser.add_argument("--condition", action="append", default=[], help="KEY=VALUE, or KEY=@FILE.json")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for shard in args.shards for line in shard.read_text("utf-8").splitlines()]
    conditions: dict[str, Any] = {}
    for text in args.condition:
        name, value = text.split("=", 1)
        conditions[name] = json.loads(Path(value[1:]).read_text("utf-8")) if value.startswith("@") else value
    document = {
        "schema_version": SCHEMA_VERSION,
        "merged": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "conditions": conditions,
        "max_new_tokens": sorted({line["max_new_tokens"] for line in lines}),
        "rows": merge(lines),
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
