"""Comparison of traces: every level's failure is found and named, near ties are not failures, damage is an error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.baseline import compare, traces
from ddtree_ops.baseline.levels import Level
from ddtree_ops.errors import ConfigError
from tests.baseline.command import run_cli
from tests.baseline.material import PROMPTS, World, best, rounds

HERE = World()
Doctor = Callable[[list[dict[str, Any]]], None]


def compared(tmp_path: Path, other: World, doctor: Doctor | None = None, here: World = HERE) -> compare.Comparison:
    a, b = here.write(tmp_path / "a.jsonl"), other.write(tmp_path / "b.jsonl", doctor)
    return compare.compare(traces.load(a), traces.load(b))


def level(found: compare.Comparison, name: str) -> Level:
    return next(one for one in found.levels if one.level == name)


def failed(found: compare.Comparison) -> list[str]:
    return [one.level for one in found.levels if one.failures]


def test_the_same_decoding_has_no_difference(tmp_path: Path) -> None:
    """And every level has really compared something."""
    found = compared(tmp_path, HERE)
    assert found.ok
    assert found.prompts == len(PROMPTS)
    assert [one.state for one in found.levels] == ["ok"] * 5
    assert not any(one.near_ties or one.skipped for one in found.levels)
    assert level(found, "L1").figures["overlap"] == 1.0


def _swap_last_nodes(records: list[dict[str, Any]]) -> None:
    one = rounds(records)[2]
    for name in ("token", "parent", "depth", "rank", "score_q32", "target"):
        one[name][-1], one[name][-2] = one[name][-2], one[name][-1]
    one["accepted"], one["emitted"] = [0], [one["target"][0]]
    one["bonus_out"] = one["target"][0]


def _wrong_score(records: list[dict[str, Any]]) -> None:
    one = rounds(records)[1]
    one["score_q32"][3] = str(int(one["score_q32"][3]) - 1)


def _one_node_short(records: list[dict[str, Any]]) -> None:
    one = next(one for one in rounds(records) if len(one["token"]) - 1 not in one["accepted"])
    for name in ("token", "parent", "depth", "rank", "score_q32", "target"):
        one[name].pop()
    for name in ("gap", "top"):
        one["extra"][name].pop()


def _unordered_candidates(records: list[dict[str, Any]]) -> None:
    one = rounds(records)[0]
    for name in ("ids", "lp_bits"):
        one[name][3][-1], one[name][3][-2] = one[name][3][-2], one[name][3][-1]


@pytest.mark.parametrize(
    ("doctor", "text"),
    [
        (_swap_last_nodes, "the heap gives"),
        (_wrong_score, "node 3 has score"),
        (_one_node_short, "the tree has 5 nodes, the heap gives 6"),
        (_unordered_candidates, "not in descending order"),
    ],
)
def test_l0_finds_a_tree_that_its_candidates_do_not_give(tmp_path: Path, doctor: Doctor, text: str) -> None:
    """One wrong bit of a score, another node order, a missing node: builders that are nearly right."""
    found = compared(tmp_path, HERE, doctor)
    assert "L0" in failed(found)
    assert level(found, "L0").failures == 1
    assert text in level(found, "L0").differences[0].text
    assert level(found, "L0").differences[0].file == "b"


def test_l1_finds_a_drafter_that_sees_other_things(tmp_path: Path) -> None:
    """Each file is consistent and the output is the same, only the drafts are worse: a stale draft cache looks so."""
    found = compared(tmp_path, HERE.but(draft_seed=1))
    assert failed(found)[:1] == ["L1"]
    assert "only in" in level(found, "L1").differences[0].text
    assert level(found, "L3").failures == 0


def test_l1_allows_what_arithmetic_changes(tmp_path: Path) -> None:
    """Trees differ where scores are close: near ties, counted and shown, no failure."""
    found = compared(tmp_path, HERE.but(noise=0.1, noise_seed=5))
    assert found.ok, [one.differences for one in found.levels if one.failures]
    ties = level(found, "L1")
    assert ties.near_ties > 0
    assert 0 < ties.figures["largest_distance"] < 0.5
    assert level(compared(tmp_path, HERE.but(noise=0.45, noise_seed=5)), "L1").failures > 0


def test_l1_is_strict_for_float32(tmp_path: Path) -> None:
    """What bfloat16 excuses, float32 does not."""
    exact = HERE.but(dtype="float32")
    assert "L1" in failed(compared(tmp_path, exact.but(noise=0.1, noise_seed=5), here=exact))


def test_l1_compares_a_narrow_tree_with_the_beginning_of_a_wide_one(tmp_path: Path) -> None:
    """Trees are nested: other budgets are no difference."""
    found = compared(tmp_path, HERE.but(budget=12))
    assert not {"L0", "L1", "L2", "L3"} & set(failed(found))
    assert level(found, "L1").figures["overlap"] == 1.0


def _shorter_path(records: list[dict[str, Any]]) -> None:
    one = next(one for one in rounds(records) if len(one["accepted"]) > 1)
    one["accepted"].pop()
    one["bonus_out"] = one["emitted"][len(one["accepted"]) - 1]
    one["emitted"] = one["emitted"][: len(one["accepted"])]


def _wrong_bonus(records: list[dict[str, Any]]) -> None:
    one = rounds(records)[-1]
    one["bonus_out"] = one["emitted"][-1] = (one["bonus_out"] + 1) % 12


@pytest.mark.parametrize(("doctor", "text"), [(_shorter_path, "the accepted path is"), (_wrong_bonus, "the bonus is")])
def test_l2_finds_a_path_that_the_targets_choices_do_not_give(tmp_path: Path, doctor: Doctor, text: str) -> None:
    """A walk that stops early, or emits another bonus, in one round."""
    found = compared(tmp_path, HERE, doctor)
    assert "L2" in failed(found)
    assert "L0" not in failed(found)
    assert text in level(found, "L2").differences[0].text


def test_l2_finds_a_target_that_sees_a_wrong_mask(tmp_path: Path) -> None:
    """One node off the path chooses another token at a wide gap: no output shows it."""

    def doctor(records: list[dict[str, Any]]) -> None:
        one = next(one for one in rounds(records) if len(one["token"]) - 1 not in one["accepted"])
        one["target"][-1] = (one["target"][-1] + 1) % 12

    found = compared(tmp_path, HERE, doctor)
    assert failed(found) == ["L2"]
    first = level(found, "L2").differences[0]
    assert first.verdict == "differs"
    assert first.distance is not None
    assert first.limit is not None
    assert first.distance > 1 > first.limit


def test_l2_without_gaps_is_not_excused(tmp_path: Path) -> None:
    """A difference that cannot be judged is a failure, not a near tie."""

    def doctor(records: list[dict[str, Any]]) -> None:
        for one in rounds(records):
            one["extra"].pop("gap")
        rounds(records)[0]["target"][-1] = 99

    bare = tmp_path / "bare.jsonl"
    HERE.write(bare, lambda records: [one["extra"].pop("gap") for one in rounds(records)] and None)
    found = compare.compare(traces.load(bare), traces.load(HERE.write(tmp_path / "b.jsonl", doctor)))
    assert level(found, "L2").differences[0].verdict == "unjudged"
    assert "L2" in failed(found)


def _context_on_path(world: World) -> tuple[int, ...]:
    """A context that the first prompt's output passes through."""
    context = PROMPTS[0]
    for _ in range(6):
        context = (*context, best(world.target(context)))
    return context


