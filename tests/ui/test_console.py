"""The two streams: data that looks like markup, odd bytes, narrow terminals and readers that went away."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ddtree_ops.bench import report as bench_report
from ddtree_ops.bench import smoke
from ddtree_ops.errors import Refused
from ddtree_ops.model import Check, Need, Plan, Verdict
from ddtree_ops.source import releases, verdict
from ddtree_ops.source.wanted import WantedService
from ddtree_ops.ui import locate, plan, report, status
from ddtree_ops.ui.console import Output
from ddtree_ops.ui.progress import Steps
from ddtree_ops.workflow import deploy, prepare
from tests.source.builders import ENV, SERIES, checkout, copy, host

ODD = "/srv/[/]/[red]x[/red]/:bug:/caf\udce9"


def test_data_with_brackets_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """`[/]` in a path ended the command with rich's MarkupError, and `:bug:` became a picture."""
    output = Output(color=False)
    output.note(ODD)
    output.error(Refused(ODD, where=ODD, why=ODD, next_step=ODD), ODD)
    output.out.print(ODD, soft_wrap=True)
    shown = capsys.readouterr()
    assert "[/]/[red]x[/red]/:bug:/caf\\xe9" in shown.out
    assert shown.err.count("[red]x[/red]") == 6


def test_report_with_brackets_is_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of a deploy's end took the tree's path for markup."""
    found = {"host": "[::1]", "outcome": "deployed", "build_id": "b" * 64, "tree": "/s/[/]/t", "unit": "", "seen": {}}
    report.show(Output(color=False).out, {**found, "root_before": "0" * 64, "steps": {"derive": 1.0}, "failure": None})
    shown = capsys.readouterr().out
    assert "/s/[/]/t" in shown
    assert "[::1]" in shown


def test_progress_of_a_host_with_brackets_is_not_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of the host with `[/]` raised in the middle of an open transaction."""
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal gets the last frame only, in which the note is gone
    output = Output(color=False)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    output._consoles[True] = console
    monkeypatch.setattr(Output, "live", property(lambda self: True))
    with Steps(output, "h1") as steps, steps.step("derive", "Derive [/] it"):
        steps.event({"kind": "progress", "text": "copy [/]/x", "done": 1, "total": 2})
        steps._progress.refresh()  # type: ignore[union-attr]
    assert "[/]/x" in console.file.getvalue()  # type: ignore[attr-defined]


def test_lines_of_progress_are_few_and_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """`-v` printed a line for each of hundreds of counts, broke paths over lines, and a quick step said "0/14"."""
    for verbosity, shown in ((0, 0), (1, 1)):
        with Steps(Output(verbosity=verbosity), "h1") as steps, steps.step("derive", "Derive"):
            for done in range(100):
                steps.event({"kind": "progress", "text": "copy sglang", "done": done, "total": 100})
            steps.event({"kind": "progress", "text": f"create {LONG}/{LONG}", "done": 0, "total": 0})
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == shown + 1, lines
        assert shown == 0 or lines[0].endswith(f"{LONG}/{LONG}")


