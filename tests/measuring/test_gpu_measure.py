"""``benchmarks/gpu/measure.py`` and ``merge.py`` against a real HTTP server that answers as SGLang does."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"


def script(name: str) -> ModuleType:
    """Import a script of the folder."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


measure, merge = script("measure"), script("merge")


class Server(ThreadingHTTPServer):
    """Answers 12 tokens in 5 verify steps; fails after ``fail_from`` generations; remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.fail_from = 10**9

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request of the scripted server."""

    server: Server

    def do_POST(self) -> None:
        """Answer ``/generate`` and ``/flush_cache``."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.path)
        failing = self.server.asked.count("/generate") > self.server.fail_from
        meta = {"completion_tokens": 12, "spec_verify_ct": 5, "cached_tokens": 0}
        body = json.dumps({"output_ids": [1] * 12, "meta_info": meta}).encode()
        self.send_response(500 if failing and self.path == "/generate" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def arguments(tmp_path: Path, **changes: Any) -> argparse.Namespace:
    given = {
        "shard": tmp_path / "shard.jsonl", "target": "tiny", "start": 1, "concurrency": "1,2", "temperature": 0.0,
        "passes": 1, "warm": 2, "max_new": 12, "seconds": 60.0,
    }  # fmt: skip
    return argparse.Namespace(**{**given, **changes})


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "shard.jsonl").read_text().splitlines()]


def test_a_cut_measurement_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    """A shard that was cut in its second cell must not measure the first one again, nor count it twice."""
    arm = measure.Arm("ar", server.url)
    server.fail_from = 8  # 2 warming + 3 measured of the first cell; the second fails
    with pytest.raises(RuntimeError, match=r"ar: [12] requests failed"):
        measure.measure(arguments(tmp_path), [arm], [[1], [2], [3]])
    assert [line["concurrency"] for line in lines(tmp_path)] == [1]
    server.fail_from, server.asked = 10**9, []
    measure.measure(arguments(tmp_path), [arm], [[1], [2], [3]])
    assert [line["concurrency"] for line in lines(tmp_path)] == [1, 2]
    assert server.asked.count("/generate") == 3 + 3  # warming (at least two per request in flight) and the second cell


def test_the_prefix_cache_is_flushed_before_every_pass(server: Server, tmp_path: Path) -> None:
    """A second pass that finds its prompts cached measures something else."""
    measure.measure(arguments(tmp_path, passes=2, concurrency="1"), [measure.Arm("ar", server.url)], [[1], [2]])
    passes = [i for i, path in enumerate(server.asked) if path == "/flush_cache"]
    assert len(passes) == 3
    assert all(server.asked[i + 1] == "/generate" for i in passes)


def test_the_second_start_runs_the_arms_backwards(server: Server, tmp_path: Path) -> None:
    """Without ABBA order a drift of the machine favours the arms that always come last."""
    arms = [measure.Arm(name, server.url) for name in ("a", "b")]
    for start in (1, 2):
        measure.measure(arguments(tmp_path, start=start, concurrency="1"), arms, [[1]])
    assert [line["arm"] for line in lines(tmp_path)] == ["a", "b", "b", "a"]


def test_a_budget_is_told_through_the_control_file(server: Server, tmp_path: Path, monkeypatch: Any) -> None:
    """A budget that is not told is measured under another one's name."""
    monkeypatch.setattr(measure, "CONTROL_SECONDS", 0.0)
    told = []
    for budget in ("16", "auto", "chain"):
        measure.Arm("d", server.url, budget, tmp_path).select()
        told.append(json.loads((tmp_path / "control.json").read_text()))
    assert told == [{"mode": "tree", "budget": 16}, {"mode": "tree", "budget": "auto"}, {"mode": "chain"}]


@pytest.mark.parametrize("text", ["ar", "ar=http://x,budget=8", "ar=http://x,speed=1"])
def test_an_arm_that_is_not_understood_is_refused(text: str) -> None:
    """A misspelt option must not measure something else."""
    with pytest.raises((SystemExit, ValueError)):
        measure.Arm.parse(text)


def test_merge_takes_the_median_over_starts_and_keeps_the_runs(server: Server, tmp_path: Path) -> None:
    """A merge that drops runs, or pools cells, gives figures nobody can check."""
    for start in (1, 2):
        measure.measure(arguments(tmp_path, start=start), [measure.Arm("d-8", server.url)], [[1], [2]])
    rows = merge.merge([{**line, "budget": "8", "tok_per_s": 10.0 * line["start"]} for line in lines(tmp_path)])
    assert [(row["arm"], row["budget"], row["concurrency"], row["tok_per_s"]) for row in rows] == [
        ("d-8", 8, 1, 15.0),
        ("d-8", 8, 2, 15.0),
    ]
    assert rows[0]["tokens_per_verify"] == 2.2  # (24 - 2) / 10: the first token of a request is prefill's
    assert [run["start"] for run in rows[0]["runs"]] == [1, 2]
