"""Progress of a bench: bars on a terminal, lines elsewhere, nothing with ``--json``; and what the terminal shows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ddtree_ops.bench.results import Cell, Interval, Manifest, Summary, create
from ddtree_ops.bench.schedule import schedule
from ddtree_ops.bench.schema import Plan
from ddtree_ops.ui.console import Output
from ddtree_ops.workflow.bench_progress import Bars
from ddtree_ops.workflow.bench_show import show

PLAN = Plan(arms=("ar", "ddtree"), regimes=("chat",), repeat=1, starts=1, budgets=(8, 16))


def walk(bars: Bars) -> None:
    blocks = schedule(PLAN)
    with bars:
        bars.plan(blocks)
        for block in blocks:
            with bars.step("start", f"Start {block.arm}"):
                pass
            with bars.block(block.arm, block.start):
                for _ in block.rounds:
                    bars.event({"kind": "progress", "text": "2 of 4 requests", "done": 2, "total": 4})
                    bars.advance(block.arm)


def test_a_bar_for_each_arm_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(Output, "live", True)
    monkeypatch.setattr(Output, "err", Console(file=screen, force_terminal=True, width=100))
    bars = Bars(Output(), "h1")
    walk(bars)
    text = screen.getvalue()
    assert "plain decoding, 1 round" in text
    assert "DDTREE, 2 rounds" in text
    assert bars._done == {"ar": 1, "ddtree": 2}


def test_lines_elsewhere_and_silence_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    walk(Bars(Output(), "h1"))
    assert "Measure DDTREE, start 1" in capsys.readouterr().err
    walk(Bars(Output(json=True), "h1", silent=True))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_a_step_inside_of_another_gives_the_display_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of a deploy is a step with many steps in it: its own line never ended."""
    screen = io.StringIO()
    monkeypatch.setattr(Output, "live", True)
    monkeypatch.setattr(Output, "err", Console(file=screen, force_terminal=True, width=100))
    bars = Bars(Output(), "h1")
    with bars, bars.step("gate", "Judge the gates"):
        with bars.step("start", "Start plain decoding"):
            pass
        assert bars._title == "Judge the gates"
        task = bars._task
    assert task is not None
    assert bars._progress is not None
    assert next(one for one in bars._progress.tasks if one.id == task).finished


def test_what_loses_stands_first_and_invalid_is_marked(tmp_path: Path) -> None:
    folder = create(tmp_path / "out", Manifest(created="", tool_version="", host="h1"))
    value = Interval(median=0.8, low=0.7, high=0.9)
    cells = (
        Cell(arm="ddtree", budget=16, regime="chat", concurrency=1, runs=2, tok_per_s=value, speedup_vs_ar=value),
        Cell(arm="dflash", regime="chat", concurrency=1, runs=2, valid=False, why=("not warm",)),
    )
    folder.save("summary", Summary(cells=cells, headline=("SLOWER than plain decoding: chat", "the rest")))
    screen = io.StringIO()
    show(Console(file=screen, width=200), folder)
    lines = screen.getvalue().splitlines()
    assert lines[0] == "SLOWER than plain decoding: chat"
    assert any("dflash" in line for line in lines)
    assert any("ddtree 16" in line and "0.80" in line for line in lines)
