"""Counters of the decode path, without host synchronisation.

Two kinds. *Host* counters are plain integers that Python code adds to. *Device* counters are one small int64 tensor
(``build.count.Layout``) that the decode step accumulates into on the forward stream, on a GPU inside its captured
graphs; a thread of the beacon or of Prometheus reads it about once a second on a stream of its own, so that the decode
path never waits. A reading can fall between two additions of one step: every counter is right by itself, different
counters may be one step apart until the next reading.

Standard library only at import; torch comes in with the first device counter. ``docs/metrics.md`` lists them all.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .build.accept import Accepted
    from .build.torch_builder import TreeBatch

logger = logging.getLogger(__name__)

POOR_DRAFTS, POOR_AFTER, LOOK_AT_STEP = 0.1, 32, 48
"""Fewer accepted drafts a step than this look like the drafter of another target, judged from so many steps of requests
on; a server looks for the first time after so many steps of its own, whatever else reads the counters."""


SETTLE_S = 0.5
"""So long after the last step its additions have been executed: the counters need no further reading."""


class HostCounters:
    """Named integers; additions from several threads are safe under the interpreter lock."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {"verify_steps": 0, "kv_move_skipped": 0, "refused": 0}
        self.kinds: dict[tuple[int, int, str, str], int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a counter, creating it at zero."""
        self.values[name] = self.values.get(name, 0) + amount

    def count_step(self, width: int, budget: int, shape: str, reason: str) -> None:
        """Account for how a verify step was shaped.

        ``width``: nodes verified per request; ``budget``: most draft nodes of a tree; ``shape``: ``tree`` or ``chain``;
        ``reason``: why this budget (``fixed``, ``cost``, ``limit``, ``request``, ``control``, ``probe``).
        """
        kind = (width, budget, shape, reason)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def read(self) -> dict[str, Any]:
        """Return plain numbers; steps by width, budget, shape and reason as dictionaries."""
        found: dict[str, Any] = dict(self.values)
        for place, name in enumerate(("steps_by_width", "steps_by_budget", "steps_by_shape", "steps_by_reason")):
            sums: dict[str, int] = {}
            for kind, steps in list(self.kinds.items()):
                sums[str(kind[place])] = sums.get(str(kind[place]), 0) + steps
            found[name] = sums
        return found


class DeviceCounters:
    """The counters of one process on its device; ``path_width`` = P, ``ranks`` = K (see ``build.count``)."""

    def __init__(self, path_width: int, device: torch.device, ranks: int) -> None:
        import torch

        from .build.count import Layout

        self.layout = Layout(path_width, ranks)
        self._counts = torch.zeros(self.layout.size, dtype=torch.int64, device=device)
        self._is_cuda = self._counts.is_cuda
        self._arrived: Any = None
        if self._is_cuda:  # now, because pinning memory can wait for the device
            self._stream = torch.cuda.Stream(device=device)
            self._landing, self._early = (torch.zeros_like(self._counts, device="cpu").pin_memory() for _ in range(2))

    def count(
        self,
        tree: TreeBatch,
        ids: torch.Tensor,
        accepted: Accepted,
        moved: torch.Tensor,
        live: torch.Tensor | None = None,
    ) -> None:
        """Account for one verify step; arguments as ``build.count.add_step``. Can be captured in a CUDA graph."""
        if self._is_cuda:
            from .build.triton_count import count_into

            count_into(self._counts, self.layout, tree, ids, accepted, moved, live)
        else:
            from .build.count import add_step

            add_step(self._counts, self.layout, tree, ids, accepted, moved, live)

    def read(self) -> dict[str, Any]:
        """Return the counters as plain numbers; called from a reading thread, waits only there."""
        return shaped(self.layout, self._fetch())

    def look(self) -> dict[str, Any] | None:
        """Return the counters without waiting: ``None`` until a copy that the first call started has arrived."""
        if not self._is_cuda:
            return self.read()
        import torch

        if self._arrived is None:
            self._early.copy_(self._counts, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        return shaped(self.layout, self._early.tolist()) if self._arrived.query() else None

    def _fetch(self) -> list[int]:
        import torch

        if not self._is_cuda:
            return list(map(int, self._counts.tolist()))
        torch.cuda.set_device(self._counts.device)  # of this thread: a new one is on the first GPU, whatever rank it is
        with torch.cuda.stream(self._stream):
            self._landing.copy_(self._counts, non_blocking=True)
        self._stream.synchronize()
        return list(map(int, self._landing.tolist()))


def shaped(layout: Any, values: list[int]) -> dict[str, Any]:
    """Return named counters of a reading, and those that follow from them (reached and accepted by depth)."""
    from .build.count import EXPECTED_BITS, SCALARS

    found: dict[str, Any] = dict(zip(SCALARS, values, strict=False))
    for name, (start, shape) in layout.places.items():
        if len(shape) == 1:
            found[name] = values[start : start + shape[0]]
        else:
            rows, columns = shape
            found[name] = [values[start + row * columns : start + (row + 1) * columns] for row in range(rows)]
    lengths = found["accept_length_histogram"]
    at_least = [sum(lengths[depth:]) for depth in range(len(lengths))]
    for name in ("nodes_by_depth", "expected_by_depth"):
        found[name] = found[name][1:]
    found["expected_by_depth"] = [round(value / (1 << EXPECTED_BITS), 4) for value in found["expected_by_depth"]]
    found["reached_by_depth"], found["accepted_by_depth"] = at_least[:-1], at_least[1:]
    found["accepted_rank_histogram"] = [sum(column) for column in zip(*found["accepted_rank_by_depth"], strict=True)]
    return found


host = HostCounters()
device: DeviceCounters | None = None
timing: Any = None
"""The sampled time split of this process (``adapters.timing.StepTimer``), once there is one."""
_lock = threading.Lock()
_last: dict[str, Any] = {}
_last_steps = 0
_settled = True
_changed = 0.0
_looked = _warned = False


def start_device(path_width: int, where: torch.device, ranks: int) -> DeviceCounters:
    """Create the device counters of this process."""
    global device
    device = DeviceCounters(path_width, where, ranks)
    return device


def step_done() -> None:
    """Account for a verify step on the host; once, early, it looks whether the drafter fits. Never waits."""
    global _looked
    host.add("verify_steps")
    if not _looked and device is not None and host.values["verify_steps"] >= LOOK_AT_STEP:
        found = device.look()
        if found is not None and (found["requests"] >= POOR_AFTER or host.values["verify_steps"] > 2 * LOOK_AT_STEP):
            _looked = True
            _judge_drafter(found)


def snapshot() -> dict[str, Any]:
    """Return all counters; the device is read only when a step has run since the last reading, and once more.

    The later reading catches additions that were queued but not executed at the first one. No step has run while CUDA
    graphs are being captured, so a reading cannot disturb a capture.
    """
    global _last, _last_steps, _settled, _changed
    with _lock:
        steps, now = host.values["verify_steps"], time.monotonic()
        if device is not None and (steps != _last_steps or not _settled):
            if steps != _last_steps:
                _last_steps, _changed = steps, now
            _settled = now - _changed >= SETTLE_S
            _last = device.read()
            if timing is not None:
                _last["time_split"] = timing.read()
            _judge_drafter(_last)
        return {**host.read(), **_last}


def _judge_drafter(counters: dict[str, Any]) -> None:
    """Say once that hardly any draft is accepted: nothing else tells a drafter that was made for another target."""
    global _warned
    steps, accepted = counters["requests"], counters["accepted_drafts"]
    drafting = counters["nodes_built"] >= steps  # not with a budget of 0
    if not drafting or steps < POOR_AFTER:
        return
    poor = accepted < POOR_DRAFTS * steps
    host.values["poor_drafter"] = int(poor)
    if poor and not _warned:
        _warned = True
        logger.warning(
            "DDTREE: %d drafts accepted in %d steps of requests (%.2f tokens per step, %.1f nodes verified for each). "
            "Tokens are right, but drafting only costs time: is the drafter made for this target, and its checkpoint "
            "the right one? Give another with --speculative-draft-model-path, or serve without "
            "--speculative-algorithm.",
            accepted,
            steps,
            1 + accepted / steps,
            counters["nodes_built"] / steps,
        )
