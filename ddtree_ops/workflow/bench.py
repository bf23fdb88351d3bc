"""``ddtree-ops bench``: arms side by side on one host, the user's service brought back at the end, whatever happens."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..applying.transaction import Transaction
from ..attest.request import expectation, spec_of
from ..bench import schedule
from ..bench.gates import GateBook, require
from ..bench.results import Folder, Manifest, create, open_folder
from ..errors import ConfigError, DdtreeError, GateFailed, Interrupted, TransportError, as_error
from ..inventory import Host
from ..model import Deployment, Facts, Value
from ..planning.layout import state_root
from ..remote.channel import Link
from ..service.settings import ServiceSpec
from . import bench_finish, bench_plan, bench_show, measure
from .bench_auto import choose
from .bench_folder import compared, manifest
from .bench_plan import Wanted
from .bench_progress import Bars
from .bench_run import Bench
from .service import deployed
from .session import Outcome, consent, each, facts_of, hosts_of, linked
from .steps import served_dtype

if TYPE_CHECKING:
    from ..cli import Context


class Options(Value, frozen=True, kw_only=True):
    """The command line; ``given`` by key of ``playbooks/bench.yaml``."""

    given: dict[str, Any] = msgspec.field(default_factory=dict)
    out: Path | None = None
    resume: Path | None = None
    gate: Path | None = None
    against_service: bool = False
    yes: bool = False


def given(load: Mapping[str, Any], trace: bool) -> dict[str, Any]:
    """The command line's words as values of the playbook's keys. Raises UsageError."""
    found = {name: value for name, value in load.items() if value is not None}
    readers: dict[str, Callable[[str], Any]] = {
        "budget": bench_plan.budget_of,
        "concurrency": lambda text: bench_plan.numbers(text, "--concurrency"),
        "arms": bench_plan.words,
        "regime": bench_plan.words,
    }
    found.update({name: read(found[name]) for name, read in readers.items() if name in found})
    if "prompts" in found:
        found["prompts"] = str(found["prompts"])
    if trace:
        found["trace_rounds"] = bench_plan.TRACE_ROUNDS
    return found


def bench(context: Context, options: Options) -> int:
    """Measure the arms; exit 8 when a gate fails or what was measured is INVALID."""
    inventory, hosts = hosts_of(context)
    if options.against_service:
        return measure.bench(context, inventory, hosts, options.given, options.out)
    base = _wish_of(options.resume) if options.resume is not None else {}
    wanted = bench_plan.wanted(inventory.beside, {**base, **options.given})

    def one(host: Host) -> Outcome:
        several = len(hosts) > 1
        out = options.out / host.name if options.out is not None and several else options.out
        with linked(context, host) as link:
            job = Job(context, link, host, wanted, msgspec.structs.replace(options, out=out))
            return job.run()

    return each(context, "bench", hosts, one)


def _wish_of(path: Path) -> dict[str, Any]:
    wish = open_folder(path).manifest.conditions.other.get("wish")
    return dict(wish) if isinstance(wish, Mapping) else {}


class Job:
    """One bench of one host."""

    def __init__(self, context: Context, link: Link, host: Host, wanted: Wanted, options: Options) -> None:
        self.context = context
        self.link = link
        self.host = host
        self.wanted = wanted
        self.options = options
        self.facts: Facts = facts_of(link, host)
        self.deployment: Deployment = deployed(self.facts, host)
        self.spec: ServiceSpec = spec_of(self.deployment)
        self.dtype = served_dtype(self.facts, self.spec) or "bfloat16"

    def run(self) -> Outcome:
        """Ask, measure, bring back, conclude."""
        book = bench_plan.gates_for(self._gate_file(), self.wanted, self.spec.budget)
        now = self._manifest()
        folder = self._resumed(open_folder(self.options.resume), now) if self.options.resume is not None else None
        started = time.monotonic()
        if folder is None or schedule.remaining(schedule.schedule(self.wanted.plan), folder.rows()):
            consent(self.context, self.options.yes, self._question())
            folder = folder or create(self.options.out or self._default_folder(), now)
            output = self.context.output
            output.detail(1, f"results: {folder.path}")
            bars = Bars(output, self.host.name, silent=output.json and output.verbosity < 1)
            with bars:
                self._measure(folder, bars)
        found = self._conclude(folder, book)
        found["seconds"] = round(time.monotonic() - started, 1)
        failure = self._failure(folder, book)
        if failure is None:
            return 0, found
        if not self.context.output.json:
            raise failure
        return failure.exit_code, {**found, "failure": failure.as_dict()}

    def _gate_file(self) -> Path | None:
        if self.options.gate is not None:
            return self.options.gate
        return Path(self.wanted.gate) if self.wanted.gate else None

    def _question(self) -> str:
        plan = self.wanted.plan
        starts = len(plan.arms) * plan.starts + (1 if self.wanted.auto else 0)
        return (
            f"Stop {self.spec.unit} on {self.host.name} for {starts} server starts of {', '.join(plan.arms)}, "
            "and start it again at the end?"
        )

    # -- the folder --

    def _manifest(self) -> Manifest:
        """What the result folder of this run would begin with."""
        return manifest(
            self.link,
            self.facts,
            self.host.name,
            self.spec,
            self.wanted,
            build_id=self.deployment.build_id,
            dtype=self.dtype,
        )

    def _default_folder(self) -> Path:
        return Path("bench-results") / f"{self.host.name}-{time.strftime('%Y%m%dT%H%M%S')}"

    def _resumed(self, folder: Folder, now: Manifest) -> Folder:
        before = folder.manifest
        plan = self.wanted.plan
        if self.wanted.auto:  # the budgets that were found are in the folder
            plan = msgspec.structs.replace(plan, budgets=before.plan.budgets)
            self.wanted = msgspec.structs.replace(self.wanted, plan=plan)
        changed = schedule.changed(before.plan, plan)
        if changed:
            raise ConfigError(
                f"this folder was begun with another plan: {changed[0]}",
                where=str(folder.path),
                why="; ".join(changed[1:]),
                next_step=f"ddtree-ops bench --resume {folder.path} without these options, or another folder: --out",
            )
        bench_plan.check_conditions(compared(before), compared(now), folder.path)
        return folder

    # -- measuring --

    def _measure(self, folder: Folder, bars: Bars) -> None:
        tx = self._transaction()
        with bars.step("snapshot", "Lock the host"):
            tx.begin(on_event=bars.event)
        try:
            was_running = self._arms(tx, folder, bars)
            now = float(self.link.call("ping", timeout=30.0)["time"])
            self._bring_back(tx, bars, "the bench is finished")
        except BaseException as error:
            self._failed(tx, folder, bars, error)
            raise
        finally:
            tx.release()
        if was_running:
            self._wait(bars, now)

    def _transaction(self) -> Transaction:
        systemd = self.spec.init == "systemd"
        return Transaction(
            self.link,
            state_root=state_root(self.host, self.facts),
            message=f"bench of {', '.join(self.wanted.plan.arms)}",
            scope={"unit_paths": [self.spec.unit_path], "units": [self.spec.unit] if systemd else []},
            tool_version=__version__,
            tell=self.context.output.say,
        )

    def _arms(self, tx: Transaction, folder: Folder, bars: Bars) -> bool:
        """Everything between the stop of the service and its return; whether it had been running."""
        proof = expectation(self.deployment)
        driver = Bench(self.link, tx, self.host, self.spec, proof, self.wanted, folder, bars)
        running = driver.look()
        driver.make_room()
        if self.wanted.auto:
            self.wanted = choose(driver)
        blocks = schedule.remaining(schedule.schedule(self.wanted.plan), folder.rows())
        driver.run(blocks)
        if driver.costs:
            folder.save("costs", driver.costs)
        return running

    def _bring_back(self, tx: Transaction, bars: Bars, reason: str) -> None:
        with bars.step("restore", f"Bring {self.spec.unit} back and prove it"):
            tx.abort(reason, on_event=bars.event)

    def _wait(self, bars: Bars, since: float) -> None:
        """Until the user's service serves again; it was started by the undo, after ``since`` by the host's clock."""
        start = {"mark": f"@{since:.0f}" if self.spec.init == "systemd" else "", "started": since, "restarts": 0}
        with bars.step("ready", f"Wait until {self.spec.unit} serves again"):
            request = {"service": self.spec.ref(), "start": start, "timeout": self.host.service.readiness_timeout}
            self.link.call("wait_ready", request, timeout=None, on_event=bars.event)

    def _failed(self, tx: Transaction, folder: Folder, bars: Bars, error: BaseException) -> None:
        """Take everything back after a failure, and say how to go on; what was measured is kept."""
        with contextlib.suppress(Exception):  # the rows are what counts, and the first error is what must be told
            bench_finish.conclude(folder, dtype=self.dtype, costs=folder.costs)
        if isinstance(error, TransportError) or (isinstance(error, Interrupted) and error.reason == "stopped"):
            self._advise(error, folder)
            return
        if isinstance(error, KeyboardInterrupt):
            raise tx.stopped() from error
        if not tx.is_open:
            return
        try:
            self._bring_back(tx, bars, f"failed: {error}")
        except TransportError as lost:
            self._advise(lost, folder)
            raise lost from error
        if isinstance(error, DdtreeError):
            self._advise(error, folder)

    def _advise(self, error: DdtreeError, folder: Folder) -> None:
        rounds = sum(row.kind == "measured" for row in folder.rows())
        back = (
            f"the host brings {self.spec.unit} back by itself"
            if isinstance(error, TransportError)
            else f"{self.spec.unit} is as before"
        )
        error.why = "; ".join(
            part for part in (error.why, f"{back}; {rounds} rounds are kept in {folder.path}") if part
        )
        again = f"ddtree-ops bench --resume {folder.path} goes on where it stopped"
        known = "" if isinstance(error, Interrupted) and error.reason != "stopped" else error.next_step
        error.next_step = f"{known}; {again}" if known else again

    # -- the end --

    def _conclude(self, folder: Folder, book: GateBook | None) -> dict[str, Any]:
        from ..bench.auto import recommend

        costs = folder.costs
        summary = bench_finish.conclude(folder, dtype=self.dtype, costs=costs)
        if folder.auto is not None:
            folder.save("auto", recommend(folder.auto.predictions, summary.cells, _source(folder)))
        if book is not None:
            bench_finish.judge_gates(folder, book, self.spec.budget)
        try:
            bench_finish.reports(folder)
        except Exception as error:  # figures are safe; a page that cannot be drawn is no reason to lose them
            self.context.output.note(f"no report: {as_error(error).what}", style="yellow")
        if not self.context.output.json:
            bench_show.show(self.context.output.out, folder)
            self.context.output.note(f"written: {folder.path}")
        return {"host": self.host.name, "verdict": summary.verdict, **folder.document()}

    def _failure(self, folder: Folder, book: GateBook | None) -> GateFailed | None:
        """Why this is exit 8: a gate first, then what is INVALID."""
        try:
            if book is not None and folder.gates is not None:
                require(folder.gates)
            bench_finish.require_valid(folder)
        except GateFailed as failure:
            return failure
        return None


def _source(folder: Folder) -> str:
    found = folder.auto
    lines = [line.removeprefix("costs: ") for line in found.text if line.startswith("costs: ")] if found else []
    return lines[0] if lines else "short runs"
