"""The transaction of a deploy, from the controller's side: whatever happens between begin and commit, the host is put
back and the exit code says what is true.

``ScriptedLink`` is a plain object with ``call`` that answers as the host program does and notes what was asked; what
the host itself does with these calls is tested on real hosts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.errors import (
    DdtreeError,
    Interrupted,
    RollbackFailed,
    RolledBack,
    StepFailed,
    TransportError,
    Unhealthy,
)
from ddtree_ops.planning.wanted import Wanted
from ddtree_ops.ui.console import Output
from ddtree_ops.ui.progress import Steps
from ddtree_ops.workflow import execute, playbook
from ddtree_ops.workflow.session import Survey
from tests.planning import test_plan

ROOT = "f" * 64
Act = Callable[[], Any]


class ScriptedLink:
    """``script``: what happens at an operation or verb, by its name; everything else succeeds."""

    host = "h1"

    def __init__(self, **script: Act) -> None:
        self.script = script
        self.asked: list[str] = []

    def call(self, verb: str, params: dict[str, Any] | None = None, **_: Any) -> dict[str, Any]:
        name = str((params or {}).get("op") or verb)
        self.asked.append(name)
        if name in self.script:
            return dict(self.script[name]() or {})
        known: dict[str, dict[str, Any]] = {
            "tx_begin": {"before": {"root": ROOT}},
            "tx_commit": {"after": {"root": "a" * 64}},
            "tx_abort": {"root": ROOT, "undone": 3},
        }
        return known.get(name, {})


def fails(error: BaseException) -> Act:
    def act() -> None:
        raise error

    return act


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def deploy(link: ScriptedLink, *, on_failure: str = "rollback", steps: tuple[str, ...] = ()) -> dict[str, Any]:
    """One deploy over the link; without ``steps`` those of the packaged playbook that this link can answer."""
    prepared = test_plan.plan()
    survey = Survey(
        host=test_plan.inventory_host(),
        facts=test_plan.good_host(),
        verdict=test_plan.verdict(),
        patches=None,  # type: ignore[arg-type] # not asked for after planning
        series=None,
    )
    names = steps or ("derive", "payload", "patch", "unit", "editable", "probe", "start", "ready", "identity", "enable")
    packaged = playbook.load("deploy")
    book = packaged.without(*(s.kind.name for s in packaged.steps if s.kind.name not in names))
    book = playbook.Playbook(
        name="deploy",
        origin="",
        steps=book.steps,
        on_failure=on_failure,  # type: ignore[arg-type]
    )
    with Steps(Output(verbosity=-1), "h1") as progress:
        return execute.carry_out(link, survey, book, Wanted(budget=16), prepared, progress, {})  # type: ignore[arg-type]


def signals_are_given_back() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_good_end_is_recorded() -> None:
    link = ScriptedLink()
    assert deploy(link)["outcome"] == "deployed"
    assert link.asked[0] == "tx_begin"
    assert link.asked[-1] == "tx_commit"
    assert signals_are_given_back()


@pytest.mark.parametrize("op", ["derive_tree", "install_editable", "import_probe"])
def test_failed_step_is_undone_exit_4(op: str) -> None:
    link = ScriptedLink(**{op: fails(Unhealthy("no", code="x"))})
    with pytest.raises(StepFailed, match=": no") as caught:
        deploy(link)
    assert link.asked[-2:] == [op, "tx_abort"]
    assert ROOT[:16] in caught.value.why
    assert caught.value.reason == "x"


def test_failed_service_is_undone_exit_6() -> None:
    link = ScriptedLink(wait_ready=fails(Unhealthy("died")))
    with pytest.raises(RolledBack):
        deploy(link)
    assert link.asked[-1] == "tx_abort"


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), SystemExit(3), StopIteration(), GeneratorExit()])
def test_bug_between_begin_and_commit_is_undone_and_stays_a_bug(error: BaseException) -> None:
    """Anything that is no DdtreeError, SystemExit included, left the transaction to the closing of the link."""
    link = ScriptedLink(git_commit=fails(error))
    with pytest.raises(DdtreeError) as caught:
        deploy(link)
    assert caught.value.exit_code == 1
    assert link.asked[-1] == "tx_abort"
    assert ROOT[:16] in caught.value.why, "a bug must not leave open what the host is in"


@pytest.mark.parametrize("verb", ["service_settle", "tx_commit"])
def test_failed_end_is_undone(verb: str) -> None:
    """Settling and committing stood outside of what is caught: exit 9, "installed", while the host undid everything."""
    link = ScriptedLink(**{verb: fails(Unhealthy("cannot"))})
    steps = ("derive", "payload", "patch", "unit", "editable", "probe", "start", "ready")
    with pytest.raises(StepFailed, match="Record the deployment: cannot"):
        deploy(link, steps=steps)
    assert link.asked[-1] == "tx_abort"
    assert signals_are_given_back()


def test_leave_keeps_an_unhealthy_service() -> None:
    link = ScriptedLink(wait_ready=fails(Unhealthy("died")))
    report = deploy(link, on_failure="leave")
    assert (report["outcome"], report["failure"]["step"]) == ("unhealthy", "ready")
    assert link.asked[-1] == "tx_commit"


def test_leave_that_cannot_be_recorded_is_undone() -> None:
    """A baseline unit that failed may not be committed: the host says so, and then everything is undone."""
    link = ScriptedLink(wait_ready=fails(Unhealthy("died")), tx_commit=fails(DdtreeError("x", code="cannot_commit")))
    with pytest.raises(DdtreeError):
        deploy(link, on_failure="leave")
    assert link.asked[-2:] == ["tx_commit", "tx_abort"]


def test_ctrl_c_is_undone_even_where_failures_are_left() -> None:
    """Interrupted is an error like others: `on_failure: leave` committed what the user wanted to stop."""
    link = ScriptedLink(wait_ready=lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted, match="everything was undone"):
        deploy(link, on_failure="leave")
    assert link.asked[-1] == "tx_abort"
    assert "tx_commit" not in link.asked
    assert signals_are_given_back()


def test_second_ctrl_c_stops_at_once() -> None:
    """It went on to ask the host for the undo, and to wait for it."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    link = ScriptedLink(install_editable=twice)
    with pytest.raises(Interrupted, match="stopped at once") as caught:
        deploy(link)
    assert "tx_abort" not in link.asked
    assert "status" in caught.value.next_step
    assert signals_are_given_back()


