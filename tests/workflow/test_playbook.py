"""Playbooks are the user's to change: what cannot work is said with file, line and key before anything happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_ops.errors import ConfigError
from ddtree_ops.workflow import playbook

PACKAGED = ["derive", "payload", "patch", "unit", "takeover", "editable", "probe", "baseline", "start", "ready"]


def write(folder: Path, text: str) -> Path:
    path = folder / "deploy.yaml"
    path.write_text(text)
    return path


def minimal(*steps: str) -> str:
    return "name: deploy\nsteps:\n" + "".join(f"  - {step}\n" for step in steps)


CORE = ("step: derive", "step: payload", "step: patch", "step: editable", "step: probe")


def test_packaged_playbook_loads_in_order() -> None:
    steps = [step.kind.name for step in playbook.load("deploy").steps]
    assert steps[: len(PACKAGED)] == PACKAGED
    assert playbook.load("deploy").on_failure == "rollback"


def test_steps_may_be_dropped_and_added(tmp_path: Path) -> None:
    extra = 'step: run\n    title: Warm the page cache\n    argv: ["cat", "/etc/hostname"]'
    book = playbook.load("deploy", write(tmp_path, minimal(*CORE, extra)))
    assert [step.kind.name for step in book.steps] == ["derive", "payload", "patch", "editable", "probe", "run"]
    assert book.steps[-1].title == "Warm the page cache"
    assert not book.has("start")


@pytest.mark.parametrize(
    ("steps", "words", "line"),
    [
        ((*CORE, "step: reedy"), "unknown step 'reedy'", 8),
        ((*CORE, "step: ready\n    timeout: soon"), "timeout must be int, not str", 9),
        ((*CORE, "step: ready\n    timout: 5"), "has no option 'timout'", 9),
        ((*CORE, "step: derive"), "stands twice", 8),
        ((*CORE, "step: run"), "needs argv", 8),
        ((*CORE, "step: start"), "the step start needs the step unit", 8),
        ((*CORE, "step: unit", "step: ready"), "the step ready needs the step start", 9),
        (("step: derive", "step: payload", "step: editable", "step: patch", "step: probe"), "must come after patch", 5),
    ],
    ids=["unknown-step", "wrong-type", "unknown-option", "twice", "run-without-argv", "no-unit", "no-start", "order"],
)
def test_mistakes_name_line_and_cure(tmp_path: Path, steps: tuple[str, ...], words: str, line: int) -> None:
    path = write(tmp_path, minimal(*steps))
    with pytest.raises(ConfigError) as caught:
        playbook.load("deploy", path)
    assert words in caught.value.what
    assert f"{path}:{line}:" in caught.value.where
    assert caught.value.exit_code == 2


def test_required_step_cannot_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="probe may not be dropped"):
        playbook.load("deploy", write(tmp_path, minimal(*CORE[:-1])))


def test_unknown_key_at_the_top(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        playbook.load("deploy", write(tmp_path, minimal(*CORE) + "on_fail: leave\n"))
    assert "on_fail" in caught.value.what + caught.value.where
    assert "on_failure" in caught.value.why


def test_rollback_cannot_drop_its_proof(tmp_path: Path) -> None:
    path = tmp_path / "rollback.yaml"
    path.write_text("name: rollback\nsteps:\n  - step: undo\n")
    with pytest.raises(ConfigError, match="prove may not be dropped"):
        playbook.load("rollback", path)
    path.write_text("name: rollback\nsteps:\n  - step: undo\n  - step: prove\n  - step: purge\n")
    assert playbook.load("rollback", path).has("purge")
