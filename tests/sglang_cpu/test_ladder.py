"""Widths and budgets of one running server: the chain is DFLASH, budgets change without a restart, auto chooses.

One DFLASH server, then DDTREE with and without overlap scheduling; budgets and modes change by the control file.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.sglang_cpu.conftest import PAIR
from tests.sglang_cpu.servers import Environment, Server, serving

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

TOKENS, BLOCK, LADDER = 48, 16, (6, 9, 16, 24, 33)
PROMPTS = [json.loads(line)["text"] for line in (PAIR.parent / "prompts.jsonl").read_text("utf-8").splitlines()][:6]
DRAFTER = ("--speculative-draft-model-path", PAIR / "draft")


@dataclass
class Phase:
    """What one control file led to: answers one by one, and what the counters gained meanwhile."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    gained: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def ids(self) -> list[list[int]]:
        """The answers' tokens."""
        return [answer["output_ids"] for answer in self.answers]

    def steps(self) -> int:
        """Verify steps that the answers took."""
        return sum(answer["meta_info"]["spec_verify_ct"] for answer in self.answers)


def _one_by_one(server: Server) -> list[dict[str, Any]]:
    return [server.generate([prompt], TOKENS)[0] for prompt in PROMPTS]


def _beacon(folder: Path) -> dict[str, Any]:
    time.sleep(2.5)  # the beacon looks once a second
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob("[0-9]*.json")]
    return next(beacon for beacon in found if beacon["argv"] == ["sglang::scheduler"])


