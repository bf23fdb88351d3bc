"""The verify cost by (batch, width), as measured at start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAME = 0.01
"""Two widths cost the same when their times differ by no more than this part, or by ``SAME_US``."""

SAME_US = 3.0


class CostTable:
    """Microseconds of one verify pass; a batch between the measured ones costs what the next larger one does.

    That is how captured graphs work: a batch is padded to the next captured size. Without entries (no graphs) every
    cost is unknown. Costs used never fall with the width; ``rows`` shows them as measured.
    """

    def __init__(self, us: Mapping[tuple[int, int], float]) -> None:
        self._measured = dict(us)
        self._us = _never_falling(self._measured)
        self._batches: dict[int, list[int]] = {}
        for batch, width in sorted(self._us):
            self._batches.setdefault(width, []).append(batch)

    def us(self, batch: int, width: int) -> float | None:
        """Return the cost of a batch of ``batch`` requests, ``None`` where it was not measured."""
        for measured in self._batches.get(width, ()):
            if measured >= batch:
                return self._us[measured, width]
        return None

    def bucket(self, batch: int) -> int:
        """Return the captured size that a batch is padded to, the batch itself where there is none."""
        sizes = sorted({measured for sizes in self._batches.values() for measured in sizes})
        return next((size for size in sizes if size >= batch), batch)

    def worthwhile(self, batch: int, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Leave out every width that a wider one of the same cost makes pointless: its nodes are free."""
        kept: list[int] = []
        for width in sorted(widths, reverse=True):
            mine, wider = self.us(batch, width), self.us(batch, kept[-1]) if kept else None
            if mine is None or wider is None or mine < min(wider * (1 - SAME), wider - SAME_US):
                kept.append(width)
        return tuple(sorted(kept))

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as a beacon shows it."""
        return [
            {"batch": batch, "width": width, "us": round(us, 1)}
            for (batch, width), us in sorted(self._measured.items())
        ]


def _never_falling(measured: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Level out what would make more nodes cheaper than fewer, batch size by batch size: noise of a shared GPU.

    Neighbours that fall are pooled into their mean (isotonic regression), so real cliffs stay where they are.
    """
    found: dict[tuple[int, int], float] = {}
    for batch in sorted({batch for batch, _ in measured}):
        pools: list[tuple[float, list[int]]] = []
        for width in sorted(width for size, width in measured if size == batch):
            pools.append((measured[batch, width], [width]))
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                (late, after), (early, before) = pools.pop(), pools.pop()
                mean = (early * len(before) + late * len(after)) / (len(before) + len(after))
                pools.append((mean, before + after))
        found.update({(batch, width): us for us, widths in pools for width in widths})
    return found
