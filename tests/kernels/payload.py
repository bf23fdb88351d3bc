"""The payload's torch-free modules, imported as the controller has them: ``kernels/`` on the path."""

from __future__ import annotations

import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
sys.path.insert(0, str(KERNELS))

from ddtree import beacon, exported, limits, metrics, pairing, prometheus, settings  # noqa: E402
from ddtree.tree import definition, heap, trace, universe, walk  # noqa: E402

__all__ = [
    "KERNELS",
    "beacon",
    "definition",
    "exported",
    "heap",
    "limits",
    "metrics",
    "pairing",
    "prometheus",
    "settings",
    "trace",
    "universe",
    "walk",
]
