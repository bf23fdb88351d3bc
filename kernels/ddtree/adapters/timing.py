"""Where a step's time goes: draft, build, verify, commit, sampled in one of ``DDTREE_TIME_EVERY`` steps (default 64).

On a GPU by its own clock: the captured tails write a stamp where the drafter's and the target's forward have ended, a
sampled step writes three more, and its last kernel adds the differences up on the device. The host never waits and
never asks. Elsewhere by the host's clock. ``DDTREE_TIME_EVERY=0`` takes all of it out, the stamps in the graphs too.

A stage lasts from the end of the one before it, so gaps in which the GPU waits for launches belong to the stage that
waits. The drafter's part of ``commit`` (its KV of the accepted path) is included in ``commit``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import torch

from .. import metrics, settings

STAGES = ("draft", "build", "verify", "commit")
ROWS = 16
"""Widths that are told apart; further ones share the last row."""
_PLACES = {"draft": 1, "build": 2, "verify": 3}


class StepTimer:
    """The time split of one process. ``begin``, ``passed`` (after draft, build, verify) and ``end`` in every step."""

    def __init__(self, device: torch.device | str, every: int = settings.TIME_EVERY) -> None:
        self.every = every
        self.sampling = False
        self._steps = 0
        self._rows: dict[int, int] = {}
        self._is_cuda = torch.device(device).type == "cuda"
        long = {"dtype": torch.int64, "device": device}
        self._stamps = torch.zeros(len(STAGES), **long)
        self._sums = torch.zeros((ROWS, len(STAGES) + 1), **long)
        if self._is_cuda:
            from ..build import triton_clock

            self._clock = triton_clock
            triton_clock.collect(self._stamps, self._sums, 0)  # compiled and loaded before any capture
            triton_clock.stamp(self._stamps, 0)
            self._stamps.zero_()
            self._landing = torch.zeros_like(self._sums, device="cpu").pin_memory()
            self._stream = torch.cuda.Stream(device=self._sums.device)

    def begin(self) -> None:
        """Start a step; every ``every``-th one is sampled. The first ones are not: kernels are compiled there."""
        self._steps += 1
        self.sampling = self._steps % self.every == 0
        if self.sampling:
            self._mark(0)

    def passed(self, stage: str) -> None:
        """A stage has ended: noted in a sampled step, and wherever a graph is being captured."""
        if self.sampling or (self._is_cuda and torch.cuda.is_current_stream_capturing()):
            self._mark(_PLACES[stage])

    def end(self, width: int) -> None:
        """The step has ended; ``width``: nodes verified per request."""
        if not self.sampling:
            return
        self.sampling = False
        row = self._rows.setdefault(width, min(len(self._rows), ROWS - 1))
        if self._is_cuda:
            self._clock.collect(self._stamps, self._sums, row)
            return
        marks = [*self._stamps.tolist(), time.perf_counter_ns()]
        if all(marks) and marks == sorted(marks):
            self._sums[row] += torch.tensor([b - a for a, b in itertools.pairwise(marks)] + [1])
        self._stamps.zero_()

    def _mark(self, place: int) -> None:
        if self._is_cuda:
            self._clock.stamp(self._stamps, place)
        else:
            self._stamps[place] = time.perf_counter_ns()

    def read(self) -> dict[str, Any]:
        """Return sums in microseconds and the number of samples, in all and by width; called from a reading thread."""
        if self._is_cuda:
            torch.cuda.set_device(self._sums.device)  # of this thread: a new one is on the first GPU
            with torch.cuda.stream(self._stream):
                self._landing.copy_(self._sums, non_blocking=True)
            self._stream.synchronize()
            rows = self._landing.tolist()
        else:
            rows = self._sums.tolist()
        by_width = {str(width): _named(rows[row]) for width, row in list(self._rows.items())}
        total = _named([sum(column) for column in zip(*rows, strict=True)])
        return {"clock": "gpu" if self._is_cuda else "host", "every": self.every, **total, "by_width": by_width}


def _named(row: list[int]) -> dict[str, Any]:
    times = {f"{stage}_us": round(value / 1000, 1) for stage, value in zip(STAGES, row, strict=False)}
    return {"samples": row[-1], **times}


def from_environment(device: torch.device | str, environ: Mapping[str, str] | None = None) -> StepTimer | None:
    """Create the timer that the environment asks for and show it to ``metrics``; raises as ``settings.time_every``."""
    every = settings.time_every(environ)
    metrics.timing = StepTimer(device, every) if every else None
    return metrics.timing


def passed(stage: str) -> None:
    """A stage has ended, for code that does not hold the timer: the captured tails."""
    if metrics.timing is not None:
        metrics.timing.passed(stage)


def begin() -> None:
    """A step begins."""
    if metrics.timing is not None:
        metrics.timing.begin()


def end(width: int) -> None:
    """A step of ``width`` nodes per request has ended."""
    if metrics.timing is not None:
        metrics.timing.end(width)
