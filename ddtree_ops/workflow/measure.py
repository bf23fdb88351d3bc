"""``bench``: measure the deployed service from the host itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..attest.request import expectation, spec_of
from ..bench import library, report, smoke
from ..errors import UsageError, worst
from ..inventory import Host
from ..model import Deployment
from ..ui.progress import Steps
from .service import deployed
from .session import each, hosts_of, linked, look
from .steps import served_dtype

if TYPE_CHECKING:
    from ..cli import Context


def bench(
    context: Context,
    *,
    budget: str,
    prompts: Path | None,
    count: int,
    regime: str,
    max_tokens: int,
    concurrency: int,
    out: Path | None,
) -> int:
    """The smoke form: one arm, the running service; its control is the recorded baseline. Exit 8 unless it holds."""
    width = _budget(budget)
    own = library.from_file(prompts) if prompts else None
    inventory, hosts = hosts_of(context)
    documents: list[dict[str, Any]] = []

    def one(host: Host) -> int:
        with linked(context, host) as link:
            facts = look(link, host, inventory.beside).facts
            deployment = deployed(facts, host)
            spec = spec_of(deployment)
            request = smoke.request(
                spec.ref(),
                max_tokens=max_tokens,
                prompts=count,
                regime=regime,
                own=own,
                concurrency=concurrency,
                proof=expectation(deployment),
            )
            with Steps(context.output, host.name) as progress, progress.step("bench", f"Bench at budget {width}"):
                raw = link.call("bench_smoke", {**request, "budget": width}, timeout=None, on_event=progress.event)
        dtype = served_dtype(facts, spec)
        found = {"host": host.name, **smoke.evaluate(raw, baseline_for(deployment, raw), dtype=dtype)}
        documents.append(found)
        if out is not None:
            context.output.note(f"written: {_save(out, host, found)}")
        if not context.output.json:
            context.output.out.print(report.render(found))
            smoke.require(found)
        return 0

    code = each(context, hosts, one)
    if context.output.json:
        context.output.document("bench", {"hosts": documents})
        code = worst([code, *(0 if found["verdict"] == "ok" else 8 for found in documents)])
    return code


def baseline_for(deployment: Deployment, raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The recorded answers without speculation, if they share a prompt with this run."""
    recorded = deployment.baseline
    asked = {row["id"] for row in raw.get("requests", ())}
    return recorded if asked & {answer["id"] for answer in recorded.get("answers", ())} else None


def _budget(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1023:
        raise UsageError(
            f"--budget {text}: this version measures one budget from 1 to 1023",
            next_step="give one number, for example --budget 16",
        )
    return int(text)


def _save(folder: Path, host: Host, found: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{host.name}-{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    return path
