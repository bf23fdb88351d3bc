"""Counters of the decode path, without host synchronisation.

Two kinds. *Host* counters are plain integers that Python code adds to. *Device* counters are one small int64 tensor
that the decode step accumulates into with a few tiny operations on the forward stream; the beacon's thread reads it on
a stream of its own, so that the decode path never waits. A reading can fall between two additions of one step: every
counter is right by itself, different counters may be one step apart until the next reading.

Standard library only at import; torch comes in with the first device counter.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from .build.accept import Accepted
    from .build.torch_builder import TreeBatch

logger = logging.getLogger(__name__)

RANK_BINS = 8
"""Accepted ranks 0 .. RANK_BINS - 2 are counted one by one, the last bin holds all higher ones."""

POOR_AFTER, POOR_DRAFTS = 100, 0.1
"""From so many request-steps on, fewer accepted drafts a step than this look like the drafter of another target."""

_SCALARS = ("requests", "accepted_drafts", "branch_paths", "non_first_accepted", "moved_slots", "nodes_built")


class HostCounters:
    """Named integers; additions from several threads are safe under the interpreter lock."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {"verify_steps": 0, "kv_move_skipped": 0, "refused": 0}

    def add(self, name: str, amount: int = 1) -> None:
        """Add to a counter, creating it at zero."""
        self.values[name] = self.values.get(name, 0) + amount


class DeviceCounters:
    """One tensor: scalars, then the accepted-length histogram ``[P]``, then the accepted-rank histogram."""

    def __init__(self, path_width: int, device: torch.device) -> None:
        import torch

        self.path_width = path_width
        self._counts = torch.zeros(len(_SCALARS) + path_width + RANK_BINS, dtype=torch.int64, device=device)
        self._is_cuda = self._counts.is_cuda
        self._stream: Any = None
        self._landing: torch.Tensor | None = None

    def add(self, tree: TreeBatch, accepted: Accepted, moved: torch.Tensor) -> None:
        """Account for one verify step; ``moved``: ``[bs]`` int64, KV slots that were copied."""
        if self._is_cuda:
            from .build.triton_step import count_into

            count_into(self._counts, tree, accepted.path, accepted.accept_len, moved, len(_SCALARS), RANK_BINS)
            return
        import torch

        bs, device = tree.valid.shape[0], self._counts.device
        steps = torch.arange(self.path_width, device=device)
        on_path = (steps > 0) & (steps <= accepted.accept_len[:, None])
        ranks = tree.rank.gather(1, accepted.path)
        later = on_path & (ranks > 0)
        scalars = torch.stack(
            [
                torch.full((), bs, dtype=torch.int64, device=device),
                accepted.accept_len.sum(),
                later.any(dim=1).sum(),
                later.sum(),
                moved.sum(),
                tree.valid.sum() - bs,
            ]
        )
        base = len(_SCALARS)
        self._counts[:base] += scalars
        self._counts[base : base + self.path_width] += _histogram(accepted.accept_len, self.path_width)
        bins = torch.where(on_path, ranks.clamp(0, RANK_BINS - 1), RANK_BINS)
        self._counts[base + self.path_width :] += _histogram(bins.flatten(), RANK_BINS + 1)[:RANK_BINS]

    def add_gated(self, tree: TreeBatch, outcome: Any, live: torch.Tensor, count_into: Any) -> None:
        """Account for the requests of a step that ``live`` names, by the kernel ``count_into`` (so it is captured)."""
        path, accept_len = outcome.accepted.path, outcome.accepted.accept_len
        count_into(self._counts, tree, path, accept_len, outcome.moved, len(_SCALARS), RANK_BINS, live)

    def read(self) -> dict[str, Any]:
        """Return the counters as plain numbers; called from the beacon's thread, waits only there."""
        values = self._fetch()
        base = len(_SCALARS)
        counters: dict[str, Any] = dict(zip(_SCALARS, values[:base], strict=True))
        counters["accept_length_histogram"] = values[base : base + self.path_width]
        counters["accepted_rank_histogram"] = values[base + self.path_width :]
        return counters

    def _fetch(self) -> list[int]:
        import torch

        if not self._is_cuda:
            return [int(value) for value in self._counts.tolist()]
        if self._landing is None:
            self._stream = torch.cuda.Stream(device=self._counts.device)
            self._landing = torch.empty_like(self._counts, device="cpu").pin_memory()
        with torch.cuda.stream(self._stream):
            self._landing.copy_(self._counts, non_blocking=True)
        self._stream.synchronize()
        return [int(value) for value in self._landing.tolist()]


def _histogram(values: torch.Tensor, bins: int) -> torch.Tensor:
    """Count values 0 .. bins - 1; a fixed-shape scatter, because ``bincount`` synchronises on a GPU."""
    import torch

    counts = torch.zeros(bins, dtype=torch.int64, device=values.device)
    return counts.scatter_add_(0, values, torch.ones_like(values))


host = HostCounters()
device: DeviceCounters | None = None
_lock = threading.Lock()
_last: dict[str, Any] = {}
_last_steps = 0
_settled = True
_warned = False


def start_device(path_width: int, where: torch.device) -> DeviceCounters:
    """Create the device counters of this process."""
    global device
    device = DeviceCounters(path_width, where)
    return device


def snapshot() -> dict[str, Any]:
    """Return all counters; the device is read only when a step has run since the last reading, and once more after it.

    The second reading catches additions that were queued but not executed at the first one. No step has run while CUDA
    graphs are being captured, so a reading cannot disturb a capture.
    """
    global _last, _last_steps, _settled
    with _lock:
        steps = host.values["verify_steps"]
        if device is not None and (steps != _last_steps or not _settled):
            _settled = steps == _last_steps
            _last_steps = steps
            _last = device.read()
            _warn_about_drafter(_last)
        return {**host.values, **_last}


def _warn_about_drafter(counters: dict[str, Any]) -> None:
    """Say once that hardly any draft is accepted: nothing else tells a drafter that was made for another target."""
    global _warned
    steps, accepted = counters["requests"], counters["accepted_drafts"]
    drafting = counters["nodes_built"] >= steps  # not with a budget of 0
    if not _warned and drafting and steps >= POOR_AFTER and accepted < POOR_DRAFTS * steps:
        _warned = True
        logger.warning(
            "DDTREE: %d drafts accepted in %d steps of requests. Tokens are right, but drafting gains nothing: "
            "is the drafter (--speculative-draft-model-path) made for this target?",
            accepted,
            steps,
        )
