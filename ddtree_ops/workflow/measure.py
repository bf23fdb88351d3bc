"""``bench``: measure the deployed service from the host itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..attest.request import expectation, spec_of
from ..bench import library, report, smoke
from ..errors import GateFailed, UsageError
from ..inventory import Host, Inventory
from ..jsontext import json_bytes
from ..model import Deployment
from ..ui.progress import Steps
from .bench_plan import load_book
from .service import deployed
from .session import Outcome, each, facts_of, linked
from .steps import served_dtype

if TYPE_CHECKING:
    from ..cli import Context


def bench(
    context: Context, inventory: Inventory, hosts: tuple[Host, ...], given: Mapping[str, Any], out: Path | None
) -> int:
    """The smoke form: one arm, the running service; its control is the recorded baseline. Exit 8 unless it holds.

    Args:
        given: What the command line says, by key of ``playbooks/bench.yaml``; its ``smoke:`` has the rest.
    """
    book = load_book(inventory.beside)[0]
    smoked = {key: given[key] for key in ("count", "max_tokens") if key in given}
    load = msgspec.structs.replace(book.smoke, **smoked)
    concurrency = _one("concurrency", given.get("concurrency", load.concurrency))
    regime = _one("regime", given["regime"]) if "regime" in given else smoke_regime(book.regime)
    asked = _one("budget", given["budget"]) if "budget" in given else None
    if asked is not None and not isinstance(asked, int):
        raise UsageError("--budget auto starts servers of its own", next_step="leave --against-service out")
    own = library.from_file(Path(given["prompts"])) if given.get("prompts") else None

    def one(host: Host) -> Outcome:
        with linked(context, host) as link:
            facts = facts_of(link, host)
            deployment = deployed(facts, host)
            spec = spec_of(deployment)
            width = asked or spec.budget
            request = smoke.request(
                spec.ref(),
                max_tokens=load.max_tokens,
                prompts=load.count,
                regime=regime,
                own=own,
                concurrency=concurrency,
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


def smoke_regime(regimes: str | tuple[str, ...]) -> str:
    """The short form mixes its few prompts: of one regime where the playbook names one, else of all."""
    found = (regimes,) if isinstance(regimes, str) else regimes
    return found[0] if len(found) == 1 else "all"


def _one(name: str, value: Any) -> Any:
    """The one value that the smoke form takes where the arms take several."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(values) != 1:
        raise UsageError(f"--against-service takes one {name}", next_step=f"give one {name}, or leave it out")
    return values[0]


def _save(folder: Path, host: Host, found: Mapping[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{host.name}-{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_bytes(json_bytes(found, indent=2))
    return path
