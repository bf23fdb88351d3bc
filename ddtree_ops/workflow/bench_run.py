"""The arms of a bench on one host: start, prove, compare, warm, measure, stop; inside an open transaction.

Who opens the transaction decides how it ends: ``ddtree-ops bench`` always undoes it, which brings the user's service
back; a deploy with a gate goes on in its own. Everything here that changes the host is an operation that recorded its
way back first, so a lost controller or a power cut ends the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..applying.transaction import Transaction
from ..bench import arms, costs, load
from ..bench.intervals import Warmup
from ..bench.records import Prompt
from ..bench.render.trees import TEXTS, tokens_of
from ..bench.results import Cost, Folder, RoundRow
from ..bench.schedule import MIXED, Block, Round, next_warmup
from ..bench.schema import RoundKind
from ..bench.summarise import rate
from ..inventory import Host
from ..remote.channel import Link
from ..service import units
from ..service.settings import ServiceSpec
from .bench_plan import Wanted
from .bench_progress import Bars

STOP_TIMEOUT = 300.0
IDENTITY_TIMEOUT = 120.0
FLOOR_CONCURRENCY = 4  # of the plain rounds that identity takes as its floor, where the plan asks for 1 alone
PROMPTS_FILE = "prompts.json"  # with the token ids that were sent
WARM_PROMPTS = 4  # at least; twice the concurrency where that is more


class Running(msgspec.Struct, frozen=True):
    """An arm that serves."""

    arm: str
    start: int
    spec: arms.ArmSpec
    why: tuple[str, ...]  # what makes its rounds INVALID: arguments that differ
    notes: tuple[str, ...]
    settings: dict[str, Any]

    @property
    def key(self) -> tuple[str, int]:
        """The start of an arm."""
        return (self.arm, self.start)

    @property
    def ref(self) -> dict[str, Any]:
        """The ``service`` object for the host."""
        return self.spec.ref()


class Bench:
    """Drives the arms; ``folder`` keeps every round as soon as it is finished.

    ``proof``: what disk and processes of each arm must be (``attest.request.expectation``).
    """

    def __init__(
        self,
        link: Link,
        tx: Transaction,
        host: Host,
        spec: ServiceSpec,
        proof: Mapping[str, Any],
        wanted: Wanted,
        folder: Folder,
        bars: Bars,
    ) -> None:
        self.link = link
        self.tx = tx
        self.host = host
        self.spec = spec
        self.proof = proof
        self.wanted = wanted
        self.folder = folder
        self.bars = bars
        self.costs: tuple[Cost, ...] = ()
        self.reference: dict[str, Any] | None = None  # effective arguments that the arms are compared with
        self.references: dict[str, Any] = {}  # greedy answers of plain decoding, with gaps
        self.notes: list[str] = []
        self._baseline: dict[str, int] | None = None
        self.prompts: dict[str, tuple[Prompt, ...]] = dict(wanted.prompts)
        self._resolved = False
        self._port = 0
        self._counters: dict[tuple[str, int], dict[str, Any]] = {}  # as last read, per start

    # -- the host before and after --

    def look(self) -> bool:
        """Whether the user's service runs; its effective arguments are the reference of all comparisons."""
        effective = self.folder.manifest.conditions.effective_args
        self.reference = effective.get("deployed") or effective.get("ddtree")
        state = self.link.call("service_status", {"service": self.spec.ref()}, timeout=60.0)
        running = bool(state["state"]["pids"])
        if self.reference is None and dict(state.get("health") or {}).get("ok"):
            found = self.link.call("arm_facts", {"service": self.spec.ref()}, timeout=60.0)
            if str(found["arguments"].get("speculative_algorithm") or "").upper() == "DDTREE":
                self._remember("deployed", found["arguments"])
                self.reference = found["arguments"]
        return running

    def make_room(self, *, for_good: bool = False) -> None:
        """Stop the user's service (brought back by the undo, unless ``for_good``) and measure the idle GPU."""
        with self.bars.step("stop", f"Stop {self.spec.unit}"):
            request = {"service": self.spec.ref(), "for_good": for_good}
            self._do("service_stop", request, timeout=STOP_TIMEOUT)
            self._baseline = self._settle_gpu(None)
        self._port = int(self.link.call("free_port", {"near": self.spec.port}, timeout=30.0)["port"])

    def _settle_gpu(self, baseline: Mapping[str, int] | None) -> dict[str, int] | None:
        request = {
            "gpus": list(self.spec.gpus),
            "baseline": baseline,
            "tolerance_mib": self.wanted.gpu_tolerance_mib,
            "timeout": self.wanted.gpu_timeout,
        }
        found: dict[str, int] | None = self._do("gpu_settle", request, timeout=None)["gpus"]
        return found

    # -- one start of one arm --

    def run(self, blocks: Sequence[Block]) -> None:
        """Measure what is left of the schedule."""
        self.bars.plan(blocks)
        for block in blocks:
            running = self.start(block.arm, block.start, self._budgets(block))
            with self.bars.block(block.arm, block.start):
                self._serve(running, block)
            self.stop(running)

    def _budgets(self, block: Block) -> tuple[int, ...]:
        """All budgets of the plan, also when only some are left: the same server as before a cut."""
        return tuple(one for one in self.wanted.plan.budgets if isinstance(one, int)) if block.arm == "ddtree" else ()

    def start(self, arm: str, number: int, budgets: Sequence[int] = (), trace_rounds: int | None = None) -> Running:
        """Start an arm, wait until it serves, prove what it runs, read its arguments back."""
        pins = arms.pins(self.reference or {}, self.spec.extra_args, self.wanted.may_differ)
        rounds = self.wanted.trace_rounds if trace_rounds is None else trace_rounds
        spec = arms.arm_spec(
            self.spec, arm, port=self._port, budgets=budgets, pins=pins, trace_rounds=rounds if arm == "ddtree" else 0
        )
        service = spec.ref()
        title = f"Start {arms.TITLES[arm]}" + (f", start {number}" if number else "")
        with self.bars.step(f"start {arm}", title):
            self._do("arm_install", {"service": service, "text": units.service_unit(spec).text})
            started = self._do("service_start", {"service": service, "first": True}, timeout=STOP_TIMEOUT)
            limits = {"timeout": self.host.service.readiness_timeout}
            self._do("wait_ready", {"service": service, "start": started, **limits}, timeout=None)
            proof = {**self.proof, "service": service, "algorithm": spec.algorithm, "applied_at": 0.0}
            self._do("identity", proof, timeout=IDENTITY_TIMEOUT)
            facts = self.link.call("arm_facts", {"service": service}, timeout=60.0)
            self._resolve_prompts(service)
        return self._compared(arm, number, spec, facts)

    def _resolve_prompts(self, service: Mapping[str, Any]) -> None:
        """Token ids by the first server's tokenizer and chat template: every arm and every start gets the same."""
        if self._resolved:
            return
        path = self.folder.path / PROMPTS_FILE
        if path.exists():
            self.prompts = msgspec.json.decode(path.read_bytes(), type=dict[str, tuple[Prompt, ...]])
        else:
            for regime, prompts in self.prompts.items():
                self.prompts[regime], note = load.resolved(self.link, {"service": dict(service)}, prompts)
                if note and note not in self.notes:
                    self.notes.append(note)
            self.folder.write(PROMPTS_FILE, msgspec.json.encode(self.prompts))
        self._resolved = True

    def _compared(self, arm: str, number: int, spec: arms.ArmSpec, facts: Mapping[str, Any]) -> Running:
        effective = dict(facts["arguments"])
        self._remember(arm, effective)
        if self.reference is None:
            self.reference = effective
        different = arms.differences(self.reference, effective, self.wanted.may_differ)
        if arm == "ddtree":
            self.costs = costs.from_settings(facts["settings"]) or self.costs
        return Running(
            arm,
            number,
            spec,
            tuple(f"its server runs with another {one}" for one in different),
            arms.allowed_differences(self.reference, effective, self.wanted.may_differ),
            dict(facts["settings"]),
        )

    def _remember(self, arm: str, effective: Mapping[str, Any]) -> None:
        """Into the manifest; what only names a socket or a time is kept, too: it is what the server said."""
        manifest = self.folder.manifest
        known = {**manifest.conditions.effective_args, arm: dict(effective)}
        conditions = msgspec.structs.replace(manifest.conditions, effective_args=known)
        self.folder.manifest = msgspec.structs.replace(manifest, conditions=conditions)
        self.folder.save("manifest", self.folder.manifest)

    def stop(self, running: Running) -> None:
        """Stop an arm, forget it, and wait until its GPU memory is back; after an error the undo does it."""
        with self.bars.step(f"stop {running.arm}", f"Stop {arms.TITLES[running.arm]}"):
            self._keep_trace(running)
            self._do("service_stop", {"service": running.ref, "for_good": True}, timeout=STOP_TIMEOUT)
            self._do("arm_forget", {"service": running.ref})
            self._settle_gpu(self._baseline)

    # -- rounds --

    def _serve(self, running: Running, block: Block) -> None:
        for budget, concurrency in block.settings:
            self.warm(running, budget, concurrency)
        if block.arm == "ar" and not self.references and not self.wanted.plan.temperature:
            self._record_reference(running)
            self._record_floor(running)
        self._read_counters(running)
        for one in block.rounds:
            self.set_budget(running, one.budget)
            self.folder.append(self.measure(running, one))
            self.bars.advance(block.arm)

    def warm(self, running: Running, budget: Any, concurrency: int) -> None:
        """Rounds until two in a row agree; all of them are kept as rows, and judged with the cells."""
        plan = self.wanted.plan
        self.set_budget(running, budget)
        rule = Warmup(plan.agree, plan.warmup_most)
        number = next_warmup(self.folder.rows(), running.arm, running.start, budget, concurrency)
        while not rule.done:
            one = Round(
                arm=running.arm,
                start=running.start,
                round=number,
                regime=MIXED,
                concurrency=concurrency,
                temperature=plan.temperature,
                budget=budget,
            )
            row = self.measure(running, one, self._warm_prompts(concurrency), kind="warmup")
            self.folder.append(row)
            rule.add(rate(row))
            self.bars.warm(running.arm, len(rule.values))
            number += 1

    def _warm_prompts(self, concurrency: int) -> list[Prompt]:
        """Prompts of all regimes in turn, the same ones each time."""
        return mixed(self.prompts.values())[: max(WARM_PROMPTS, 2 * concurrency)]

    def measure(
        self,
        running: Running,
        one: Round,
        prompts: Sequence[Prompt] | None = None,
        *,
        kind: RoundKind = "measured",
    ) -> RoundRow:
        """One round of load, as the row that it becomes. A round that is cut leaves a row of what had ended by then."""
        row = load.measure(
            self.link,
            {"service": running.ref},
            load.Setting(**msgspec.structs.asdict(one), kind=kind),
            self.prompts[one.regime] if prompts is None else prompts,
            self.wanted.plan,
            on_event=self.bars.event,
            cut=self.folder.append,
            more={"itl": kind == "measured", "ids": kind != "warmup"},
        )
        self.tx.check_interrupt()
        steps = sum(request.verify_ct or 0 for request in row.requests)
        delta = self._counted(running, steps) if kind == "measured" else None
        why, notes = (*running.why, *row.why), (*running.notes, *self.notes, *row.notes)
        return msgspec.structs.replace(
            row, counters_delta=delta, why=why, notes=notes, verdict="invalid" if why else "ok"
        )

    def _counted(self, running: Running, steps: int) -> dict[str, Any] | None:
        """What the payload counted since the last look at this server; None where it does not count."""
        before = self._counters.get(running.key)
        if running.arm != "ddtree" or not before:
            return None
        found = self._read_counters(running, since=before, steps=steps)
        delta: dict[str, Any] = arms.counters_between(before, found)
        return delta

    def _read_counters(self, running: Running, **more: Any) -> dict[str, Any]:
        """Read, and remember as the state that the next round begins with: between two rounds nobody decodes."""
        if running.arm != "ddtree":
            return {}
        answer = self.link.call("arm_counters", {"service": running.ref, **more}, timeout=60.0)
        found: dict[str, Any] = answer["counters"]
        self._counters[running.key] = found
        return found

    def set_budget(self, running: Running, budget: Any) -> None:
        """Of a running DDTREE arm, within what it was started for; other arms have none."""
        if running.arm == "ddtree" and budget is not None:
            self.link.call("set_budget", {"service": running.ref, "budget": budget}, timeout=60.0)

    def _record_reference(self, running: Running) -> None:
        """Greedy answers of plain decoding with the gaps between its best candidates: what identity is judged by."""
        with self.bars.step("reference", "Record plain decoding's greedy answers"):
            request = {
                "service": running.ref,
                "prompts": [one.request(0) for items in self.prompts.values() for one in items],
                "max_tokens": self.wanted.plan.max_tokens,
                "silence": self.wanted.plan.silence_s,
            }
            self.references = self._do("greedy_record", request, timeout=None)
            self.folder.write("reference.json", msgspec.json.encode(self.references))

    def _record_floor(self, running: Running) -> None:
        """Plain decoding at another batch shape, where the plan has none: what arithmetic alone does to answers."""
        if max(self.wanted.plan.concurrency) > 1:
            return
        with self.bars.step("floor", "Plain decoding again, in another batch shape"):
            one = Round(arm="ar", start=running.start, round=0, regime=MIXED, concurrency=FLOOR_CONCURRENCY)
            self.folder.append(self.measure(running, one, mixed(self.prompts.values()), kind="floor"))

    # -- traces --

    def paths(self, running: Running, offset: int = 0) -> tuple[list[list[int]], int]:
        """Accepted paths that the arm has traced since ``offset``, and the next offset."""
        found = self.link.call("arm_paths", {"service": running.ref, "offset": offset}, timeout=120.0)
        return list(found["accepted"]), int(found["offset"])

    def _keep_trace(self, running: Running) -> None:
        if running.arm != "ddtree" or "DDTREE_TRACE" not in running.spec.environment:
            return
        text = self.link.call("arm_trace", {"service": running.ref}, timeout=120.0)["text"]
        if text:
            label = f"ddtree-start{running.start}" if running.start else "ddtree-probe"
            self.folder.write(f"traces/{label}.jsonl", text.encode())
            self._keep_texts(running)

    def _keep_texts(self, running: Running) -> None:
        """What the traced tokens say, for the report's drawing; without it, it shows token ids."""
        ids = sorted(tokens_of(self.folder.path))
        found: list[str] = self.link.call("load_texts", {"service": running.ref, "ids": ids}, timeout=120.0)["texts"]
        if found:
            texts = dict(zip(map(str, ids), found, strict=True))
            self.folder.write(f"traces/{TEXTS}", msgspec.json.encode(texts))

    def _do(self, op: str, params: Mapping[str, Any], timeout: float | None = 120.0) -> dict[str, Any]:
        return self.tx.do(op, params, timeout=timeout, on_event=self.bars.event)


def mixed(items: Iterable[Sequence[Any]]) -> list[Any]:
    """One after the other from each list."""
    lists = list(items)
    return [one[index] for index in range(max(map(len, lists), default=0)) for one in lists if index < len(one)]
