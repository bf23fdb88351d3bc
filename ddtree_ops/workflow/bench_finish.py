"""From the rows of a folder to what it concludes: cells, identity, acceptance, gates, reports. No host is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..bench import gates as gating
from ..bench import identity as judging
from ..bench.results import Cost, Folder, Gates, Summary, acceptance, summarise
from ..errors import GateFailed


def conclude(folder: Folder, *, dtype: str, costs: Sequence[Cost] = ()) -> Summary:
    """Write ``summary.json``, ``identity.json``, ``acceptance.json``, ``costs.json`` from what was measured so far."""
    rows = folder.rows()
    summary = summarise(folder.manifest, rows)
    folder.save("summary", summary)
    folder.save("acceptance", acceptance(rows))
    if costs:
        folder.save("costs", tuple(costs))
    reference = _reference(folder)
    if reference is not None:
        folder.save("identity", judging.report(reference, rows, dtype=dtype))
    return summary


def _reference(folder: Folder) -> dict[str, Any] | None:
    path = folder.path / "reference.json"
    if not path.exists():
        return None
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    return found


def judge_gates(folder: Folder, book: gating.GateBook, served: int) -> Gates:
    """Evaluate the gates on what the folder holds, into ``gates.json``."""
    summary, auto = folder.summary, folder.auto
    assert summary is not None
    recommended = (auto.recommended.get("all") if auto else None) or None
    budget = gating.budget_to_judge(book, folder.manifest.plan.budgets, served, recommended)
    found = gating.evaluate(book, summary, folder.identity, budget)
    folder.save("gates", found)
    return found


def reports(folder: Folder) -> list[str]:
    """Write ``report.md`` and ``report.html``; their paths."""
    from ..bench.render import write_reports

    return [str(path) for path in write_reports(folder)]


def require_valid(folder: Folder) -> None:
    """Raise :class:`GateFailed` (exit 8) when the measurement is INVALID or greedy answers part at a wide gap."""
    summary, identity = folder.summary, folder.identity
    if identity is not None and identity.verdict == "FAILED":
        raise GateFailed(
            f"greedy answers differ from plain decoding: {identity.why[0]}",
            where=str(folder.path),
            why="; ".join(identity.why[1:]),
            next_step="identity.json has every prompt; do not serve this build before that is explained",
            code="identity",
        )
    if summary is not None and summary.verdict != "ok":
        raise GateFailed(
            f"the measurement is {summary.verdict}: {summary.why[0] if summary.why else 'see summary.json'}",
            where=str(folder.path),
            why="; ".join(summary.why[1:4]),
            next_step="summary.json has every reason; what is INVALID must not be quoted",
            code="invalid",
        )
