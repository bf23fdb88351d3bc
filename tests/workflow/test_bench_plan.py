"""What a bench is asked for: playbook, command line, origins, mistakes, and what ``--resume`` begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_ops.bench.results import Conditions, Manifest, create
from ddtree_ops.errors import ConfigError, UsageError
from ddtree_ops.workflow import bench, bench_gate, bench_plan, measure


def book(folder: Path, text: str) -> Path:
    (folder / "playbooks").mkdir(exist_ok=True)
    (folder / "playbooks" / "bench.yaml").write_text("name: bench\n" + text)
    return folder


def test_packaged_plan_is_the_documented_one() -> None:
    found = bench_plan.wanted(None, {})
    assert found.plan.arms == ("ar", "dflash", "ddtree")
    assert found.plan.budgets == (32,)
    assert (found.plan.starts, found.plan.repeat, found.plan.agree) == (2, 2, 0.03)
    assert set(found.plan.regimes) == {"chat", "code", "math"}
    assert {len(prompts) for prompts in found.prompts.values()} == {16}
    assert not found.auto
    assert "bench.yaml" in found.origins["budget"]


def test_command_line_wins_and_its_values_say_so(tmp_path: Path) -> None:
    """bench.yaml said that it holds the defaults, and no command read it."""
    folder = book(tmp_path, "max_tokens: 7\ncount: 3\nbudget: [8, 16]\nregime: [math]\n")
    found = bench_plan.wanted(folder, bench.given({"count": 5, "max_tokens": None, "concurrency": "1,8"}, trace=False))
    assert (found.plan.max_tokens, found.plan.prompts, found.plan.budgets) == (7, 5, (8, 16))
    assert (found.plan.concurrency, found.plan.regimes) == ((1, 8), ("math",))
    assert found.origins["count"] == "command line"
    assert found.origins["max_tokens"].endswith("bench.yaml:2")


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        ("max_token: 7\n", "max_token", 2),
        ("arms: [ar, vllm]\n", "invalid enum value", 2),
        ("name2: x\n", "name2", 2),
        ("repeat: 0\n", ">= 1", 2),
        ("budget: 5000\n", "<= 1023", 2),
        ("smoke: {cont: 3}\n", "cont", 2),
    ],
)
def test_mistake_in_the_playbook_names_file_line_and_key(tmp_path: Path, text: str, words: str, line: int) -> None:
    with pytest.raises(ConfigError) as caught:
        bench_plan.wanted(book(tmp_path, text), {})
    assert words in caught.value.what + caught.value.where
    assert f"bench.yaml:{line}" in caught.value.where


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"budget": "8,x"}, "--budget 8,x"),
        ({"budget": "0"}, "--budget 0"),
        ({"budget": "8,8"}, "budget names something twice"),
        ({"budget": "5000"}, "--budget"),
        ({"concurrency": "many"}, "--concurrency many"),
        ({"arms": "ar,"}, ""),
        ({"arms": "vllm"}, "--arms"),
        ({"arms": ","}, "arms is empty"),
        ({"budget": "auto", "arms": "ar,dflash"}, "auto needs the arm ddtree"),
    ],
)
def test_mistake_on_the_command_line(load: dict[str, str], words: str) -> None:
    if not words:  # a comma too many is no mistake
        assert bench_plan.wanted(None, bench.given(load, trace=False)).plan.arms == ("ar",)
        return
    with pytest.raises(UsageError) as caught:
        bench_plan.wanted(None, bench.given(load, trace=False))
    assert words in caught.value.what


def test_three_meanings_of_auto() -> None:
    """Alone it finds the best budgets; among others it is the server's own choice at every step."""
    alone = bench_plan.wanted(None, bench.given({"budget": "auto"}, trace=False))
    assert alone.auto
    assert alone.candidates == (8, 16, 24, 32, 48, 64)
    among = bench_plan.wanted(None, bench.given({"budget": "16,auto"}, trace=False))
    assert not among.auto
    assert among.plan.budgets == (16, "auto")
    with pytest.raises(UsageError, match="--budget"):
        bench_plan.wanted(None, bench.given({"budget": "auto,auto"}, trace=False))


def test_own_prompts_lie_beside_the_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path in a playbook was looked for where the command happened to be run."""
    text = '{"text": "one", "regime": "poem"}\n{"prompt": "two", "regime": "poem"}\n{"text": "three"}\n'
    (tmp_path / "mine.jsonl").write_text(text)
    folder = book(tmp_path, "prompts: mine.jsonl\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    found = bench_plan.wanted(folder, {})
    assert {name: len(items) for name, items in found.prompts.items()} == {"poem": 2, "own": 1}
    with pytest.raises(ConfigError, match="cannot be read"):
        bench_plan.wanted(folder, {"prompts": "mine.jsonl"})


def test_resume_begins_with_the_wish_of_the_folder(tmp_path: Path) -> None:
    """`--resume DIR` alone must ask for what was asked then, and not for today's playbook."""
    asked = bench.given({"budget": "8,16", "count": 3, "max_tokens": 9}, trace=True)
    first = bench_plan.wanted(book(tmp_path, "starts: 3\n"), asked)
    wish = {name: value for name, value in first.wish.items() if name not in ("name", "smoke")}
    conditions = Conditions(other={"wish": wish})
    create(tmp_path / "out", Manifest(created="", tool_version="", host="h", plan=first.plan, conditions=conditions))
    again = bench_plan.wanted(book(tmp_path, "starts: 1\n"), bench._wish_of(tmp_path / "out"))
    assert again.plan == first.plan
    assert again.trace_rounds == first.trace_rounds > 0


def test_other_conditions_are_named_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        bench_plan.check_conditions(
            {"gpu": ["H200"], "service port": 1}, {"gpu": ["H100"], "service port": 2}, tmp_path
        )
    assert "gpu: ['H200'] there, ['H100'] now" in caught.value.what
    assert "service port: 1 there, 2 now" in caught.value.why


def test_gate_of_a_deploy_measures_the_budget_that_would_be_served(tmp_path: Path) -> None:
    """With bench.yaml at another budget, or at auto, the gate judged a tree that nobody would have served."""
    gates = tmp_path / "gates.yaml"
    gates.write_text("min_accept_length: 2\n")
    for text, budgets in (
        ("budget: 8\n", (24,)),
        ("budget: auto\n", (24,)),
        ("budget: [8, 16]\n", (24, 8, 16)),
        ("budget: [8, 24, 16]\n", (24, 8, 16)),
    ):
        found, _ = bench_gate.planned(gates, 24, book(tmp_path, text))
        assert found.plan.budgets == budgets
        assert not found.auto
    gates.write_text("budget: 8\nmin_accept_length: 2\n")
    with pytest.raises(ConfigError, match="budget 8 is not measured"):
        bench_gate.planned(gates, 24, book(tmp_path, "budget: 24\n"))


def test_short_form_takes_what_a_playbook_for_arms_says() -> None:
    """Two regimes in bench.yaml, which the arms measure apart, were refused by `--against-service`."""
    assert measure.smoke_regime("all") == "all"
    assert measure.smoke_regime(("code",)) == "code"
    assert measure.smoke_regime(("chat", "code")) == "all"
