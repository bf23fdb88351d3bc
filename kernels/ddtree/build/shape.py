"""The shape of the trees to come, as data: one captured graph builds trees of every width.

A shape is three small integers. The host writes them to the device in stream order, and only when they change; kernels
read them there. What depends on a width on the host (views, launches of the verify pass) is chosen by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ANY_RANK = (1 << 31) - 1
NO_END = 1 << 40
"""An ``end_lens`` entry that limits nothing."""


@dataclass(frozen=True)
class Shape:
    """``width`` nodes are laid out per request, root included; at most ``budget`` of them are drafts.

    ``ranks``: candidates per depth that may be used. With 1 every tree is the chain of best candidates, as deep as
    ``budget`` allows.
    """

    width: int
    budget: int
    ranks: int = ANY_RANK

    @property
    def is_chain(self) -> bool:
        """Whether the tree is a chain."""
        return self.ranks == 1


class DeviceShape:
    """A shape on the device: ``values`` is int32 ``[3]`` (width, budget, ranks), ``host`` what was written last."""

    def __init__(self, shape: Shape, device: torch.device | str) -> None:
        self.host = shape
        self.values = torch.tensor(_row(shape), dtype=torch.int32, device=device)
        self._rows: dict[Shape, torch.Tensor] = {}

    def set(self, shape: Shape) -> None:
        """Write another shape, in stream order: one small copy, none when nothing changes."""
        if shape == self.host:
            return
        row = self._rows.get(shape)
        if row is None:
            row = torch.tensor(_row(shape), dtype=torch.int32)
            row = self._rows[shape] = row.pin_memory() if self.values.is_cuda else row  # kept: a copy may be in flight
        self.values.copy_(row, non_blocking=True)
        self.host = shape


def _row(shape: Shape) -> list[int]:
    return [shape.width, shape.budget, shape.ranks]
