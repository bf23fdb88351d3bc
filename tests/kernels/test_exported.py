"""The Prometheus metrics: their table, their documentation, how counters grow, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernels import promql
from tests.kernels.payload import exported, metrics, prometheus

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "metrics.md").read_text("utf-8")
DASHBOARD = json.loads((ROOT / "templates" / "grafana-ddtree.json").read_text("utf-8"))
BY_NAME = {metric.name: metric for metric in exported.METRICS}

READING: dict[str, Any] = {
    "requests": 10, "accepted_drafts": 12, "nodes_built": 160, "nodes_padded": 3, "branch_paths": 4, "prefix_paths": 6,
    "moved_slots": 5, "poor_drafter": 0, "refused": 2, "refused_grammar": 2, "fallback_late_commit": 1,
    "accept_length_histogram": [3, 4, 2, 1], "reached_by_depth": [10, 7, 3], "accepted_by_depth": [7, 3, 1],
    "expected_by_depth": [6.5, 2.5, 0.5], "nodes_by_depth": [80, 60, 20], "leaf_ends": [1, 2, 0, 1],
    "tree_depth_histogram": [0, 1, 4, 5], "accepted_rank_by_depth": [[5, 1, 0], [2, 0, 1]],
    "first_miss_rank": [1, 0, 2, 0, 1, 1, 0, 3, 4], "first_miss_outside": 2, "full_paths": 1,
    "kinds": {(17, 16, "tree", "fixed"): 5, (16, 15, "chain", "cost"): 2},
    "time_split": {"clock": "gpu", "samples": 4, "draft_us": 400.0, "build_us": 80.0, "by_width": {"17": {}}},
    "start": {"seconds": {"process": 30.5}, "memory_gb": {"device_used": 2.0}},
    "build": {"build_id": "ab12", "release_id": "0.5.17-ab12"}, "sglang": "0.5.17", "budget": 16, "block_size": 4,
}  # fmt: skip


def test_names_and_labels_follow_the_rules_of_prometheus() -> None:
    """A counter without _total, or a unit that is no base unit, misleads every tool that reads it."""
    assert len(BY_NAME) == len(exported.METRICS)
    for metric in exported.METRICS:
        assert re.fullmatch(r"ddtree_[a-z_]+", metric.name)
        assert metric.kind in ("counter", "gauge")
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        for unit in ("seconds", "bytes"):
            assert (unit in metric.unit) == (unit in metric.name), metric.name
        assert metric.help.endswith(".")
        assert len(set(metric.labels)) == len(metric.labels)


def test_every_metric_reads_a_value() -> None:
    """A metric whose source is spelled otherwise would silently stay away."""
    found = {metric.name: values for metric, values in exported.read_all(READING)}
    for name, values in found.items():
        assert values, name
        assert all(len(labels) == len(BY_NAME[name].labels) for labels in values), name
    assert found["ddtree_accept_length_total"] == {("1",): 3, ("2",): 4, ("3",): 2, ("4",): 1}
    assert found["ddtree_leaf_ends_total"][("0",)] == 1
    assert found["ddtree_accepted_rank_total"][("1", "2+")] == 0
    assert found["ddtree_accepted_rank_total"][("2", "2+")] == 1
    misses = {"0": 1, "1": 0, "2": 2, "3": 0, "4-7": 5, "8-15": 4, "outside": 2, "none": 1}
    assert found["ddtree_first_miss_rank_total"] == {(label,): value for label, value in misses.items()}
    assert found["ddtree_steps_total"][("16", "15", "chain", "cost")] == 2
    assert found["ddtree_stage_seconds_total"] == {("draft", "gpu"): 0.0004, ("build", "gpu"): 0.00008}
    assert found["ddtree_memory_bytes"] == {("device_used",): 2.0 * 2**30}
    assert found["ddtree_refused_requests_total"] == {("grammar",): 2}
    assert found["ddtree_build_info"] == {("ab12", "0.5.17-ab12", "0.5.17", "16", "4"): 1}


def test_a_server_that_has_done_nothing_can_be_read() -> None:
    """Before the first step there are no device counters: no metric may fail over that."""
    for metric, values in exported.read_all({**metrics.HostCounters().read(), "kinds": {}}):
        assert all(value == 1 for value in values.values()) or metric.kind == "counter"


class _Client:
    """Stands in for ``prometheus_client``: keeps what is done to each series."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[str, ...]], float] = {}

    def Counter(self, name: str, text: str, labels: Any) -> Any:
        return _Series(self, name)

    def Gauge(self, name: str, text: str, labels: Any, multiprocess_mode: str) -> Any:
        return _Series(self, name)


