"""Which batches each width is captured for, so that graphs fit into the memory that is left: the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """Bytes that grow with what is captured.

    ``row``: per verified token of the largest (batch, width): logits, their copy, activations. ``held``: per verified
    token of *every* captured (batch, width): hidden states, which a graph keeps as its result. ``context``: longest
    context, for the mask (one byte per cell of ``width * (context + width)`` per request). ``graph``: per captured
    graph. ``free`` is what the device has left, ``reserve`` what has to stay free.
    """

    row: int
    held: int
    context: int
    graph: int
    free: int
    reserve: int


@dataclass(frozen=True)
class Plan:
    """The largest batch of every width, and what that takes."""

    limits: dict[int, int]
    need: int
    dflash: int  # the same for the chain's width alone: what DFLASH captures at the same flags
    cut: tuple[int, ...]  # widths that are captured for fewer batches than asked for

    def rows(self) -> int:
        """Return the most tokens that one verify pass has."""
        return max(width * batch for width, batch in self.limits.items())

    def mask_cells(self, context: int) -> int:
        """Return the cells of the largest mask."""
        return max(batch * width * (context + width) for width, batch in self.limits.items())


def plan(wanted: Mapping[int, int | None], batches: Sequence[int], block_size: int, sizes: Sizes) -> Plan:
    """Lower the largest batches of the widest passes until all fits.

    ``wanted``: largest batch by width (``None``: all of ``batches``, ascending). The chain's width keeps all batches.
    Raises ``ValueError``, with the arithmetic, where not even that fits.
    """
    limits = {width: _largest(batches, most) for width, most in wanted.items()}
    chain = {block_size: batches[-1]}
    asked = dict(limits)
    room = sizes.free - sizes.reserve
    while _need(limits, batches, sizes) > room:
        others = [width for width in limits if width != block_size and limits[width] > batches[0]]
        if not others:
            raise ValueError(refusal(block_size, batches, sizes))
        widest = max(others, key=lambda width: (limits[width] * width, width))
        limits[widest] = _largest(batches, limits[widest] - 1)
    cut = tuple(sorted(width for width, batch in asked.items() if limits.get(width) != batch))
    return Plan(limits, _need(limits, batches, sizes), _need(chain, batches, sizes), cut)


def refusal(block_size: int, batches: Sequence[int], sizes: Sizes) -> str:
    """Say with numbers why not even the chain's width can be captured."""
    rows = block_size * batches[-1]
    mask = rows * (sizes.context + block_size)
    held = block_size * sum(batches) * sizes.held
    return (
        f"DDTREE: not enough memory for CUDA graphs even of width {block_size} (no tree): {batches[-1]} requests x "
        f"{block_size} tokens x {sizes.row / 1024:.0f} KiB (logits, activations) = "
        f"{rows * sizes.row / MIB:.0f} MiB, tree mask {mask / MIB:.0f} MiB, {len(batches)} graphs "
        f"{(held + len(batches) * sizes.graph) / MIB:.0f} MiB; {sizes.free / MIB:.0f} MiB are free, of which "
        f"{sizes.reserve / MIB:.0f} MiB are kept for the drafter's graphs and for serving. "
        "Lower --mem-fraction-static or --cuda-graph-max-bs."
    )


def _largest(batches: Sequence[int], most: int | None) -> int:
    """Return the largest captured batch that is at most ``most``, the smallest one without such."""
    return max((batch for batch in batches if most is None or batch <= most), default=batches[0])


def _need(limits: Mapping[int, int], batches: Sequence[int], sizes: Sizes) -> int:
    rows = max(width * batch for width, batch in limits.items())
    cells = max(batch * width * (sizes.context + width) for width, batch in limits.items())
    captured = [(size, width) for width, batch in limits.items() for size in batches if size <= batch]
    held = sum(size * width for size, width in captured) * sizes.held
    return rows * sizes.row + cells + held + len(captured) * sizes.graph
