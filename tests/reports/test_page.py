"""report.html in a real browser: it loads in silence, asks for nothing, shows its plots, and can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.reports.chromium import Browser
from tests.reports.synthetic import HOSTILE

FIGURES = ("throughput", "accept", "depth", "miss", "cost", "split", "auto", "tree")
WIDTHS = (1280, 390)

_TEXTS = """[...document.querySelectorAll('svg.chart text')].map(text => {
    const box = text.getBoundingClientRect(), svg = text.ownerSVGElement, view = svg.viewBox.baseVal;
    const size = parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width / view.width;
    return {chart: svg.id, text: text.textContent, size,
            left: box.left, right: box.right, top: box.top, bottom: box.bottom,
            axis: !!text.closest('.axis, .grid'), tree: svg.classList.contains('tree')}; })"""


_FIGURE = """(() => {
    const svg = document.querySelector('#plot-NAME svg.chart'), box = svg.getBoundingClientRect();
    return {width: box.width, height: box.height, title: svg.querySelector('title').textContent,
            desc: svg.querySelector('desc').textContent, rows: document.querySelectorAll('#plot-NAME tbody tr').length,
            marks: svg.querySelectorAll('.mark, .bar rect, .stack rect, .nodes rect').length}; })()"""

_COLOURS = """(() => {
    const of = (query, name) => getComputedStyle(document.querySelector(query))[name];
    return {ground: of('section', 'backgroundColor'), ink: of('td', 'color'), soft: of('.lead', 'color'),
            label: of('.chart .grid text', 'fill'), alarm: of('.alarm', 'color'),
            alarmGround: of('.alarm', 'backgroundColor')}; })()"""


@pytest.mark.parametrize("width", WIDTHS)
def test_loads_in_silence_and_asks_for_nothing(chromium_browser: Browser, full_report: Path, width: int) -> None:
    """Defect: a page that needs the network, breaks its own content policy, or complains in the console."""
    page = full_report / "report.html"
    chromium_browser.open(page, width)
    assert chromium_browser.complaints() == []
    assert chromium_browser.requests() == [page.as_uri()]
    assert chromium_browser.evaluate("document.scripts.length") == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_page(chromium_browser: Browser, full_report: Path, width: int) -> None:
    """Defect: a table or a drawing that makes a telephone scroll the whole page sideways."""
    chromium_browser.open(full_report / "report.html", width)
    chromium_browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert chromium_browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_every_plot_is_there_with_marks(chromium_browser: Browser, full_report: Path, width: int) -> None:
    """Defect: an empty frame, or a figure that is left out without a word."""
    chromium_browser.open(full_report / "report.html", width)
    for name in FIGURES:
        found = chromium_browser.evaluate(_FIGURE.replace("NAME", name))
        assert found["width"] > 200, name
        assert found["height"] > 80, name
        assert found["marks"] >= 4, name
        assert found["title"], name
        assert found["desc"], name
        assert found["rows"] >= 4, name


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_can_be_read(chromium_browser: Browser, full_report: Path, width: int) -> None:
    """Defect: labels of a chart scaled down to dust on a telephone, cut off at its edge, or one over another."""
    chromium_browser.open(full_report / "report.html", width)
    texts = [one for one in chromium_browser.evaluate(_TEXTS) if one["right"] > one["left"]]
    assert len(texts) > 100
    assert [one for one in texts if one["size"] < 9] == []
    assert [one for one in texts if not one["tree"] and (one["left"] < 0 or one["right"] > width)] == []
    assert _overlaps([one for one in texts if one["axis"]]) == []


def _overlaps(texts: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    found = []
    for index, one in enumerate(texts):
        for other in texts[index + 1 :]:
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            apart = apart or one["bottom"] <= other["top"] + 2 or other["bottom"] <= one["top"] + 2
            if one["chart"] == other["chart"] and not apart:
                found.append((one["chart"], one["text"], other["text"]))
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(chromium_browser: Browser, full_report: Path, dark: bool) -> None:
    """Defect: a dark scheme with grey on grey; 4.5 is what WCAG asks of text."""
    chromium_browser.open(full_report / "report.html", 1280, dark=dark)
    colours = chromium_browser.evaluate(_COLOURS)
    for name in ("ink", "soft", "label"):
        assert _contrast(colours[name], colours["ground"]) >= 4.5, name
    assert _contrast(colours["alarm"], colours["alarmGround"]) >= 4.5
    assert (_luminance(colours["ground"]) < 0.2) is dark


def _luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").rstrip(")").split(",")[:3]]
    linear = [one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_words_of_a_host_stay_words(chromium_browser: Browser, hostile_report: Path) -> None:
    """Defect: a model name, prompt, error or token that becomes markup: it must be seen, and do nothing."""
    chromium_browser.open(hostile_report / "report.html", 1280)
    assert chromium_browser.complaints() == []
    assert chromium_browser.evaluate("document.querySelectorAll('[onload], [onerror], img, script').length") == 0
    assert HOSTILE in chromium_browser.evaluate("document.querySelector('h1').textContent")
    assert HOSTILE in chromium_browser.evaluate("document.querySelector('#conditions').textContent")
    assert chromium_browser.evaluate("document.querySelectorAll('#plot-throughput svg.chart').length") == 8
    assert chromium_browser.evaluate("document.documentElement.scrollWidth") <= 1280
    chromium_browser.open(hostile_report / "report.html", 390)
    assert chromium_browser.evaluate("document.documentElement.scrollWidth") <= 390