@pytest.mark.parametrize(("gap", "verdict"), [(0.1, "near_tie"), (0.9, "differs")])
def test_l3_judges_the_first_difference_by_its_gap(tmp_path: Path, gap: float, verdict: str) -> None:
    """Two outputs part where both targets had nearly no preference, or a clear one: only the first is arithmetic."""
    context = _context_on_path(HERE)
    a, b = HERE.but(ties={context: gap}), HERE.but(ties={context: -gap})
    found = compared(tmp_path, b, here=a)
    outputs = level(found, "L3")
    assert (outputs.near_ties, outputs.failures) == ((1, 0) if verdict == "near_tie" else (0, 1))
    assert outputs.differences[0].verdict == verdict
    assert outputs.differences[0].text.startswith("new token 6:")
    assert outputs.differences[0].distance == pytest.approx(gap)
    assert found.ok is (verdict == "near_tie")


def test_l3_cannot_judge_the_prefills_token(tmp_path: Path) -> None:
    """Another first token has no recorded gap; behind it nothing is comparable."""
    found = compared(tmp_path, HERE.but(ties={PROMPTS[0]: -0.9}), here=HERE.but(ties={PROMPTS[0]: 0.9}))
    assert level(found, "L3").differences[0].verdict == "unjudged"


def test_l4_finds_fewer_tokens_per_step(tmp_path: Path) -> None:
    """The same output in more steps, in every prompt."""
    found = compared(tmp_path, HERE.but(draft_seed=1, skill=0.0), here=HERE.but(skill=30.0))
    assert "L4" in failed(found)
    assert level(found, "L3").failures == 0
    mean, low, _ = level(found, "L4").figures["tokens_per_verify"]["a"]
    assert low > level(found, "L4").figures["tokens_per_verify"]["b"][0]
    assert mean > 3


def test_chains_and_trees_are_not_compared_as_trees(tmp_path: Path) -> None:
    """Linear against tree: what cannot be compared is said, L3 still holds."""
    found = compared(tmp_path, HERE.but(mode="linear"))
    assert level(found, "L1").state == "not compared"
    assert level(found, "L1").skipped
    assert level(found, "L4").state == "not compared"
    assert level(found, "L3").state == "ok"


@pytest.mark.parametrize(
    ("extra", "reason"), [({"temperature": 0.7}, "sampled"), ({"adjusted": True}, "adjusted by the request")]
)
def test_choices_that_are_not_the_models_are_left_out(tmp_path: Path, extra: dict[str, Any], reason: str) -> None:
    """Sampled or penalised rounds: trees are compared, choices and outputs are not, and that is said."""

    def doctor(records: list[dict[str, Any]]) -> None:
        for one in rounds(records):
            one["extra"].update(extra)

    found = compared(tmp_path, HERE, doctor)
    assert level(found, "L1").state == "ok"
    for name in ("L2", "L3"):
        assert level(found, name).state == "not compared"
        assert any(reason in text for text in level(found, name).skipped)


