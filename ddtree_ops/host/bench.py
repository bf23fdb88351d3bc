"""The smoke bench on the host itself: warm-up, a handful of prompts, raw rows.

It measures only a server that was proven to be ours first. Nothing is judged here: rows, counters and conditions go to
the controller, whose functions are pure and tested without a server.
"""

from __future__ import annotations

import threading
import time
from typing import List, Optional

from .attest import expected_of, server_info
from .budget import counters_of, set_budget, settings_of
from .greedy import Row, Sampling, ask, flush, prompts_of, record
from .identity import evidence
from .load import soak
from .ops import Params, Tx, op
from .protocol import Emit, HostError, verb
from .runner import Service, service_of

WARMUP_MOST = 4
WARMUP_AGREE = 0.2  # two runs in a row within this part of each other end the warm-up


class Smoke:
    """One smoke run against one server."""

    def __init__(self, params: Params, service: Service, emit: Emit) -> None:
        self._params = params
        self._service = service
        self._emit = emit
        self._client = service.client()
        self._sampling = Sampling(params)
        self._prompts = prompts_of(params)
        self._concurrency = max(1, int(params.get("concurrency") or 1))
        self._flush_failures: List[str] = []
        self._lock = threading.Lock()
        self._rows: List[Row] = []
        self._left = list(reversed(self._prompts))

    def run(self) -> Row:
        """Warm up, measure, and report everything that was seen."""
        before = server_info(self._service)
        warmup = self._warm_up()
        counters = counters_of(self._service)
        self._flush()
        started = time.monotonic()
        self._measure()
        seconds = time.monotonic() - started
        counted = self._settled_counters(counters)
        order = {prompt["id"]: index for index, prompt in enumerate(self._prompts)}
        return {
            "schema": "ddtree-smoke/1",
            "time": round(time.time(), 1),
            "seconds": round(seconds, 4),
            "concurrency": self._concurrency,
            "max_tokens": self._sampling.max_tokens,
            "silence": self._sampling.silence,
            "flush": "before each request" if self._concurrency == 1 else "once before the first request",
            "flush_failures": self._flush_failures[:3],
            "warmup": warmup,
            "requests": sorted(self._rows, key=lambda row: order[row["id"]]),
            "counters_before": counters,
            "counters_after": counted,
            "soak": self._soak(),
            "settings": settings_of(self._service),
            "server": before,
            "server_after": server_info(self._service),
        }

    def _soak(self) -> Optional[Row]:
        count = int(self._params.get("soak") or 0)
        return soak(self._client, self._prompts, count, self._sampling.silence, self._emit) if count else None

    def _flush(self) -> None:
        trouble = flush(self._client)
        if trouble:
            self._flush_failures.append(trouble)

    def _warm_up(self) -> List[Row]:
        """Discarded runs of the first prompt, until two in a row agree or there were enough."""
        rows: List[Row] = []
        while len(rows) < WARMUP_MOST:
            self._tell("warm-up %d" % (len(rows) + 1), 0)
            self._flush()
            row = ask(self._client, self._prompts[0], self._sampling)
            rows.append({key: row.get(key) for key in ("ok", "error", "seconds", "completion_tokens", "ttft")})
            if not row["ok"]:
                break
            if len(rows) > 1 and abs(rows[-1]["seconds"] / max(rows[-2]["seconds"], 1e-9) - 1.0) <= WARMUP_AGREE:
                break
        return rows

    def _measure(self) -> None:
        if self._concurrency == 1:
            while self._left:
                self._flush()
                self._one()
            return
        threads = [threading.Thread(target=self._drain, daemon=True) for _ in range(self._concurrency)]
        for thread in threads:
            thread.start()
        shown = 0
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
            shown = self._show(shown)
        self._show(shown)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._left:
                    return
                prompt = self._left.pop()
            row = ask(self._client, prompt, self._sampling)
            with self._lock:
                self._rows.append(row)

    def _one(self) -> None:
        row = ask(self._client, self._left.pop(), self._sampling)
        self._rows.append(row)
        self._show(len(self._rows) - 1)

    def _show(self, shown: int) -> int:
        with self._lock:
            rows = self._rows[shown:]
        for row in rows:
            shown += 1
            self._tell(describe(row), shown)
            live = {key: value for key, value in row.items() if key not in ("ids", "top")}
            self._emit({"kind": "request", "row": live})
        return shown

    def _tell(self, text: str, done: int) -> None:
        self._emit({"kind": "progress", "step": "smoke", "text": text, "done": done, "total": len(self._prompts)})

    def _settled_counters(self, before: Row) -> Row:
        """Counters after the run; a beacon follows its process by about a second."""
        deadline = time.monotonic() + 4.0
        found = counters_of(self._service)
        while time.monotonic() < deadline:
            time.sleep(1.1)
            again = counters_of(self._service)
            if again == found and again != before:
                break
            found = again
        return found


def describe(row: Row) -> str:
    """One request for the progress line."""
    if not row["ok"]:
        return "%s failed: %s" % (row["id"], row["error"])
    rate = row["completion_tokens"] / max(row["seconds"], 1e-9)
    steps = row["verify_ct"]
    per_step = ", %.2f tokens per verify step" % (row["completion_tokens"] / steps) if steps else ""
    return "%s: %d tokens, %.1f tokens/s%s" % (row["id"], row["completion_tokens"], rate, per_step)


# -- verbs and operations --


def smoke(params: Params, emit: Emit) -> Params:
    """Measure ``service``; the parameters of ``smoke`` and ``bench_smoke``.

    ``prompts`` (id, kind, text), ``max_tokens``, ``concurrency``, ``silence``; ``soak`` (so many short requests after
    the measurement: does it go on answering?); ``budget`` (a smaller one is set for
    this run and taken back after it); ``identity`` (the parameters of ``attest``: the proof that is stored).
    """
    service = service_of(params)
    proof: Row = {}
    if params.get("identity"):
        proof = evidence(service, expected_of(params["identity"]), emit)
        if not proof["ok"]:
            raise HostError(
                "identity",
                "not measured, the service is not what was deployed: %s" % proof["findings"][0],
                next="ddtree-ops verify",
                exit=9,
                details={"evidence": proof},
            )
    budget = int(params.get("budget") or 0)
    captured = int(settings_of(service).get("budget") or 0)
    lowered = bool(budget and captured and budget != captured)
    if lowered:
        set_budget(service, budget)
    try:
        result = Smoke(params, service, emit).run()
    finally:
        if lowered:
            set_budget(service, captured)
    return dict(result, budget=budget or captured, captured_budget=captured, identity=proof)


@verb("bench_smoke")
def smoke_verb(params: Params, emit: Emit) -> Params:
    """The smoke bench outside of a transaction."""
    return smoke(params, emit)


@op("smoke", must_hold=False)
def smoke_op(tx: Tx, params: Params) -> Params:
    """The smoke bench as a step of a deploy."""
    return smoke(params, tx.emit)


@verb("greedy_record")
def greedy_verb(params: Params, emit: Emit) -> Params:
    """See :func:`.greedy.record`."""
    return record(params, service_of(params), emit)


@op("greedy_record", must_hold=False)
def greedy_op(tx: Tx, params: Params) -> Params:
    """The answers of the old server, or of ours without speculation, before DDTREE is started."""
    return record(params, service_of(params), tx.emit)
