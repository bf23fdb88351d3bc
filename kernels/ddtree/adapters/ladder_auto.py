"""What the automatic budget learns from: paths and times of the steps that it chose, without waiting for anything.

Accepted lengths come to the host anyway: SGLang hands them to the worker when it processes a result
(``on_verify_complete_cpu``). Which nodes the path had does not, so of some steps it is copied, with the ranks along it,
into pinned memory behind the step's own work. SGLang processes a result only after an event that comes later on the
same stream, so the copy is there by then; an event of its own is asked (never waited for) all the same.

A step's time is what passes on the host between the beginnings of two decode steps of the same kind, when nothing else
ran in between.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from .. import beacon, metrics
from ..build.torch_builder import TreeBatch
from ..control.auto import Auto, Sample
from ..control.choice import Choice

logger = logging.getLogger(__name__)

SAMPLE_EVERY, SAMPLE_LARGE = 4, 8
"""Steps from one copied path to the next, for small batches and from ``LARGE`` on; all steps of a probe are copied."""

LARGE = 9

SLOTS = 16
"""Paths that may be on their way: results lag one or two steps."""

SHOW_EVERY = 64
"""Results between two looks at the controller in the beacon; a new batch size is shown at once."""

TELL = 100
"""Lines in the log about changed choices."""

LEARNS_FROM = ("cost", "probe")


class AutoBudget:
    """Feeds one controller with the steps of one worker; P = ``path_width``, the deepest path, root included."""

    def __init__(self, controller: Auto, max_bs: int, path_width: int, device: torch.device | str) -> None:
        self.controller = controller
        self._path_width = path_width
        size = 3 * max_bs * path_width
        self._is_cuda = torch.device(device).type == "cuda"
        self._staging = torch.zeros(size, dtype=torch.int64, device=device)
        self._landing = [torch.zeros(size, dtype=torch.int64, pin_memory=self._is_cuda) for _ in range(SLOTS)]
        self._there: list[Any] = [torch.cuda.Event() if self._is_cuda else None for _ in range(SLOTS)]
        self._slot = self._steps = self._results = 0
        self._waiting: deque[tuple[int, Choice, int | None]] = deque()
        self._last: tuple[int, Choice] | None = None
        self._alike = 0
        self._began = 0.0
        self._told: dict[int, Choice] = {}
        self._tells = TELL
        self._sizes_shown = 0

    def began(self, batch: int, choice: Choice) -> None:
        """Note that a decode step begins."""
        now, this = time.perf_counter(), (batch, choice)
        same = self._last is not None and self._last[0] == batch and _same(self._last[1], choice)
        if same and self._alike >= 2 and choice.reason in LEARNS_FROM:
            self.controller.took(batch, choice, (now - self._began) * 1e6)
        if not same and choice.reason == "cost":
            self._tell(batch, choice)
        self._alike = self._alike + 1 if same else 0
        self._last, self._began = this, now

    def _tell(self, batch: int, choice: Choice) -> None:
        """Log a change of the choice for a batch size, as long as there are few."""
        before = self._told.get(batch)
        if (before is None or not _same(before, choice)) and self._tells:
            self._told[batch] = choice
            self._tells -= 1
            what = "the chain" if choice.chain else f"trees of {choice.budget} nodes"
            logger.info("DDTREE auto: batches of %d requests get %s (width %d).", batch, what, choice.width)

    def interrupted(self) -> None:
        """Note that something else than a decode step runs: the next step's time says nothing."""
        self._last = None

    def launched(self, batch: int, choice: Choice, tree: TreeBatch, path: torch.Tensor) -> None:
        """Note a step whose work is queued; ``path``: ``[bs, P]`` accepted nodes, on the device."""
        slot = None
        self._steps += 1
        every = SAMPLE_EVERY if batch < LARGE else SAMPLE_LARGE
        if choice.reason == "probe" or (choice.reason in LEARNS_FROM and self._steps % every == 0):
            slot = self._copy(batch, tree, path)
        self._waiting.append((batch, choice, slot))

    def _copy(self, batch: int, tree: TreeBatch, path: torch.Tensor) -> int:
        """Queue the copy of paths, ranks along them and their nodes' first children; returns the slot."""
        slot = self._slot = (self._slot + 1) % SLOTS
        count = 3 * batch * self._path_width
        rows = self._staging[:count].view(3, batch, self._path_width)
        rows[0].copy_(path)
        torch.gather(tree.rank, 1, path, out=rows[1])
        torch.gather(tree.retrieve_next_token, 1, path, out=rows[2])
        self._landing[slot][:count].copy_(self._staging[:count], non_blocking=True)
        if self._is_cuda:
            self._there[slot].record()
        return slot

    def completed(self, accepted: Sequence[int], batch: int) -> None:
        """Note the result of the oldest step: accepted drafts per request."""
        while self._waiting and self._waiting[0][0] != batch:
            self._waiting.popleft()  # a result that never came; the two are in step again
        if not self._waiting:
            return
        _, choice, slot = self._waiting.popleft()
        if choice.reason in LEARNS_FROM:
            self.controller.got(batch, choice, accepted)
        if slot is not None:
            self._learn(choice, slot, accepted, batch)
        self._results += 1
        is_due = self._results % SHOW_EVERY == 0 or self.controller.sizes != self._sizes_shown
        if is_due and choice.reason in LEARNS_FROM:
            self._sizes_shown = self.controller.sizes
            beacon.settings["auto_choices"] = self.controller.shown()

    def _learn(self, choice: Choice, slot: int, accepted: Sequence[int], batch: int) -> None:
        if self._is_cuda and not self._there[slot].query():
            metrics.host.add("auto_paths_late")
            return
        count = 3 * batch * self._path_width
        paths, ranks, below = self._landing[slot][:count].view(3, batch, self._path_width).tolist()
        samples = [
            Sample(path[1 : length + 1], rank[1 : length + 1], child[length] >= 0)
            for path, rank, child, length in zip(paths, ranks, below, accepted, strict=True)
        ]
        self.controller.saw(batch, choice, samples)


def _same(one: Choice, other: Choice) -> bool:
    return one.width == other.width and one.chain == other.chain and one.budget == other.budget
