"""The machine that runs the tests has servers of its own; these tests see only what they started."""

from __future__ import annotations

import os

import pytest

from ddtree_ops.host import procs


@pytest.fixture
def only_our_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are looked for among the descendants of this test run alone."""
    everything = procs.all_processes

    def ours() -> dict[int, procs.Process]:
        table = everything()
        kept = {os.getpid()}
        grew = True
        while grew:
            more = {pid for pid, one in table.items() if one.parent in kept} - kept
            kept |= more
            grew = bool(more)
        return {pid: one for pid, one in table.items() if pid in kept}

    monkeypatch.setattr(procs, "all_processes", ours)
