"""The roadmap's tables: made from the committed files, never typed, and honest about what cannot be compared."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ddtree_ops.errors import ConfigError
from ddtree_ops.roadmap import files, markers, tables
from ddtree_ops.roadmap.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = "# Roadmap\n\n<!-- generated: serving. -->\nold\n<!-- end: serving -->\n\nTyped text stays.\n"


def row(arm: str, speeds: list[float], **more: Any) -> dict[str, Any]:
    """One row; the median of ``speeds`` is written as the file's writer would."""
    budget = int(arm.split("-")[1]) if arm.split("-")[-1].isdigit() else more.pop("budget", None)
    return {
        "target": "t",
        "arm": arm,
        "budget": budget,
        "concurrency": 1,
        "temperature": 0.0,
        "tok_per_s": sorted(speeds)[len(speeds) // 2],
        "tokens_per_verify": 2.0,
        "step_ms": 1.0,
        "runs": [{"tok_per_s": speed, "prompts": 8} for speed in speeds],
        **more,
    }


def folder(path: Path, *rows: dict[str, Any], name: str = "2026-12-01-a.json", **more: Any) -> list[files.Result]:
    """A results folder with one more file."""
    document = {"schema_version": 2, "merged": "2026-12-01T00:00:00Z", "conditions": {"gpu": "x"}, "rows": rows, **more}
    (path / name).write_text(json.dumps(document), "utf-8")
    return files.read(path)


def test_committed_tables_are_what_the_committed_files_say() -> None:
    """Defect: a number of the roadmap typed by hand, or left behind when a result file came."""
    ran = CliRunner().invoke(main, ["--check"])
    assert ran.exit_code == 0, ran.output


def test_every_committed_file_is_read_and_listed() -> None:
    """Defect: a result file of an older shape that silently is not there."""
    found = files.read(ROOT / "benchmarks" / "results")
    listed = "\n".join(tables.inventory(found))
    assert all(f"`{path.name}`" in listed for path in (ROOT / "benchmarks" / "results").glob("*.json"))
    assert {one.kind for one in found} >= {"serving", "kernels", "other"}


def test_a_changed_number_is_stale_and_made_anew(tmp_path: Path) -> None:
    """Defect: ``--check`` that cannot fail, or a second run that writes again."""
    folder(tmp_path, row("dflash", [100.0]), row("ddtree-16", [110.0]))
    document = tmp_path / "roadmap.md"
    document.write_text(DOCUMENT, "utf-8")
    options = ["--results", str(tmp_path), "--roadmap", str(document)]
    stale = CliRunner().invoke(main, ["--check", *options])
    assert stale.exit_code == 10
    assert "serving" in stale.output
    assert document.read_text("utf-8") == DOCUMENT
    assert CliRunner().invoke(main, options).exit_code == 0
    made = document.read_text("utf-8")
    assert "110 (1.10×)" in made
    assert made.endswith("\n\nTyped text stays.\n")
    assert CliRunner().invoke(main, ["--check", *options]).exit_code == 0
    document.write_text(made.replace("1.10×", "1.90×"), "utf-8")
    assert CliRunner().invoke(main, ["--check", *options]).exit_code == 10


def test_only_runs_apart_make_a_difference(tmp_path: Path) -> None:
    """Defect: one lucky run, or overlapping ones, printed as a proven gain."""
    found = folder(
        tmp_path,
        row("dflash", [100.0, 104.0]),
        row("ddtree-8", [103.0, 120.0]),
        row("ddtree-16", [120.0, 130.0]),
        row("ddtree-32", [150.0]),
    )
    text = "\n".join(tables.budget_plan(found))
    assert "**1.25×**" in text
    assert "| 8 | – | 1.00× | 1.15× |" in text
    assert "| 32 | – | 1.00× | 1.44× |" in text


def test_a_loss_stands_before_the_table(tmp_path: Path) -> None:
    """Defect: a budget below DFLASH or below plain decoding that only a reader of all cells finds."""
    found = folder(tmp_path, row("ar", [90.0, 91.0]), row("dflash", [100.0, 101.0]), row("ddtree-64", [80.0, 81.0]))
    lines = tables.serving(found)
    table = next(index for index, line in enumerate(lines) if line.startswith("| arm"))
    before = "\n".join(lines[:table])
    assert "Slower than plain decoding: ddtree-64 at 1 (**0.89×**)." in before
    assert "Slower than DFLASH: ddtree-64 at 1 (**0.80×**)." in before


def test_other_prompts_are_no_control(tmp_path: Path) -> None:
    """Defect: an arm on 8 prompts divided by DFLASH on 64."""
    found = folder(tmp_path, row("dflash", [100.0], prompts=64), row("ddtree-16", [130.0], prompts=8))
    text = "\n".join(tables.budget_plan(found))
    assert "1.30×" not in text
    assert "| 16 | – | – | – |" in text


def test_chains_and_variants_are_no_budget(tmp_path: Path) -> None:
    """Defect: the chain mode, or another way to commit, listed as a budget of the tree."""
    found = folder(
        tmp_path,
        row("dflash", [1.0]),
        row("ddtree-chain", [1.0], budget="chain"),
        row("ddtree-32-eager", [2.0], budget=32),
    )
    assert tables.budget_plan(found) == ["No result file has a tree at a budget."]
    assert "ddtree-chain" in "\n".join(tables.serving(found))


@pytest.mark.parametrize("reference", [{"linear": 2.0, "tree 16": 3.0}, {"t": {"linear": 2.0, "16": 3.0}}])
def test_expected_ratio_comes_from_the_offline_reference(tmp_path: Path, reference: dict[str, Any]) -> None:
    """Defect: an expectation that is another target's, or none although it was recorded."""
    rows = (
        row("dflash", [100.0]),
        row("ddtree-16", [130.0], tokens_per_verify=2.8),
        row("ddtree-auto", [140.0], budget="auto"),
    )
    text = "\n".join(tables.budget_plan(folder(tmp_path, *rows, conditions={"offline_reference": reference})))
    assert "| 16 | 1.50× | 1.40× | 1.30× |" in text
    assert "| auto | – | 1.00× | 1.40× |" in text


def test_the_newest_file_of_a_target_counts(tmp_path: Path) -> None:
    """Defect: figures of two sessions mixed in one table."""
    folder(
        tmp_path,
        row("dflash", [1.0]),
        row("ddtree-8", [5.0]),
        name="2026-11-30-old.json",
        merged="2026-11-30T00:00:00Z",
    )
    found = folder(tmp_path, row("dflash", [1.0]), row("ddtree-8", [2.0]))
    text = "\n".join(tables.budget_plan(found))
    assert "2.00×" in text
    assert "5.00×" not in text
    assert "| `2026-11-30-old.json` | 2026-11-30 | 2 rows of serving: t | no |" in "\n".join(tables.inventory(found))


def test_names_cannot_break_a_table(tmp_path: Path) -> None:
    """Defect: a model or arm name with a bar or a tag in it."""
    found = folder(tmp_path, row("dflash", [1.0]), row("<svg onload=x>|a", [2.0], target="t"))
    assert "\\<svg onload=x\\>\\|a" in "\n".join(tables.serving(found))


@pytest.mark.parametrize(
    "text",
    [
        "no marker at all",
        "<!-- generated: serving. -->\nno end\n",
        "<!-- generated: unknown. -->\n<!-- end: unknown -->\n",
        DOCUMENT + DOCUMENT.replace("<!-- end: serving -->", ""),
    ],
)
def test_broken_markers_are_refused(text: str) -> None:
    """Defect: a document cut in half because a marker had no other end."""
    with pytest.raises(ConfigError):
        markers.filled(text, {"serving": ["x"]}, "roadmap.md")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Defect: a traceback, or a table without the file."""
    (tmp_path / "broken.json").write_text('{"rows": [', "utf-8")
    ran = CliRunner().invoke(main, ["--results", str(tmp_path)])
    assert ran.exit_code == 2
    assert "broken.json" in ran.output


def test_what_the_gpu_driver_merges_is_understood(tmp_path: Path) -> None:
    """Defect: result files that change their shape without the tables, so that a GPU session is listed as "other"."""
    spec = importlib.util.spec_from_file_location("gpu_merge", ROOT / "benchmarks" / "gpu" / "merge.py")
    assert spec is not None
    assert spec.loader is not None
    merge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(merge)
    lines = [
        {
            **{
                "target": "t",
                "arm": arm,
                "budget": budget,
                "concurrency": 4,
                "temperature": 0.0,
                "start": start,
                "pass": 1,
            },
            **{"prompts": 8, "tokens": 800, "verify_steps": 400, "cached_tokens": 0, "wall_s": 1.0},
            **{"tok_per_s": speed + start, "tokens_per_verify": accept, "step_ms": 1.5},
        }
        for start in (1, 2)
        for arm, budget, speed, accept in (
            ("ar", None, 90.0, None),
            ("dflash", None, 100.0, 2.0),
            ("ddtree-16", "16", 120.0, 2.5),
            ("ddtree-auto", "auto", 130.0, 2.4),
            ("ddtree-chain", "chain", 99.0, 2.0),
        )
    ]
    found = folder(tmp_path, *merge.merge(lines))
    assert [one.kind for one in found] == ["serving"]
    plan = "\n".join(tables.budget_plan(found))
    assert "| 16 | – | 1.25× | **1.20×** |" in plan
    assert "| auto | – | 1.20× | **1.30×** |" in plan
    assert "chain" not in plan
    assert "| ddtree-chain | 2.00 | 1.50 | 100 (0.99×) |" in "\n".join(tables.serving(found))
