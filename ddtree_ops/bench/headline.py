"""The lines at the top of a result: what loses first, per regime and concurrency, never one number for all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .schema import Cell, Interval


def headline(cells: Sequence[Cell]) -> list[str]:
    """First every regime that is slower than plain decoding, then what is INVALID, then the best of each setting."""
    lines = [line for line in (_losing(cells), _invalid(cells)) if line]
    return [*lines, *_best(cells)]


def times(found: Interval) -> str:
    """``1.42x (1.38 to 1.45)``."""
    return f"{found.median:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _losing(cells: Sequence[Cell]) -> str:
    parts = []
    for regime in dict.fromkeys(cell.regime for cell in cells):
        slow = [
            f"{_arm(cell)} {times(cell.speedup_vs_ar)} at concurrency {cell.concurrency}"
            for cell in cells
            if cell.regime == regime and cell.speedup_vs_ar is not None and cell.speedup_vs_ar.median < 1.0
        ]
        if slow:
            parts.append(f"{regime}: {', '.join(slow)}")
    return f"SLOWER than plain decoding: {'; '.join(parts)}" if parts else ""


def _invalid(cells: Sequence[Cell]) -> str:
    bad = [cell for cell in cells if not cell.valid]
    if not cells:
        return "INVALID: no round was measured"
    if not bad:
        return ""
    return f"INVALID: {len(bad)} of {len(cells)} cells must not be quoted; {bad[0].name}: {bad[0].why[0]}"


def _best(cells: Sequence[Cell]) -> Iterable[str]:
    settings = dict.fromkeys((cell.regime, cell.concurrency, cell.temperature) for cell in cells)
    for setting in settings:
        here = [cell for cell in cells if (cell.regime, cell.concurrency, cell.temperature) == setting and cell.valid]
        ours = [cell for cell in here if cell.arm == "ddtree" and cell.tok_per_s is not None]
        if ours:
            yield _line(max(ours, key=_rate))


def _rate(cell: Cell) -> float:
    return cell.tok_per_s.median if cell.tok_per_s else 0.0


def _line(cell: Cell) -> str:
    parts = [f"{cell.regime}, concurrency {cell.concurrency}: {_arm(cell)} {_rate(cell):.1f} tokens/s"]
    if cell.tokens_per_verify is not None:
        parts.append(f"{cell.tokens_per_verify.median:.2f} tokens per verify step")
    if cell.speedup_vs_ar is not None:
        parts.append(f"{times(cell.speedup_vs_ar)} of plain decoding")
    if cell.speedup_vs_dflash is not None:
        parts.append(f"{times(cell.speedup_vs_dflash)} of DFLASH")
    return ", ".join(parts)


def _arm(cell: Cell) -> str:
    return cell.arm.upper() + ("" if cell.budget is None else f" budget {cell.budget}")
