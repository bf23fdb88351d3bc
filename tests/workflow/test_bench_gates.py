"""Gates: every mistake before anything starts, every verdict in words, nothing INVALID passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.bench import gates
from ddtree_ops.bench.schema import Cell, IdentityPair, IdentityReport, Interval, Plan, Summary
from ddtree_ops.errors import ConfigError, GateFailed
from ddtree_ops.workflow import playbook

PLAN = Plan(budgets=(8, 16), concurrency=(1, 4))


def book(tmp_path: Path, text: str) -> gates.GateBook:
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    found = gates.load_gates(path)
    gates.check_gates(found, path, PLAN, 16)
    return found


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("min_speedups: 2\n", "min_speedups", 1),
        ("name: x\nmin_speedup: fast\n", "expected", 2),
        ("min_speedup: -1\n", "expected", 1),
        ("identity: true\nmin_accept_length:\n  poetry: 2\n", "'poetry' is not measured", 3),
        ("identity: true\nbudget: 9\n", "budget 9 is not measured", 2),
        ("identity: true\nconcurrency: [1, 2]\n", "concurrency 2 is not measured", 2),
        ("name: x\n", "no gate", 1),
        ("identity: false\n", "no gate", 1),
    ],
)
def test_mistake_names_file_line_and_key(tmp_path: Path, text: str, words: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        book(tmp_path, text)
    assert words in caught.value.what
    assert f"gates.yaml:{line}" in caught.value.where
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "arm"), [("identity: true", "ar"), ("min_speedup: 1", "ar"), ("not_below_dflash: true", "dflash")]
)
def test_gate_without_its_control_is_refused(tmp_path: Path, text: str, arm: str) -> None:
    """A gate on a speed-up against an arm that is not measured could only fail after an hour."""
    path = tmp_path / "gates.yaml"
    path.write_text(text)
    left = tuple(one for one in ("ar", "dflash", "ddtree") if one != arm)
    with pytest.raises(ConfigError, match=f"needs the arm {arm}"):
        gates.check_gates(gates.load_gates(path), path, Plan(arms=left, budgets=(16,)), 16)


def interval(value: float) -> Interval:
    return Interval(median=value, low=value - 0.1, high=value + 0.1, samples=4)


def cell(regime: str = "chat", concurrency: int = 1, **more: Any) -> Cell:
    values: dict[str, Any] = {
        "arm": "ddtree", "budget": 16, "regime": regime, "concurrency": concurrency, "runs": 4,
        "tok_per_s": interval(100), "tokens_per_verify": interval(3.0), "speedup_vs_ar": interval(1.5),
        "speedup_vs_dflash": interval(1.05),
    }  # fmt: skip
    return Cell(**{**values, **more})


def judged(tmp_path: Path, text: str, *cells: Cell, identity: IdentityReport | None = None) -> gates.Gates:
    return gates.evaluate(book(tmp_path, text), Summary(cells=cells, headline=()), identity, 16)


def test_each_regime_and_concurrency_is_judged_by_itself(tmp_path: Path) -> None:
    """An average hides the regime that loses."""
    slow = cell("code", 4, speedup_vs_ar=interval(0.9))
    found = judged(tmp_path, "min_speedup: {all: 1.0, math: 2.0}", cell(), cell("math"), slow)
    assert [one.passed for one in found.gates] == [True, False, False]
    with pytest.raises(GateFailed) as caught:
        gates.require(found)
    assert caught.value.exit_code == 8
    assert "2 of 3 gates failed" in caught.value.what
    assert "min_speedup, math, concurrency 1, budget 16: wanted at least 2.00x of plain decoding" in caught.value.what
    assert "code, concurrency 4" in caught.value.why
    assert "0.90x (0.80 to 1.00)" in caught.value.why


def test_only_the_budget_that_would_be_served_is_judged(tmp_path: Path) -> None:
    other = cell(budget=8, tokens_per_verify=interval(1.0))
    assert judged(tmp_path, "min_accept_length: 2.5", cell(), other).passed


def test_nothing_invalid_or_missing_passes(tmp_path: Path) -> None:
    bad = cell(valid=False, why=("start 1: warm-up did not converge",))
    found = judged(tmp_path, "min_accept_length: 1", bad)
    assert not found.passed
    assert "INVALID cell: start 1: warm-up did not converge" in found.gates[0].found
    assert not judged(tmp_path, "min_speedup: 1", cell(speedup_vs_ar=None)).passed
    assert not judged(tmp_path, "min_speedup: 1").passed
    assert not judged(tmp_path, "identity: true", cell()).passed


def test_not_below_dflash_may_leave_room_for_noise(tmp_path: Path) -> None:
    near = cell(speedup_vs_dflash=interval(0.985))
    assert not judged(tmp_path, "not_below_dflash: true", near).passed
    assert judged(tmp_path, "not_below_dflash: 0.98", near).passed


def test_identity_gate(tmp_path: Path) -> None:
    def report(verdict: Any) -> IdentityReport:
        pair = IdentityPair(arm="ddtree", budget=16, counts={}, tokens=9, verdict=verdict, text="in words")
        return IdentityReport(dtype="bfloat16", near_tie=0.25, rule="", pairs=(pair,), verdict=verdict)

    assert judged(tmp_path, "identity: true", cell(), identity=report("ok")).passed
    found = judged(tmp_path, "identity: true", cell(), identity=report("FAILED"))
    assert (found.passed, found.gates[0].found) == (False, "in words")


def test_which_budget_is_judged(tmp_path: Path) -> None:
    free, fixed = book(tmp_path, "identity: true"), book(tmp_path, "identity: true\nbudget: 8")
    assert gates.budget_to_judge(free, (8, 16), 16) == 16
    assert gates.budget_to_judge(free, (8, 16), 32) == 16
    assert gates.budget_to_judge(free, (8, 16), 16, recommended=8) == 8
    assert gates.budget_to_judge(fixed, (8, 16), 16, recommended=16) == 8


def test_gate_stands_after_the_proofs_and_before_enable(tmp_path: Path) -> None:
    """`deploy --gate`: a service that fails was never enabled, and one that is not proven is not measured."""
    names = [step.kind.name for step in playbook.load("deploy").with_gate(Path("g.yaml")).steps]
    assert names.index("smoke") < names.index("gate") < names.index("enable")
    packaged = Path(playbook.__file__).parents[2] / "playbooks" / "deploy.yaml"
    own = tmp_path / "own.yaml"
    own.write_text(packaged.read_text() + "  - step: gate\n")
    with pytest.raises(ConfigError, match="needs file"):
        playbook.load("deploy", own)
    own.write_text(packaged.read_text().replace("  - step: smoke", "  - step: gate\n    file: g.yaml\n  - step: smoke"))
    with pytest.raises(ConfigError, match="gate must come after smoke"):
        playbook.load("deploy", own)
