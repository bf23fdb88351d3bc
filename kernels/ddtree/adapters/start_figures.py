"""What the start cost: seconds and GPU memory by part, by SGLang's own numbers where it keeps them.

They stand in the beacon (``settings.start``), in the metrics, and in the server's own answer to ``/server_info``. There
a server without DDTREE gives the same parts (``internal_states[0].startup_time`` and ``.memory_usage``), so that the
two can be compared.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from .. import beacon


def record(worker: Any, checks_s: float | None = None) -> dict[str, Any]:
    """Collect the figures of a worker whose graphs are captured, and keep them in the beacon's settings.

    ``checks_s``: the self-check of the verify graphs and the measurement of what each width costs.
    """
    target, draft = worker.target_worker.model_runner, worker.draft_model_runner
    seconds = {
        "process": _process_age(),
        "target_weights": _figure(target, "weight_load_time"),
        "draft_weights": _figure(draft, "weight_load_time"),
        "target_graphs": _sum(target, "graph_time_usage"),
        "draft_graphs": _sum(draft, "graph_time_usage"),
        "checks": checks_s,
    }
    memory = {
        "target_weights": _figure(target, "weight_load_mem_usage"),
        "draft_weights": _figure(draft, "weight_load_mem_usage"),
        "target_graphs": _sum(target, "graph_memory_usage"),
        "draft_graphs": _sum(draft, "graph_memory_usage"),
        "target_kv": _figure(getattr(target, "token_to_kv_pool", None), "mem_usage"),
        "draft_kv": _figure(getattr(draft, "token_to_kv_pool", None), "mem_usage"),
    }
    graphs = getattr(worker, "graphs", None)
    if graphs is not None:  # the narrower widths, captured beside SGLang's own
        seconds["ladder_graphs"] = float(sum(graphs.seconds.values()))
        memory["ladder_graphs"] = sum(graphs.bytes.values()) / (1 << 30)
    if torch.device(worker.device).type == "cuda":
        free, total = torch.cuda.mem_get_info()
        memory["reserved_by_torch"] = torch.cuda.memory_reserved() / (1 << 30)
        memory["device_used"] = (total - free) / (1 << 30)  # by all processes on it
        memory["device"] = total / (1 << 30)
    found = {"seconds": _rounded(seconds), "memory_gb": _rounded(memory)}
    beacon.settings["start"] = found
    return found


def _process_age() -> float | None:
    """Seconds since this process was started; ``None`` where that cannot be read."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _figure(owner: Any, name: str) -> float | None:
    value = getattr(owner, name, None)
    return float(value) if isinstance(value, (int, float)) else None


def _sum(owner: Any, name: str) -> float | None:
    """Sum a dictionary by phase (decode, prefill ...)."""
    phases = getattr(owner, name, None)
    return float(sum(phases.values())) if isinstance(phases, dict) else None


def _rounded(figures: dict[str, float | None]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in figures.items() if value is not None}
