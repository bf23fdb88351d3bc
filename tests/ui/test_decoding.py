"""``status`` about what is being decoded: the figures of the payload's counters, in words."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ddtree_ops.ui import decoding, status

COUNTERS: dict[str, Any] = {
    "verify_steps": 1300, "requests": 10_000, "accepted_drafts": 22_800, "branch_paths": 3100,
    "reached_by_depth": [10_000, 8600, 5000, 0], "accepted_by_depth": [8600, 5000, 2250, 0],
    "first_miss_rank": [100, 50, 25, 25, 100], "first_miss_outside": 200,
    "tree_depth_histogram": [0, 0, 5000, 5000], "nodes_built": 320_000, "nodes_padded": 10_000,
    "steps_by_width": {"16": 300, "33": 1000}, "steps_by_shape": {"tree": 1000, "chain": 300},
    "steps_by_reason": {"cost": 1300}, "refused": 3, "refused_grammar": 3, "fallback_late_commit": 1200,
    "time_split": {"clock": "gpu", "samples": 20, "draft_us": 6000.0, "build_us": 400.0, "verify_us": 24000.0,
                   "commit_us": 2000.0},
}  # fmt: skip
START = {"seconds": {"process": 42.4, "target_graphs": 8.0, "draft_graphs": 1.5},
         "memory_gb": {"device_used": 120.0, "device": 139.8}}  # fmt: skip


def _lines(counters: dict[str, Any], **settings: Any) -> dict[str, str]:
    launcher = {"settings": {"budget": 32}, "counters": {"verify_steps": 0}}
    scheduler = {"settings": settings, "counters": counters}
    return {label: text.plain for label, text in decoding.rows([launcher, scheduler])}


def test_every_figure_in_words() -> None:
    """Each of them is somebody's first question: what it brings, why it ends, what it costs, what it does not serve."""
    lines = _lines(COUNTERS, start=START)
    assert lines["decoding"] == (
        "3.28 tokens per verify step (10,000 request steps); 31 % of paths leave the best candidates"
    )
    assert lines["by depth"] == "86 %, 58 %, 45 % accepted at depths 1 to 3, once reached"
    assert lines["first miss"] == "rank 0 20 %, ranks 1 to 3 20 %, ranks 4 to 15 20 %, outside of the candidates 40 %"
    assert lines["trees"] == (
        "32.0 nodes, 2.5 deep, 3 % padding; width 33 77 %, width 16 23 %; tree 77 %, chain 23 %; cost 100 %"
    )
    assert lines["a step"] == ("draft 0.30 + build 0.02 + verify 1.20 + commit 0.10 = 1.62 ms (GPU clock, 20 samples)")
    assert lines["fallbacks"] == "late commit 1,200"
    assert lines["refused"] == "grammar 3"
    assert lines["start"] == (
        "42 s until its graphs were captured, 9.5 s of them for the capture; 120.0 of 139.8 GB of the GPU in use"
    )
    assert "warning" not in lines


def test_a_poor_drafter_is_said() -> None:
    """The log line is hours old by the time that somebody asks why it is slow."""
    assert "made for this target" in _lines({**COUNTERS, "poor_drafter": 1})["warning"]


@pytest.mark.parametrize(
    "counters",
    [{"verify_steps": 0}, {"verify_steps": 0, "requests": 0, "accept_length_histogram": [0, 0], "time_split": {}}],
)
def test_a_server_without_a_step_divides_by_nothing(counters: dict[str, Any]) -> None:
    """Directly after the start every counter is 0, or not there."""
    assert _lines(counters) == {"decoding": "no step yet"}


def test_one_rank_speaks_for_all() -> None:
    """Tensor-parallel ranks count the same steps: two of them are not twice the work."""
    second = {"settings": {"tp_rank": 1}, "counters": COUNTERS}
    assert decoding.rows([second]) == []
    assert len(decoding.rows([{"settings": {"tp_rank": 0}, "counters": COUNTERS}, second])) == len(_lines(COUNTERS))


def test_status_shows_it_and_fits_a_narrow_screen() -> None:
    """The lines are folded, not cut."""
    deployment = {"created": 0.0, "release_id": "r", "strategy": "derive", "tree": "/t", "unit": "u", "port": 1}
    service = {"state": {"active": "active", "enabled": "enabled"}, "health": {"ok": True}}
    beacon = {"settings": {"start": START}, "counters": COUNTERS}
    console = Console(file=io.StringIO(), width=60, markup=False)
    found = {"host": "h", "verdict": "v", "deployment": deployment, "service": service, "beacons": [beacon]}
    status.show_status(console, found)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 60
    assert "3.28 tokens per verify step" in " ".join(text.split())
