"""``bench diff``: conditions first, noise called noise, other work not compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from ddtree_ops.bench import results
from ddtree_ops.bench.diff import CellDiff, Diff, compare, judged
from ddtree_ops.cli import cli
from ddtree_ops.ui import bench as screen
from tests.reports.synthetic import HOSTILE, Maker

SMALL: dict[str, Any] = {"budgets": (16,), "concurrency": (1,), "regimes": ("chat",)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, results.Folder]:
    """The same bench again, a slower one, one of other prompts, one with a warm cache."""
    top = tmp_path_factory.mktemp("diff")
    made = {
        "a": Maker(**SMALL).write(top / "a", spoil=False),
        "again": Maker(**SMALL, seed=2).write(top / "again", spoil=False),
        "slow": Maker(**SMALL, seed=3, slow=1.2, gpu="Other GPU").write(top / "slow", spoil=False),
        "other": Maker(**SMALL, seed=4).write(top / "other", spoil=False),
        "wider": Maker(**{**SMALL, "budgets": (16, 32)}).write(top / "wider", spoil=False),
    }
    plan = msgspec.structs.replace(made["other"].manifest.plan, prompts_sha256="ef" * 32)
    made["other"].save("manifest", msgspec.structs.replace(made["other"].manifest, plan=plan))
    return {name: results.open_folder(folder.path) for name, folder in made.items()}


def run(*args: object) -> Any:
    """The command with its exit code and output."""
    return CliRunner().invoke(cli, ["bench", "diff", *map(str, args)], env={"COLUMNS": "80"})


def test_the_same_again_is_no_difference(folders: dict[str, results.Folder]) -> None:
    """Defect: noise between two runs of one server reported as a gain or a loss."""
    found = compare(folders["a"], folders["again"])
    assert {one.figure("tok_per_s").judgement for one in found.cells} == {"same"}
    assert found.conditions == ()
    shown = run(folders["a"].path, folders["again"].path)
    assert shown.exit_code == 0
    assert "same conditions" in shown.output
    assert "3 no difference within noise" in shown.output


def test_a_real_loss_is_seen_with_its_condition_first(folders: dict[str, results.Folder]) -> None:
    """Defect: a fifth slower, and the other GPU only found by reading two manifests."""
    found = compare(folders["a"], folders["slow"])
    assert [one.name for one in found.conditions] == ["gpu"]
    for one in found.cells:
        ratio = one.figure("tok_per_s").ratio
        assert ratio is not None
        assert ratio.low <= ratio.median <= ratio.high < 0.9
        assert one.figure("tok_per_s").judgement == "worse"
    accept = found.cells[-1].figure("tokens_per_verify")
    assert accept.judgement == "same"
    shown = run(folders["a"].path, folders["slow"].path).output
    assert shown.index("Example GPU 80GB → Other GPU") < shown.index("worse")


def test_other_prompts_are_not_compared(folders: dict[str, results.Folder]) -> None:
    """Defect: a speed-up that is only an easier prompt set."""
    found = compare(folders["a"], folders["other"])
    assert found.conditions[0].name == "prompts_sha256"
    assert found.conditions[0].work
    assert all(one.why == "not the same work (prompts_sha256)" for one in found.cells)
    assert all(figure.ratio is None for one in found.cells for figure in one.figures)
    assert "not compared" in run(folders["a"].path, folders["other"].path).output


def test_what_is_invalid_is_not_compared(folders: dict[str, results.Folder], tmp_path: Path) -> None:
    """Defect: a warm cache in one of two folders that wins the comparison."""
    spoiled = Maker(**SMALL, seed=5).write(tmp_path / "spoiled", spoil=True)
    assert spoiled.summary is not None
    assert not all(cell.valid for cell in spoiled.summary.cells)
    found = compare(folders["a"], spoiled)
    flawed = [one for one in found.cells if one.why]
    assert [one.arm for one in flawed] == ["dflash"]
    assert flawed[0].why.startswith("INVALID in B: ")
    assert flawed[0].figure("tok_per_s").ratio is None


def test_cells_of_one_side_are_named(folders: dict[str, results.Folder]) -> None:
    """Defect: a budget that only one folder has, silently left out."""
    assert compare(folders["a"], folders["wider"]).only_b == ("ddtree 32, chat, concurrency 1",)
    assert compare(folders["wider"], folders["a"]).only_a == ("ddtree 32, chat, concurrency 1",)


@pytest.mark.parametrize(
    ("other", "limit", "code"), [("again", "0.97", 0), ("slow", "0.97", 8), ("slow", "0.5", 0), ("other", "0.5", 8)]
)
def test_fail_below(folders: dict[str, results.Folder], other: str, limit: str, code: int) -> None:
    """Defect: a gate that passes because nothing could be compared, or that noise can fail."""
    assert run(folders["a"].path, folders[other].path, "--fail-below", limit).exit_code == code
    assert run(folders["a"].path, folders[other].path).exit_code == 0


def test_json_is_one_document(folders: dict[str, results.Folder]) -> None:
    """Defect: tables in the JSON, or an exit code without its reason there."""
    shown = run(folders["a"].path, folders["slow"].path, "--json", "--fail-below", "0.97")
    document = json.loads(shown.stdout)
    assert shown.exit_code == 8
    assert document["schema_version"] == 1
    assert len(document["below"]) == 3
    assert msgspec.convert({name: document[name] for name in Diff.__struct_fields__}, Diff).cells


def test_one_sample_is_not_judged() -> None:
    """Defect: a single run against another one called faster."""
    assert judged(results.Interval(median=1.5, low=1.5, high=1.5, samples=1)) == "unjudged"
    assert judged(results.Interval(median=1.5, low=0.9, high=1.7, samples=4)) == "same"
    assert judged(None) == "not compared"


def test_no_cell_in_common_fails_a_limit() -> None:
    """Defect: two folders without a common cell that pass a gate."""
    assert Diff(a="a", b="b").below(0.9) == ["the folders have no cell in common"]


def test_words_of_a_host_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: an escape sequence in a model name that repaints the operator's screen."""
    cell = CellDiff(arm="ddtree", budget=8, regime="\x1b[31m[bold]" + HOSTILE, concurrency=1, why="\x1b]0;x\x07")
    screen.show_diff(Console(width=80, markup=False), Diff(a="\x1b[2J", b="b", cells=(cell,)))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\\x1b[2J" in shown
    assert "[bold]" in shown


def test_a_folder_that_is_none_is_refused(tmp_path: Path, folders: dict[str, results.Folder]) -> None:
    """Defect: a traceback for a wrong path."""
    shown = run(tmp_path, folders["a"].path)
    assert shown.exit_code == 2
    assert "no result folder" in shown.output


def test_bench_alone_still_measures() -> None:
    """Defect: `bench diff` that takes the place of `bench`."""
    shown = CliRunner().invoke(cli, ["bench", "--help"])
    assert "--concurrency" in shown.output
    assert CliRunner().invoke(cli, ["bench", "diff", "--help"]).output.startswith("Usage: cli bench diff")


def test_report_can_be_made_anew(folders: dict[str, results.Folder]) -> None:
    """Defect: a report that only the bench itself can write."""
    shown = CliRunner().invoke(cli, ["bench", "report", str(folders["a"].path)])
    assert shown.exit_code == 0, shown.output
    assert [Path(line).name for line in shown.stdout.split()] == ["report.md", "report.html"]


def test_a_bench_fits_eighty_columns(full_report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Defect: a table that wraps on an ordinary terminal, or colours where nobody looks."""
    summary = results.open_folder(full_report).summary
    assert summary is not None
    screen.show_summary(Console(width=80, markup=False), summary)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.startswith("SLOWER than plain decoding")
    assert max(map(len, shown.splitlines())) <= 80
    rows = [line for line in shown.splitlines() if line.startswith("  ")]
    assert len(rows) == len(summary.cells)
    assert all(len(line.split()) >= 7 for line in rows)
    assert "ddtree 64 INVALID" in shown