def test_ctrl_c_while_recording_is_told_the_truth(capsys: pytest.CaptureFixture[str]) -> None:
    """Once the end is being written nothing is undone any more: that must not be promised."""
    done = {"after": {"root": "a" * 64}}
    link = ScriptedLink(tx_commit=lambda: os.kill(os.getpid(), signal.SIGINT) or done)
    assert deploy(link)["outcome"] == "deployed"
    assert "rollback" in capsys.readouterr().err


@pytest.mark.parametrize("on_failure", ["rollback", "leave"])
def test_lost_connection_gives_the_signals_back(on_failure: str) -> None:
    """After a lost connection Ctrl-C stayed caught: with several hosts the next one could not be stopped."""
    link = ScriptedLink(wait_ready=fails(TransportError("cut")))
    with pytest.raises(TransportError, match="cut") as caught:
        deploy(link, on_failure=on_failure)
    assert "tx_commit" not in link.asked
    assert "undoes" in caught.value.why
    assert "recover" in caught.value.next_step
    assert signals_are_given_back()


def test_failed_way_back_says_how_it_began() -> None:
    """Exit 7 named the paths that differ, and no longer why the deploy had failed in the first place."""
    link = ScriptedLink(import_probe=fails(Unhealthy("no torch")), tx_abort=fails(RollbackFailed("2 paths differ")))
    with pytest.raises(RollbackFailed, match="2 paths differ") as caught:
        deploy(link)
    assert "no torch" in caught.value.why


def test_broken_screen_does_not_end_a_deploy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the display in one step undid the whole deploy, and one in the undo hid why."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("screen")

    link = ScriptedLink(install_editable=lambda: monkeypatch.setattr(Output, "note", broken))
    assert deploy(link)["outcome"] == "deployed"