def _gained(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in after.items():
        if isinstance(value, int):
            found[name] = value - before.get(name, 0)
        elif isinstance(value, dict) and name.startswith("steps_by_"):
            old = before.get(name, {})
            found[name] = {key: count - old.get(key, 0) for key, count in value.items() if count != old.get(key, 0)}
    return found


@pytest.fixture(scope="module")
def dflash(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Phase:
    """Answers of SGLang's own DFLASH, unmodified."""
    log = tmp_path_factory.mktemp("dflash") / "log"
    with serving(cpu_environment, PAIR / "target", log, "--speculative-algorithm", "DFLASH", *DRAFTER) as server:
        return Phase(_one_by_one(server))


CONTROLS: dict[str, dict[str, Any]] = {
    "start": {},
    "budget 5": {"budget": 5},
    "budget 8": {"budget": 8},
    "budget 20": {"budget": 20},
    "chain": {"mode": "chain"},
    "still a chain": {"budget": 7},
    "auto": {"budget": "auto", "mode": "tree"},
}


@pytest.fixture(scope="module", params=["overlap", "sync"])
def phases(
    request: pytest.FixtureRequest,
    cpu_environment: Environment,
    patched_tree: Path,
    dflash: Phase,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Phase]:
    """What one server did under each control file; ``dflash`` comes first, so that one server runs at a time."""
    work = tmp_path_factory.mktemp("ladder")
    run_dir = work / "run"
    run_dir.mkdir()
    options = [] if request.param == "overlap" else ["--disable-overlap-schedule"]
    found: dict[str, Phase] = {}
    with serving(
        cpu_environment, PAIR / "target", work / "log", "--speculative-algorithm", "DDTREE", *DRAFTER, *options,
        tree=patched_tree, DDTREE_BUDGET="32", DDTREE_LADDER=",".join(map(str, LADDER)), DDTREE_RUN_DIR=str(run_dir),
    ) as server:  # fmt: skip
        for name, control in CONTROLS.items():
            if control:
                (run_dir / "control.json").write_text(json.dumps(control), "utf-8")
            before = _beacon(run_dir)
            answers = _one_by_one(server)
            if name == "auto":
                answers += [answer for _ in range(3) for answer in server.generate(PROMPTS, TOKENS)]
            after = _beacon(run_dir)
            found[name] = Phase(answers, _gained(before["counters"], after["counters"]), after["settings"])
    return found


def _built_up_to(budget: int, gained: dict[str, Any]) -> None:
    """Trees are as large as the budget, but for the last steps of a request, which hold what it may still say."""
    assert 0.75 * budget * gained["requests"] < gained["nodes_built"] <= budget * gained["requests"]


def _width(phase: Phase) -> set[str]:
    return set(phase.gained["steps_by_width"])


def test_chain_is_dflash(dflash: Phase, phases: dict[str, Phase]) -> None:
    """The floor: in chain mode the tokens are DFLASH's, and so is the number of verify steps."""
    chain = phases["chain"]
    assert chain.ids() == dflash.ids()
    assert chain.steps() == dflash.steps()
    assert _width(chain) == {str(BLOCK)}
    assert set(chain.gained["steps_by_shape"]) == {"chain"}
    assert chain.gained["branch_paths"] == 0


@pytest.mark.parametrize(
    ("name", "width", "budget"), [("start", 33, 32), ("budget 5", 6, 5), ("budget 8", 9, 8), ("budget 20", 24, 20)]
)
def test_budgets_change_within_one_server(phases: dict[str, Phase], name: str, width: int, budget: int) -> None:
    """A fixed budget runs in the narrowest width that holds it, and not a node more is built."""
    gained = phases[name].gained
    assert set(gained["steps_by_width"]) == {str(width)}
    _built_up_to(budget, gained)
    assert set(gained["steps_by_reason"]) == {"fixed" if name == "start" else "control"}


def test_larger_trees_take_fewer_steps(phases: dict[str, Phase]) -> None:
    """Narrow windows must commit as wide ones do, only less: steps fall as the budget grows."""
    steps = [phases[name].steps() for name in ("budget 5", "budget 20", "start")]
    assert steps[0] > steps[1] >= steps[2]


def test_a_budget_alone_leaves_the_mode(phases: dict[str, Phase]) -> None:
    """``{"budget": n}`` after a chain is a chain of at most n drafts."""
    phase = phases["still a chain"]
    assert set(phase.gained["steps_by_shape"]) == {"chain"}
    _built_up_to(7, phase.gained)


def test_auto_chooses_and_says_why(phases: dict[str, Phase]) -> None:
    """The controller probes at first, learns from paths and times, and shows its arms by batch size."""
    phase = phases["auto"]
    assert set(phase.gained["steps_by_reason"]) <= {"cost", "probe"}
    assert {"cost", "probe"} <= set(phase.gained["steps_by_reason"])
    shown = phase.settings["auto_choices"]
    assert {"1", "6"} <= set(shown)
    for bucket in shown.values():
        assert bucket["arm"] in bucket["arms"]
    arms = shown["1"]["arms"]
    assert set(arms) == {"chain", *map(str, LADDER)}
    assert arms["33"]["accepted"] > arms["6"]["accepted"] > 0
    assert arms["chain"]["accepted"] > 0
    assert sum(arm["measured_steps"] for arm in arms.values()) > 20
    assert phase.gained.get("auto_paths_late", 0) == 0


def test_auto_starts_from_the_environment(
    cpu_environment: Environment, patched_tree: Path, tmp_path_factory: pytest.TempPathFactory, phases: dict[str, Phase]
) -> None:
    """``DDTREE_BUDGET=auto`` needs no control file, and takes a limit for wide passes from the ladder."""
    work = tmp_path_factory.mktemp("auto")
    run_dir = work / "run"
    run_dir.mkdir()
    with serving(
        cpu_environment, PAIR / "target", work / "log", "--speculative-algorithm", "DDTREE", *DRAFTER,
        tree=patched_tree, DDTREE_BUDGET="auto", DDTREE_LADDER="24,65@2", DDTREE_RUN_DIR=str(run_dir),
    ) as server:  # fmt: skip
        server.generate(PROMPTS, TOKENS)
        found = _beacon(run_dir)
    assert found["settings"]["auto"] is True
    assert found["settings"]["budget"] == 64
    assert found["settings"]["ladder"] == [16, 24, 65]
    assert set(found["counters"]["steps_by_reason"]) <= {"cost", "probe"}
    assert "24" in found["counters"]["steps_by_width"]
