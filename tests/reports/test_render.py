"""Reports without a browser: what stands first, what is struck, what is said when something is missing or damaged."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.bench import results
from ddtree_ops.bench.render import document, html, markdown, trees, write_reports
from ddtree_ops.bench.render.svg import round_ticks
from ddtree_ops.bench.render.text import md, visible
from ddtree_ops.errors import ConfigError
from tests.reports.synthetic import Maker


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One regime, two concurrencies, nothing wrong with it."""
    path = tmp_path_factory.mktemp("made") / "small"
    Maker(budgets=(8, 16), concurrency=(1, 4), regimes=("chat",)).write(path, spoil=False)
    return path


@pytest.fixture
def small(made: Path, tmp_path: Path) -> results.Folder:
    """A copy of it that a test may change."""
    return results.open_folder(Path(shutil.copytree(made, tmp_path / "small")))


def texts(folder: results.Folder) -> tuple[str, str]:
    """``report.md`` and ``report.html`` as written."""
    page, site = write_reports(folder)
    return page.read_text("utf-8"), site.read_text("utf-8")


def test_a_loss_is_the_first_line(full_report: Path) -> None:
    """Defect: a report that opens with its best number while a regime runs below plain decoding."""
    first = (full_report / "report.md").read_text("utf-8").splitlines()[0]
    assert first.startswith("**SLOWER than plain decoding: ")
    body = (full_report / "report.html").read_text("utf-8").split("<main>")[1]
    listed = re.findall(r"<li[^>]*>(.*?)</li>", body)
    assert listed[0].startswith("SLOWER than plain decoding: ")


def test_no_loss_is_said_with_its_count_and_no_control_too(small: results.Folder, tmp_path: Path) -> None:
    """Defect: "no loss" where nothing was compared."""
    assert (
        texts(small)[0]
        .splitlines()[0]
        .startswith("**None of 6 valid comparisons with plain decoding is below 1.0× (medians).**")
    )
    alone = Maker(budgets=(8,), concurrency=(1,), regimes=("chat",), arms=("ddtree",)).write(
        tmp_path / "alone", spoil=False
    )
    assert texts(alone)[0].startswith("**No valid comparison with plain decoding")


def test_a_tree_that_loses_against_the_chain_is_said(small: results.Folder) -> None:
    """Defect: "2.3 times plain decoding" on top, while the linear scheme, which is there already, does better."""
    cells = small.summary.cells  # type: ignore[union-attr]
    slow = results.Interval(median=0.9, low=0.85, high=0.95, samples=4)
    found = tuple(
        msgspec.structs.replace(one, speedup_vs_dflash=slow) if one.budget and one.concurrency == 4 else one
        for one in cells
    )
    small.save("summary", results.Summary(cells=found, headline=()))
    page, site = texts(small)
    line = "SLOWER than DFLASH at every measured budget: chat, concurrency 4: 0.90× (0.85 to 0.95)"
    assert f"**{line}**" in page
    assert f'<li class="alarm">{line}</li>' in site


def test_what_is_invalid_is_struck_and_explained(full_report: Path) -> None:
    """Defect: a number of a warm cache, or of failed requests, that can be quoted from the report."""
    page = (full_report / "report.md").read_text("utf-8")
    line = next(line for line in page.splitlines() if line.startswith("| ~~ddtree budget 64, code, concurrency 4~~"))
    assert all(cell.strip().startswith("~~") for cell in line.strip("|").split("|"))
    assert "came from the prefix cache in a run declared cold" in page
    site = (full_report / "report.html").read_text("utf-8")
    assert site.count('<tr class="struck">') >= 2
    best = [one.best for one in document.glance(results.open_folder(full_report).summary.cells)]  # type: ignore[union-attr]
    assert all(one is None or one.valid for one in best)


def test_a_line_does_not_bridge_an_invalid_point(small: results.Folder) -> None:
    """Defect: a curve drawn through a budget whose measurement does not count."""
    cells = small.summary.cells  # type: ignore[union-attr]
    flawed = msgspec.structs.replace(cells[2], valid=False, why=("made so",))
    assert flawed.budget == 8
    summary = results.Summary(cells=(*cells[:2], flawed, *cells[3:]), headline=())
    small.save("summary", summary)
    panel = texts(small)[1].split('id="plot-throughput-0"')[1].split("</svg>")[0]
    assert "polyline" not in panel
    assert "mark invalid" in panel
    assert "INVALID: made so" in panel