def test_document_with_paths_that_are_not_utf8(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """A lone surrogate anywhere in the facts made --json a crash."""
    Output(json=True).document("status", {"hosts": [{"tree": ODD, ODD: 1}]})
    found = json.loads(capsysbinary.readouterr().out)["hosts"][0]
    assert found["tree"].endswith("caf\\xe9")
    assert list(found)[1].endswith("caf\\xe9")


def test_reader_that_went_away_is_no_error() -> None:
    """`deploy 2>&1 | head -1`: rich ends the process with SystemExit(1), in the middle of whatever is open."""
    code = (
        "import os, sys\n"
        "from ddtree_ops.ui.console import Output\n"
        "from ddtree_ops.ui.progress import Steps\n"
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.dup2(w, 2)\n"
        "output = Output()\n"
        "with Steps(output, 'h') as steps, steps.step('derive', 'Derive'): output.note('x')\n"
        "output.out.print('y'); output.line('z'); output.document('status', {}); output.say('w')\n"
        "os._exit(17) if sys.argv[1] == 'at once' else sys.exit(17)\n"
    )
    for way in ("at once", "with Python's own flush at exit"):
        assert subprocess.run([sys.executable, "-c", code, way], check=False).returncode == 17


def test_narrow_encoding_cannot_end_a_run() -> None:
    """A Latin-1 or ASCII locale cannot say the marks that the screens use."""
    code = "from ddtree_ops.ui.console import Output; o = Output(); o.note('✓ → é'); o.line('caf\\udce9 ✓')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "caf\\xe9 \\u2713\n"), done.stderr


def test_no_color_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR turns colours off; a COLUMNS that is no number is not a crash."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "wide")
    output = Output()
    assert not output.color
    assert output.out.width == 100


LONG = "/root/a-rather-long-folder-name/another-long-folder-name/ml-env/lib/python3.11/site-packages/sglang/srt"


def _plan() -> Plan:
    return Plan(
        host="pro6000",
        address="10.0.0.1",
        created=0.0,
        facts_digest="d",
        verdict=Verdict(strategy="derive", sentence=f"The service imports {LONG}."),
        commands=(("/usr/bin/git", "-C", LONG, "init"),),
        needs=(Need(what=f"disk under {LONG}", needed=1.0, available=2.0, unit="MB", enough=True),),
        checks=(Check(name="port", state="fail", text=f"30000 is held by {LONG}", next_step=f"end {LONG}"),),
        notes=(f"local edits in {LONG}",),
    )


def _status() -> dict[str, Any]:
    deployment = {"created": 0.0, "release_id": "r", "strategy": "derive", "tree": LONG, "unit": "u", "port": 1}
    state = {"active": "active", "enabled": "enabled"}
    process = {"pid": 1, "command": LONG, "started": 0, "rss": 10}
    health = {"ok": False, "text": LONG}
    service = {"state": state, "health": health, "processes": [process], "errors": [LONG]}
    return {"host": "h", "verdict": LONG, "deployment": deployment, "service": service}


def _bench() -> dict[str, Any]:
    good = {"completion_tokens": 48, "seconds": 1.2, "ttft": 0.123, "verify_ct": 15, "accepted_drafts": 33}
    rows = [
        {"id": "code/1", "kind": "code", "ok": True, "cached_tokens": 0, "prompt_tokens": 20, **good},
        {"id": "chat/1", "kind": "chat", "ok": False, "error": LONG, "completion_tokens": 0},
    ]
    return smoke.evaluate({"requests": rows, "seconds": 2.0, "concurrency": 1, "max_tokens": 48, "budget": 8})


@pytest.mark.parametrize("screen", ["locate", "plan", "status", "report", "bench"])
def test_screens_fit_sixty_columns_and_lose_nothing(screen: str) -> None:
    """Long paths are folded, not cut: every character of them is still there."""
    console = Console(file=io.StringIO(), width=60, markup=False)
    if screen == "locate":
        facts = releases.with_versions(host(copies=(copy(root=LONG, realpath=LONG), checkout())), SERIES)
        locate.show(console, facts, verdict.decide(facts, WantedService(environment=ENV), SERIES), host="h")
    elif screen == "plan":
        plan.show(console, _plan(), diff=False)
    elif screen == "status":
        status.show_status(console, _status())
    elif screen == "bench":
        console.print(bench_report.render(_bench()))
    else:
        found = {"host": "h", "outcome": "deployed", "build_id": "b" * 64, "tree": LONG, "unit": "", "seen": {}}
        report.show(console, {**found, "root_before": "0" * 64, "steps": {"derive": 1.0}, "failure": None})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text
    if screen != "locate":
        assert LONG in "".join(text.split())


def test_saved_plan_with_odd_paths(tmp_path: Path) -> None:
    """`plan -o` wrote the plan with an encoder that cannot write such a path."""
    odd = msgspec.structs.replace(_plan(), notes=(ODD,))
    deploy._save(tmp_path / "plan.json", odd)
    prepare.hold_to(tmp_path / "plan.json", odd)