def test_a_retracted_request_is_compared_up_to_the_gap(tmp_path: Path) -> None:
    """A server that takes a request up again emits a token in between; that is neither damage nor a difference."""

    def doctor(records: list[dict[str, Any]]) -> None:
        del records[records.index(rounds(records)[3])]

    found = compared(tmp_path, HERE, doctor)
    assert found.ok
    assert any("gap" in reason for reason in level(found, "L3").skipped)


# -- files that are not traces --


def _damage(path: Path, change: Callable[[str], str]) -> Path:
    path.write_text(change(path.read_text("utf-8")), "utf-8")
    return path


def _edited(text: str, edit: Callable[[dict[str, Any]], Any]) -> str:
    lines = text.splitlines()
    record = json.loads(lines[2])
    edit(record)
    return "\n".join([*lines[:2], json.dumps(record), *lines[3:]]) + "\n"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda text: text[:-30], "cut off"),
        (lambda text: text.replace("ddtree-trace/1", "ddtree-trace/2"), "not a ddtree-trace/1 record"),
        (lambda text: text.replace("\n", "\n{]\n", 1), "not JSON"),
        (lambda text: text.split("\n", 1)[1], "not a header"),
        (lambda text: "", "not a header"),
        (lambda text: _edited(text, lambda one: one["parent"].pop()), "parent and token have different lengths"),
        (lambda text: _edited(text, lambda one: one["emitted"].pop()), "as many tokens must be emitted"),
        (lambda text: _edited(text, lambda one: one["parent"].__setitem__(2, 5)), "comes before its parent"),
        (lambda text: _edited(text, lambda one: one["lp_bits"][0].pop()), "differ in shape"),
        (lambda text: _edited(text, lambda one: one.pop("target")), "other fields"),
        (lambda text: _edited(text, lambda one: one.update(kind="tree")), "unknown kind"),
    ],
)
def test_a_damaged_trace_is_an_error_with_its_place(tmp_path: Path, change: Callable[[str], str], what: str) -> None:
    """What is damaged must not be compared, and never ends in a traceback."""
    path = _damage(HERE.write(tmp_path / "b.jsonl"), change)
    with pytest.raises(ConfigError, match=what) as caught:
        traces.load(path)
    assert str(path) in caught.value.where


def test_a_compressed_trace_is_read_and_a_cut_one_is_an_error(tmp_path: Path) -> None:
    data = gzip.compress(HERE.write(tmp_path / "a.jsonl").read_bytes())
    (tmp_path / "a.gz").write_bytes(data)
    assert len(traces.load(tmp_path / "a.gz").requests) == len(PROMPTS)
    (tmp_path / "a.gz").write_bytes(data[:-50])
    with pytest.raises(ConfigError, match="cut off"):
        traces.load(tmp_path / "a.gz")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        traces.load(tmp_path / "none")


def test_other_prompts_are_an_error(tmp_path: Path) -> None:
    """Compared by the digest of their tokens: the chat template counts, too."""

    def doctor(records: list[dict[str, Any]]) -> None:
        for one in records:
            if one["kind"] == "request":
                one["prompt_sha256"] = "0" * 16

    with pytest.raises(ConfigError, match="no prompt in common"):
        compared(tmp_path, HERE, doctor)


def test_a_trace_without_prompts_is_an_error(tmp_path: Path) -> None:
    def doctor(records: list[dict[str, Any]]) -> None:
        records[:] = [one for one in records if one["kind"] != "request"]

    with pytest.raises(ConfigError, match="does not say which prompts"):
        compared(tmp_path, HERE, doctor)


# -- the command --


def test_command_exits_8_and_shows_the_round_as_two_trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    good = HERE.but(skill=200.0)
    a, b = good.write(tmp_path / "a.jsonl"), good.but(draft_seed=1, skill=100.0).write(tmp_path / "b.jsonl")
    done = run_cli("compare", a, b)
    assert done.code == 8
    assert "they differ at L1" in done.out
    assert "only here" in done.out
    assert "✓" in done.out
    assert "\x1b" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_command_as_json(tmp_path: Path) -> None:
    a, b = HERE.write(tmp_path / "a.jsonl"), HERE.write(tmp_path / "b.jsonl", _wrong_score)
    done = run_cli("compare", a, b, "--json")
    body = json.loads(done.out)
    assert done.code == 8
    assert body["command"] == "compare"
    assert body["ok"] is False
    assert [one["level"] for one in body["levels"] if one["failures"]] == ["L0"]
    assert run_cli("compare", a, a, "--json").code == 0


def test_command_with_a_damaged_file_is_exit_2(tmp_path: Path) -> None:
    a = HERE.write(tmp_path / "a.jsonl")
    done = run_cli("compare", a, _damage(HERE.write(tmp_path / "b.jsonl"), lambda text: text[:-30]))
    assert done.code == 2
    assert "cut off" in done.err
    assert "next:" in done.err
