"""The ladder of verify widths: which exist, up to which batch, and which one holds a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

STEPS = (8, 16, 24, 33, 49, 65, 97, 129, 193, 257)
"""Widths that a default ladder is made of; a step at a tile's edge (16, 32, 64 drafts + root) is a plateau's end."""

NEAR = 0.85
"""A default step is left out when it is nearer than this to the budget's own width."""


def default_widths(budget: int, block_size: int) -> tuple[int, ...]:
    """Return the widths for budgets up to ``budget``: the chain's, the budget's own, and steps below it."""
    own = budget + 1
    steps = {width for width in STEPS if width < NEAR * own}
    return tuple(sorted(steps | {own, block_size}))


def parse(text: str, budget: int, block_size: int) -> dict[int, int | None]:
    """Read ``DDTREE_LADDER``: widths (root included), each perhaps with the largest batch (``16,33,65@8``).

    The chain's width and the budget's own are added where they are missing. Returns the largest batch by width
    (``None``: no limit); raises ``ValueError`` for what cannot be a ladder.
    """
    found: dict[int, int | None] = {}
    widest = max(budget + 1, block_size)
    for item in filter(None, (part.strip() for part in text.split(","))):
        width, _, batch = item.partition("@")
        if not width.isdigit() or (batch and not batch.isdigit()) or item.endswith("@"):
            raise ValueError(f"DDTREE: {item!r} in the ladder is not WIDTH or WIDTH@BATCH (for example 16,33,65@8).")
        if not 2 <= int(width) <= widest:
            raise ValueError(
                f"DDTREE: width {width} of the ladder is not between 2 and {widest} (budget {budget} + 1, or the block "
                f"size {block_size})."
            )
        if batch and int(batch) < 1:
            raise ValueError(f"DDTREE: {item!r} in the ladder allows no batch; leave it out.")
        if batch and int(width) == block_size:
            raise ValueError(f"DDTREE: the chain's width ({block_size}) is needed for every batch; give it no limit.")
        found[int(width)] = int(batch) if batch else None
    found[block_size] = None
    found.setdefault(budget + 1, None)
    return found


@dataclass(frozen=True)
class Ladder:
    """Widths in ascending order; ``limits`` names the largest batch of a width that has not got all of them."""

    widths: tuple[int, ...]
    limits: Mapping[int, int]

    @staticmethod
    def of(widths: Iterable[int], limits: Mapping[int, int | None] | None = None) -> Ladder:
        """Make a ladder; ``limits`` may hold ``None`` for no limit."""
        kept = {width: batch for width, batch in (limits or {}).items() if batch is not None}
        return Ladder(tuple(sorted(set(widths))), kept)

    def has(self, width: int, batch: int) -> bool:
        """Whether batches of ``batch`` requests can be verified in this width."""
        return width in self.widths and batch <= self.limits.get(width, batch)

    def at(self, batch: int) -> tuple[int, ...]:
        """Return the widths for a batch of ``batch`` requests."""
        return tuple(width for width in self.widths if self.has(width, batch))

    def holds(self, budget: int, batch: int) -> int:
        """Return the narrowest width for trees of ``budget`` nodes, the widest one where none is wide enough."""
        widths = self.at(batch) or self.widths
        return next((width for width in widths if width > budget), widths[-1])
