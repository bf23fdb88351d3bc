"""Budget curves: what smaller budgets would have had, from nested rounds and from exact walks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.baseline import curve, traces
from ddtree_ops.bench.schema import Offline
from ddtree_ops.errors import ConfigError
from tests.baseline.command import run_cli
from tests.baseline.material import World, rounds

WIDE = World(budget=12)


def test_nested_lengths_by_hand() -> None:
    """Accepted nodes 0, 1, 4 and 0, 7: budget 3 keeps the root and node 1 of the first, the root of the second."""
    paths = [[0, 1, 4], [0, 7]]
    assert curve.nested_length(paths, 3) == 1.5
    assert curve.nested_length(paths, 4) == 2.0
    assert curve.nested_length(paths, 100) == 2.5
    assert curve.nested_length([], 4) is None


def test_nested_curve_rises_to_what_was_recorded(tmp_path: Path) -> None:
    found = curve.offline(traces.load(WIDE.write(tmp_path / "t")), (1, 2, 4, 8, 12))
    lengths = [one.tokens_per_verify for one in found.points]
    assert lengths == sorted(lengths)
    assert lengths[0] > 1
    recorded = list(traces.load(tmp_path / "t").rounds)
    exact = sum(len(one.emitted) for one in recorded) / len(recorded)
    assert lengths[-1] == pytest.approx(exact, abs=1e-4)
    assert all(one.low is not None and one.low <= one.tokens_per_verify for one in found.points)


def test_wider_than_recorded_is_an_error(tmp_path: Path) -> None:
    """Trees are nested downwards only."""
    trace = traces.load(WIDE.write(tmp_path / "t"))
    with pytest.raises(ConfigError, match="at most 12 nodes, 16 are wanted"):
        curve.offline(trace, (8, 16))


def test_lowered_budgets_and_chains_do_not_pull_the_curve_down(tmp_path: Path) -> None:
    """A server's trace holds rounds of other budgets; only full ones count."""

    def doctor(records: list[dict[str, Any]]) -> None:
        for one in rounds(records)[::2]:
            one["extra"]["budget"] = 3
            one["accepted"], one["emitted"] = one["accepted"][:1], one["emitted"][:1]

    found = curve.offline(traces.load(WIDE.write(tmp_path / "t", doctor)), (12,))
    full = [one for one in traces.load(tmp_path / "t").rounds if one.extra["budget"] == 12]
    assert found.points[0].rounds == len(full)
    assert found.points[0].tokens_per_verify == pytest.approx(
        sum(len(one.accepted) for one in full) / len(full), abs=1e-4
    )


def _walks(records: list[dict[str, Any]]) -> None:
    for number in range(4):
        walks = {"linear": [20, 40], "4": [16, 40], "8": [10, 30 + 10 * number]}
        answer = {"kind": "answer", "schema": "ddtree-trace/1", "req": f"r{number}", "ids": [1], "rounds": 3}
        records.append({**answer, "finish": "length", "extra": {"walks": walks}})


def test_exact_walks_go_before_nested_rounds(tmp_path: Path) -> None:
    """An offline recording has both; walks have no position bias, and know the linear block."""
    trace = traces.load(WIDE.write(tmp_path / "t", _walks))
    found = curve.offline(trace)
    assert [(one.budget, one.tokens_per_verify) for one in found.points] == [(None, 2.0), (4, 2.5), (8, 4.5)]
    assert found.points[2].low == 3.0 or found.points[2].low > 3.0
    assert curve.offline(trace, (8,), method="nested").source.startswith("nested")
    with pytest.raises(ConfigError, match="no exact walk of 16"):
        curve.offline(trace, (16,), method="walks")


def test_command_writes_what_a_bench_folder_holds(tmp_path: Path) -> None:
    """``offline.json`` is read by the report as ``bench.schema.Offline``."""
    WIDE.write(tmp_path / "t", _walks)
    done = run_cli("baseline", "curve", tmp_path / "t", "--out", tmp_path / "offline.json")
    assert done.code == 0, done.err
    assert "linear" in done.out
    found = msgspec.json.decode((tmp_path / "offline.json").read_bytes(), type=Offline)
    assert [one.budget for one in found.curve("chat")] == [4, 8]
    body = json.loads(run_cli("baseline", "curve", tmp_path / "t", "--json", "--budget", "4").out)
    assert [one["budget"] for one in body["points"]] == [None, 4]
    assert run_cli("baseline", "curve", tmp_path / "t", "--budget", "x").code == 2
