"""``report.html``: one self-contained page. No script, no network, no font: its content policy forbids all three."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from . import acceptance, document, speed, split, trees
from .document import Report
from .plots import Panel, Plot, Table
from .text import DASH, number, plural, ratio, visible

if TYPE_CHECKING:
    from jinja2 import Template


def render(report: Report) -> str:
    """The page as text. Every word from a host is escaped, and shown where it would act or hide."""
    return _template().render(
        report=report,
        plots=plots(report),
        tree=_tree_plot(report.tree),
        style=Markup(_resource("report.css")),  # our own file
        headline=document.headline(report.summary),
        shared=document.shared_notes(report.summary.cells),
        cells=document.ordered(report.summary.cells),
        glance=document.glance(report.summary.cells),
        conditions=document.conditions(report),
        arguments=document.arguments(report),
        definitions=document.definitions(report),
        missing=document.missing(report),
        steps=Table(head=document.STEPS, rows=tuple(document.step_rows(report.acceptance))),
        pairs=document.pairs(report.identity) if report.identity else [],
    )


def plots(report: Report) -> list[Plot]:
    """The figures that this folder has values for, in the order of the page."""
    cells, counted = report.summary.cells, report.acceptance.cells
    found = (
        speed.throughput(cells),
        acceptance.accept_length(cells, report.offline),
        acceptance.by_depth(counted),
        acceptance.first_miss(counted),
        speed.verify_cost(report.costs),
        split.time_split(counted),
        speed.prediction(report.auto),
    )
    return [one for one in found if one is not None]


def _tree_plot(sample: trees.Sample | None) -> Plot | None:
    if sample is None:
        return None
    one = sample.round
    caption = (
        f"A typical step: {plural(len(one.accepted) - 1, 'draft')} accepted, and the target's own token. Chosen as "
        f"nearest to the mean ({sample.mean_accepted:.2f} drafts over {plural(sample.rounds, 'recorded step')}) among "
        f"the steps that leave the chain of best candidates. Request {visible(one.req, 40)}, step {one.round}, after "
        f"{plural(one.start, 'token')}; siblings from best to worst; {visible(sample.file, 60)}."
    )
    return Plot(
        name="plot-tree",
        label="A draft tree",
        title="A draft tree and its accepted path",
        caption=caption,
        panels=(Panel(heading="", svg=trees.drawing(one)),),
        table=Table(head=("node", "parent", "depth", "rank", "token", "text", "accepted"), rows=trees.as_rows(one)),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize
    )
    tools: dict[str, Any] = {
        "visible": visible,
        "number": number,
        "ratio": ratio,
        "plural": plural,
        "span": document.span,
        "times": document.times,
        "loses": document.loses,
        "base_name": document.base_name,
    }
    environment.filters.update(tools)
    environment.globals["dash"] = DASH
    return environment.from_string(_resource("report.html.j2"))


def _finalize(value: Any) -> Any:
    """On the way to the page: what would act or hide becomes visible; the escaping comes after this."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def _resource(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text("utf-8")