class _Series:
    def __init__(self, client: _Client, name: str, labels: tuple[str, ...] = ()) -> None:
        self.client, self.key = client, (name, labels)

    def labels(self, *labels: str) -> _Series:
        return _Series(self.client, self.key[0], labels)

    def inc(self, amount: float) -> None:
        assert amount >= 0, "a counter of prometheus_client refuses to go down"
        self.client.values[self.key] = self.client.values.get(self.key, 0) + amount

    def set(self, value: float) -> None:
        self.client.values[self.key] = value


def test_counters_grow_by_what_was_added() -> None:
    """Adding readings, not differences, would count every step once a second for ever."""
    client = _Client()
    exporter = prometheus.Exporter(client)
    exporter.export(READING)
    exporter.export(READING)
    assert client.values["ddtree_request_steps_total", ()] == 10
    later = {**READING, "requests": 25, "poor_drafter": 1, "kinds": {(17, 16, "tree", "fixed"): 9}}
    exporter.export(later)
    assert client.values["ddtree_request_steps_total", ()] == 25
    assert client.values["ddtree_steps_total", ("17", "16", "tree", "fixed")] == 9
    assert client.values["ddtree_steps_total", ("16", "15", "chain", "cost")] == 2
    assert client.values["ddtree_accepted_rank_total", ("1", "1")] == 1
    assert client.values["ddtree_poor_drafter", ()] == 1
    exporter.export({**later, "requests": 24})  # two readings that overtook each other
    exporter.export({**later, "requests": 26})
    assert client.values["ddtree_request_steps_total", ()] == 26


def test_nothing_is_exported_unless_asked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without --enable-metrics no library is loaded and no thread runs; only the first rank reports."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # importing it raises
    assert prometheus.start(False, 0) is None
    assert prometheus.start(True, 1) is None
    assert not caplog.records
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert prometheus.start(True, 0) is None
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/tmp")
    assert prometheus.start(True, 0) is None
    assert ["PROMETHEUS_MULTIPROC_DIR" in caplog.messages[0], "no metrics" in caplog.messages[1]] == [True, True]


def test_document_shows_every_metric_as_the_code_has_it() -> None:
    """The table is what people build alerts on."""
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| `ddtree_")]
    wanted = []
    for metric in exported.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        wanted.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |")
    assert rows == wanted


def test_queries_of_the_document_work() -> None:
    """A query that people copy must read metrics that exist."""
    queries = [line.strip() for line in DOCUMENT.splitlines() if line.startswith("    ") and "rate(" in line]
    assert len(queries) >= 4
    for query in queries:
        _check_query(query)


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_dashboard_has_what_grafana_needs() -> None:
    """Two panels of one id, an overlap, or a data source of somebody's own: Grafana shows a broken page."""
    assert DASHBOARD["title"]
    assert DASHBOARD["uid"]
    assert DASHBOARD["schemaVersion"] >= 36
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert promql.read(variables["instance"]["definition"].split("(")[1].split(",")[0]).metrics.keys() <= BY_NAME.keys()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in _panels():
        assert panel["type"] in ("stat", "timeseries", "bargauge", "heatmap", "table"), panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in [panel, *panel["targets"]]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)


def test_dashboard_asks_for_metrics_that_exist() -> None:
    """A misspelled metric or label is an empty panel, and nobody knows why."""
    shown: set[str] = set()
    for panel in _panels():
        for target in panel["targets"]:
            query = _check_query(target["expr"])
            shown |= query.metrics.keys()
            assert all("instance" in matched for matched in query.metrics.values()), panel["title"]
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label in query.grouped, (panel["title"], label)
    assert shown == BY_NAME.keys(), "every metric has its place on the dashboard"


def _check_query(text: str) -> promql.Query:
    query = promql.read(text)
    labels = {"instance", "job"}
    for name, matched in query.metrics.items():
        assert name in BY_NAME, (text, name)
        assert matched <= labels | set(BY_NAME[name].labels), (text, name, matched)
    known = labels.union(*(BY_NAME[name].labels for name in query.metrics))
    assert query.grouped <= known, (text, query.grouped - known)
    return query


@pytest.mark.parametrize(
    "text",
    [
        "rate(ddtree_nodes_built_total)",
        "sum(ddtree_nodes_built_total[5m])",
        "sum by (depth rate(ddtree_depth_nodes_total[5m])",
        "rates(ddtree_nodes_built_total[5m])",
        "sum (rate(ddtree_nodes_built_total{instance=~x}[5m]))",
        "ddtree_nodes_built_total +",
        "ddtree_poor_drafter ddtree_poor_drafter",
        "rate(ddtree_nodes_built_total[5 minutes])",
    ],
)
def test_reader_of_queries_sees_what_is_wrong(text: str) -> None:
    """A check that lets everything pass would prove nothing about the dashboard."""
    with pytest.raises(ValueError, match=r"."):
        promql.read(text)
