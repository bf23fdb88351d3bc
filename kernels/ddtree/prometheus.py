"""DDTREE's metrics in SGLang's own ``/metrics``: there when the server runs with ``--enable-metrics``, else nothing.

SGLang uses ``prometheus_client`` in its multiprocess mode: every process writes its values to files of its own, and the
HTTP server adds them up when it is asked. So the scheduler's process needs only ordinary metric objects. A thread of
its own adds once a second what the counters have grown by; no step takes part in it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any

from . import beacon, metrics
from .exported import METRICS, Values, read_all

logger = logging.getLogger(__name__)

PERIOD_S = 1.0


class Exporter:
    """The metric objects of this process; counters grow by what was added since the last reading."""

    def __init__(self, client: Any) -> None:
        self._last: dict[str, Values] = {metric.name: {} for metric in METRICS}
        self._objects: dict[str, Any] = {}
        for metric in METRICS:
            if metric.kind == "counter":
                made = client.Counter(metric.name, metric.help, metric.labels)
            else:
                made = client.Gauge(metric.name, metric.help, metric.labels, multiprocess_mode="mostrecent")
            self._objects[metric.name] = made

    def export(self, reading: dict[str, Any]) -> None:
        """Take one reading over."""
        for metric, values in read_all(reading):
            last = self._last[metric.name]
            for labels, value in values.items():
                series = self._objects[metric.name]
                series = series.labels(*labels) if labels else series
                if metric.kind == "gauge":
                    series.set(value)
                    continue
                series.inc(max(value - last.get(labels, 0), 0))  # two readings can overtake each other
                last[labels] = max(value, last.get(labels, 0))


def reading() -> dict[str, Any]:
    """Return the counters of this process and what it runs."""
    found = metrics.snapshot()
    shown = {name: beacon.settings.get(name) for name in ("budget", "block_size", "start")}
    version = getattr(sys.modules.get("sglang.version"), "__version__", None)
    return {**found, **shown, "kinds": dict(metrics.host.kinds), "build": beacon.build(), "sglang": version}


def start(enabled: bool, rank: int) -> Exporter | None:
    """Start the export of this process: one of them per server (``rank`` 0), and only with SGLang's metrics enabled.

    Never raises: a server must not fall over its metrics.
    """
    if not enabled or rank != 0:
        return None
    try:
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            logger.warning("DDTREE: no metrics, SGLang has set no folder for them (PROMETHEUS_MULTIPROC_DIR).")
            return None
        import prometheus_client

        exporter = Exporter(prometheus_client)
    except Exception as error:
        logger.warning("DDTREE: no metrics: %s: %s", type(error).__name__, error)
        return None
    threading.Thread(target=_run, args=(exporter,), name="ddtree-metrics", daemon=True).start()
    return exporter


def _run(exporter: Exporter) -> None:
    said = False
    while True:
        try:
            exporter.export(reading())
        except Exception as error:
            if not said:
                said = True
                logger.warning("DDTREE: metrics stand still: %s: %s", type(error).__name__, error)
        time.sleep(PERIOD_S)