def test_every_figure_has_its_definition_and_its_conditions(full_report: Path) -> None:
    """Defect: a number without what it means and under which conditions it was measured."""
    for name in ("report.md", "report.html"):
        text = (full_report / name).read_text("utf-8")
        for words in (
            "spec_verify_ct",
            "95 % bootstrap interval",
            "580.00",
            "attention",
            "5f1c0e9a77b2d4c8",
            "cdcdcdcd",
        ):
            assert words in text or words == "attention", (name, words)


def test_only_arguments_that_differ_are_listed(full_report: Path) -> None:
    """Defect: the one flag that differs between two arms lost among a hundred that do not."""
    page = (full_report / "report.md").read_text("utf-8")
    assert "| speculative_num_draft_tokens | None | 16 | 129 |" in page
    assert "attention_backend" not in page


def test_a_run_that_was_cut_has_a_report(small: results.Folder) -> None:
    """Defect: no report of what was measured before the end came."""
    for name in ("summary", "identity", "acceptance", "gates", "auto", "offline", "costs"):
        (small.path / f"{name}.json").unlink()
    (small.path / "traces" / "ddtree.jsonl").unlink()
    page, site = texts(small)
    assert "The run has not ended" in page
    assert "plot-throughput-0" in site
    assert "plot-depth" not in site
    assert "## Not in this result" in page
    for what in ("token identity", "verify costs", "a draft tree", "a prediction"):
        assert f"- {what}: " in page


def test_nothing_measured_is_no_crash(tmp_path: Path) -> None:
    """Defect: a traceback instead of a report right after a start that failed."""
    folder = results.create(tmp_path / "empty", Maker().manifest())
    page, site = texts(folder)
    assert "INVALID: no round was measured" in page
    assert "no round was measured" in site


@pytest.mark.parametrize(
    "line",
    [
        b'{"schema":"other/1","kind":"round"}\n',
        b"not json\n",
        b'{"schema":"ddtree-trace/1","kind":"round","req":"a","round":0,"start":1,"token":[1,2],"parent":[0,1],'
        b'"depth":[0,1],"rank":[-1,0],"accepted":[0],"bonus_out":3}\n',
        b'{"schema":"ddtree-trace/1","kind":"round","req":"a","round":0,"start":1,"token":[1,2,3],"parent":[0,0,1],'
        b'"depth":[0,1,2],"rank":[-1,0,0],"accepted":[0,2],"bonus_out":3}\n',
    ],
    ids=["other schema", "no JSON", "its own parent", "a path with a gap"],
)
def test_a_damaged_trace_is_named_and_not_drawn(small: results.Folder, line: bytes) -> None:
    """Defect: a drawing of a tree that was never built, or a report lost to one bad line."""
    small.write("traces/bad.jsonl", line)
    page, site = texts(small)
    assert "No tree is drawn: a trace is damaged" in page
    assert "plot-tree" not in site


def test_the_drawn_step_is_typical_and_its_path_is_the_walk(small: results.Folder) -> None:
    """Defect: the longest step shown as if it were the usual one; an accepted path that is not the recorded one."""
    path = small.path / "traces" / "ddtree.jsonl"
    found = list(trees.rounds(path))
    sample = trees.sample([path])
    assert sample is not None
    mean = sum(len(one.accepted) - 1 for one in found) / len(found)
    assert sample.mean_accepted == pytest.approx(mean)
    branching = [one for one in found if any(one.rank[node] for node in one.accepted[1:])]
    nearest = min(abs(len(one.accepted) - 1 - mean) for one in branching)
    assert abs(len(sample.round.accepted) - 1 - mean) == pytest.approx(nearest)
    drawn = str(trees.drawing(sample.round))
    assert drawn.count("; accepted</title>") == len(sample.round.accepted) - 1
    assert drawn.count("<rect") == len(sample.round.token) + 1


