"""The gate of a deploy: the arms are measured inside the deploy's own transaction, before the service is let stay.

A gate that fails is a failed health check: everything is undone, and the old service serves again (exit 6).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..applying.transaction import Transaction
from ..bench import gates as gating
from ..bench import schedule
from ..bench.results import Folder, create
from ..errors import as_error
from ..inventory import Host
from ..model import Facts
from ..remote.channel import Link
from ..service.settings import ServiceSpec
from . import bench_finish, bench_plan
from .bench_folder import manifest
from .bench_progress import Bars
from .bench_run import Bench


class GateJob:
    """What a deploy's gate needs of the run."""

    def __init__(
        self,
        link: Link,
        tx: Transaction,
        host: Host,
        facts: Facts,
        spec: ServiceSpec,
        proof: Mapping[str, Any],
        dtype: str,
        bars: Bars,
        beside: Path | None = None,
    ) -> None:
        self.link = link
        self.tx = tx
        self.host = host
        self.facts = facts
        self.spec = spec
        self.proof = proof
        self.dtype = dtype or "bfloat16"
        self.bars = bars
        self.beside = beside

    def run(self, file: Path, again: Callable[[], None]) -> dict[str, Any]:
        """Measure, judge, and start the service ``again``; the gates and the folder with every figure.

        Raises:
            GateFailed: a gate failed, or greedy answers differ at a wide gap.
        """
        wanted, book = planned(file, self.spec.budget, self.beside)
        folder = self._folder(wanted)
        driver = Bench(self.link, self.tx, self.host, self.spec, self.proof, wanted, folder, self.bars)
        driver.look()
        driver.make_room(for_good=True)
        driver.run(schedule.schedule(wanted.plan))
        bench_finish.conclude(folder, dtype=self.dtype, costs=driver.costs)
        found = bench_finish.judge_gates(folder, book, self.spec.budget)
        try:
            bench_finish.reports(folder)
        except Exception as error:  # no reason to lose a deploy: the figures are in the folder
            self.bars.say(f"no report: {as_error(error).what}")
        self.bars.say(f"gates: {folder.path}")
        gating.require(found)
        again()
        return {"folder": str(folder.path), **msgspec.to_builtins(found)}

    def _folder(self, wanted: bench_plan.Wanted) -> Folder:
        spec = self.spec
        found = manifest(self.link, self.facts, self.host.name, spec, wanted, build_id=spec.build_id, dtype=self.dtype)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        return create(Path("bench-results") / f"{self.host.name}-gate-{stamp}", found)


def planned(file: Path, served: int, beside: Path | None) -> tuple[bench_plan.Wanted, gating.GateBook]:
    """What a gate measures: ``playbooks/bench.yaml`` at the budget that would be served, and others that it lists.

    Raises:
        ConfigError: a mistake in either file, or gates that such a measurement cannot decide.
    """
    wanted = bench_plan.wanted(beside, {"budget": served})
    listed = [one for one in bench_plan.wanted(beside, {}).plan.budgets if one != served]
    if len(listed) > 1:
        wanted = wanted.with_budgets([served, *listed])
    book = bench_plan.gates_for(file, wanted, served)
    assert book is not None
    return wanted, book
