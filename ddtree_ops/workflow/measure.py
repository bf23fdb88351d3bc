"""``bench``: measure the deployed service from the host itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..attest.request import expectation, spec_of
from ..bench import library, report, smoke
from ..errors import GateFailed, UsageError
from ..inventory import Host
from ..jsontext import json_bytes
from ..model import Deployment
from ..ui.progress import Steps
from .playbook import load_bench
from .service import deployed
from .session import Outcome, each, facts_of, hosts_of, linked
from .steps import served_dtype

if TYPE_CHECKING:
    from ..cli import Context


def bench(context: Context, *, budget: str, prompts: Path | None, out: Path | None, given: Mapping[str, Any]) -> int:
    """The smoke form: one arm, the running service; its control is the recorded baseline. Exit 8 unless it holds.

    Args:
        given: What the command line says of ``regime, count, max_tokens, concurrency``; the playbook has the rest.
    """
    width = _budget(budget)
    own = library.from_file(prompts) if prompts else None
    inventory, hosts = hosts_of(context)
    wanted = load_bench(inventory.beside, given)

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            facts = facts_of(link, host)
            deployment = deployed(facts, host)
            spec = spec_of(deployment)
            request = smoke.request(
                spec.ref(),
                max_tokens=wanted.max_tokens,
                prompts=wanted.count,
                regime=wanted.regime,
                own=own,
                concurrency=wanted.concurrency,
                proof=expectation(deployment),
            )
            with Steps(context.output, host.name) as progress, progress.step("bench", f"Bench at budget {width}"):
                raw = link.call("bench_smoke", {**request, "budget": width}, timeout=None, on_event=progress.event)
        dtype = served_dtype(facts, spec)
        found = {"host": host.name, **smoke.evaluate(raw, baseline_for(deployment, raw), dtype=dtype)}
        if out is not None:
            context.output.note(f"written: {_save(out, host, found)}")
        if not context.output.json:
            context.output.out.print(report.render(found))
            smoke.require(found)
        return 0 if found["verdict"] == "ok" else GateFailed.exit_code, found

    return each(context, "bench", hosts, one)


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
    path.write_bytes(json_bytes(found, indent=2))
    return path