def test_chains_and_torn_lines_are_no_trees(small: results.Folder) -> None:
    """Defect: a step of the linear arm drawn as a tree; a killed server's last line taken for damage."""
    path = small.path / "traces" / "ddtree.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    chains = [line.replace(b'"extra":{', b'"extra":{"mode":"linear",') for line in lines[1:]]
    small.write("traces/ddtree.jsonl", lines[0] + b"".join(chains) + lines[1][:40])
    assert trees.sample([path]) is None
    assert "plot-tree" not in texts(small)[1]


def test_hidden_characters_are_shown() -> None:
    """Defect: a prompt that moves the cursor, turns the text around, or breaks the encoding."""
    assert visible("a\x1b[31mb\u202ec\n\x00\ud800") == "a\\x1b[31mb\\u202ec\\n\\x00\\ud800"
    assert visible("é 漢 🙂") == "é 漢 🙂"
    assert md("a|b\n# c") == r"a\|b\\n# c"
    assert md("# top_k and _x_") == "\\# top_k and \\_x\\_"


def test_words_of_a_host_are_no_markup_in_markdown(hostile_report: Path) -> None:
    """Defect: a model name that becomes a tag or breaks the table where the Markdown is shown."""
    page = (hostile_report / "report.md").read_text("utf-8")
    assert not re.search(r"(?<!\\)<(?!br>)", page)
    cells = page.split("## All cells")[1].split("## ")[0]
    rows = [line for line in cells.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1


def test_a_page_holds_no_address_and_no_script(full_report: Path) -> None:
    """Defect: a font, an image or a script from somewhere else."""
    site = (full_report / "report.html").read_text("utf-8")
    assert "default-src 'none'" in site
    assert "http://" not in site
    assert "https://" not in site
    assert "<script" not in site
    assert len(site) < 400_000


def test_reports_are_the_same_each_time(small: results.Folder) -> None:
    """Defect: reports that differ without a new number, so that a diff of two of them is noise."""
    assert texts(small) == texts(small)
    report = document.read(small.path)
    assert html.render(report) == html.render(report)
    assert markdown.render(report) == markdown.render(report)


def test_a_damaged_summary_is_named(small: results.Folder) -> None:
    """Defect: a report of half a folder that does not say so."""
    (small.path / "summary.json").write_text('{"cells": 3}', "utf-8")
    with pytest.raises(ConfigError) as caught:
        write_reports(small)
    assert caught.value.where.endswith("summary.json")


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 10_200), (0, 0.0007), (0, 3.3), (0, 99.9), (2, 17), (5, 5), (0, 0), (0, 1e9), (1, 128)],
)
def test_axes_have_few_round_ticks_that_cover(low: float, high: float) -> None:
    """Defect: an axis without a tick, with twenty, or that ends below its highest mark."""
    ticks = round_ticks(low, high)
    assert 4 <= len(ticks) <= 7
    assert ticks[0] <= low
    assert ticks[-1] >= high
    steps = {round(after - before, 9) for before, after in itertools.pairwise(ticks)}
    assert len(steps) == 1 or high < 0.01


@pytest.mark.parametrize(
    "shape",
    [
        {"budgets": ("auto",)},
        {"budgets": (32, "auto"), "concurrency": (1, 2, 4, 8, 16, 32)},
        {"budgets": (1, 1023)},
        {"arms": ("ar",)},
        {"arms": ("dflash",)},
        {"arms": ("ddtree",), "concurrency": (64,)},
        {"regimes": tuple(f"regime {number}" for number in range(7)), "budgets": (8,)},
    ],
    ids=lambda shape: ", ".join(shape),
)
def test_odd_shapes_of_a_bench_have_reports(tmp_path: Path, shape: dict[str, Any]) -> None:
    """Defect: a division, an empty maximum or a missing look that only one kind of sweep meets."""
    folder = Maker(**{"budgets": (8, 16), "concurrency": (1,), "regimes": ("chat",), **shape}).write(tmp_path / "odd")
    page, site = texts(folder)
    assert page.count("\n| ") > 5
    assert "plot-throughput-0" in site
    assert not re.search(r'(?:x|y|d|points|width|height|transform)="[^"]*(?:nan|inf)', site)
