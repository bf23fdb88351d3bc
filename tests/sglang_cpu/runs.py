"""What a plain server and DDTREE servers are asked, once per test session; the tests look at it from different sides.

One server runs at a time. The plain one decodes without overlap scheduling: with it, SGLang's penalties lag a token.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels"))
from ddtree.tree import trace

from tests.sglang_cpu.asking import BATCHES, CONTEXT, PROMPTS, TOKENS, Question, questions
from tests.sglang_cpu.servers import Environment, Server, serving

Answers = list[dict[str, Any]]
PAIR = Path(__file__).resolve().parents[1] / "models" / "pytiny"
BUDGET, LOWERED, BLOCK = 16, 4, 16
SLOTS = 1400
"""So few KV slots that a batch of twelve has to give some back, and enough to keep the prompts."""
SEEDED: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 40, "ignore_eos": True, "top_p": 0.95}
REFUSED: dict[str, dict[str, Any]] = {
    "budget": {"sampling_params": {"max_new_tokens": 4, "custom_params": {"ddtree": {"budget": BUDGET + 1}}}},
    "seed": {"sampling_params": {"max_new_tokens": 4, "sampling_seed": 1 << 63}},
}
LOGPROBS = Question(
    PROMPTS[:4],
    [{"max_new_tokens": 30, "ignore_eos": True, **more} for more in ({}, {"presence_penalty": 0.5}, {}, {})],
    {
        "return_logprob": [True, True, False, True],
        "top_logprobs_num": [3, 0, 0, 5],
        "token_ids_logprob": [[5, 6]] * 4,
        "logprob_start_len": [0, -1, -1, -1],
    },
)
COMPLETION = {"model": "pytiny", "prompt": PROMPTS[1], "max_tokens": 16, "temperature": 0, "logprobs": 3}
CHAT = {
    "model": "pytiny", "messages": [{"role": "user", "content": "def f(x):"}], "max_tokens": 16, "temperature": 0,
    "logprobs": True, "top_logprobs": 2,
}  # fmt: skip


@dataclass
class PlainRun:
    """What the plain server answered."""

    batches: Answers = field(default_factory=list)
    questions: dict[str, Question] = field(default_factory=dict)
    answers: dict[str, Answers] = field(default_factory=dict)
    logprobs: Answers = field(default_factory=list)
    completion: dict[str, Any] = field(default_factory=dict)
    chat: dict[str, Any] = field(default_factory=dict)


@dataclass
class DDTreeRun(PlainRun):
    """What one DDTREE server did."""

    rounds: list[Answers] = field(default_factory=list)  # cold, then with prefix-cache hits
    lowered: Answers = field(default_factory=list)  # after control.json
    chained: Answers = field(default_factory=list)  # after control.json asked for chains
    sampled: Answers = field(default_factory=list)  # temperature 0.7, twice the same prompts
    seeded: dict[str, Answers] = field(default_factory=dict)  # the same requests in different company
    aborted: Answers = field(default_factory=list)
    after_abort: Answers = field(default_factory=list)
    refusals: dict[str, tuple[int, Any]] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)  # after the two rounds
    counters_lowered: dict[str, Any] = field(default_factory=dict)
    counters_chain: dict[str, Any] = field(default_factory=dict)  # what the chains added
    counters_end: dict[str, Any] = field(default_factory=dict)
    beacons: list[dict[str, Any]] = field(default_factory=list)
    metrics: str = ""  # SGLang's /metrics, at the end
    info: dict[str, Any] = field(default_factory=dict)  # its /server_info
    trace: list[trace.TraceRound] = field(default_factory=list)
    trace_file: Path = Path()

    def retracted(self) -> set[str]:
        """Return the names of requests that had to give their memory back on the way."""
        answers = [one for some in (*self.answers.values(), *self.seeded.values(), self.aborted) for one in some]
        return {one["meta_info"]["id"] for one in answers if one["meta_info"]["num_retractions"]}


def run_plain(environment: Environment, work: Path) -> PlainRun:
    """Ask the unmodified server without speculation."""
    found = PlainRun()
    flags = ("--disable-overlap-schedule", "--context-length", str(CONTEXT), "--max-total-tokens", "8192")
    with serving(environment, PAIR / "target", work / "log", *flags, TORCHDYNAMO_DISABLE="1") as server:
        found.batches = _ask_all(server)
        found.questions = questions(found.batches)
        found.answers = {name: one.ask(server, with_gaps=True) for name, one in found.questions.items()}
        _ask_logprobs(server, found)
    return found


def run_ddtree(environment: Environment, tree: Path, plain: PlainRun, work: Path, overlap: bool) -> DDTreeRun:
    """Ask a DDTREE server the same, and what only it can be asked."""
    run_dir = work / "run"
    run_dir.mkdir()
    found = DDTreeRun(questions=plain.questions)
    options = [] if overlap else ["--disable-overlap-schedule"]
    with serving(
        environment, PAIR / "target", work / "log",
        "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", PAIR / "draft",
        "--context-length", str(CONTEXT), "--max-total-tokens", str(SLOTS), "--schedule-conservativeness", "0.05",
        "--enable-metrics", *options,
        tree=tree, DDTREE_BUDGET=str(BUDGET), DDTREE_RUN_DIR=str(run_dir), DDTREE_TRACE=str(work / "trace"),
        DDTREE_TRACE_ROUNDS="0", DDTREE_TRACE_BYTES=str(1 << 30), TORCHDYNAMO_DISABLE="1",
        DDTREE_TIME_EVERY="8",
    ) as server:  # fmt: skip
        found.rounds = [_ask_all(server), _ask_all(server)]
        found.counters = scheduler_beacon(beacons(run_dir))["counters"]
        _ask_controlled(server, run_dir, found)
        found.sampled = [answer for _ in range(2) for answer in server.generate(BATCHES[-1], TOKENS, temperature=0.7)]
        found.answers = {name: one.ask(server) for name, one in plain.questions.items()}
        _ask_logprobs(server, found)
        found.seeded = _ask_seeded(server)
        found.aborted = _abort(server)
        found.after_abort = plain.questions["penalties"].ask(server)
        for reason, body in REFUSED.items():
            found.refusals[reason] = server.post("/generate", {"text": "abc", **body})
        found.beacons = beacons(run_dir)
        found.metrics, found.info = server.get("/metrics"), json.loads(server.get("/server_info"))
        found.counters_end = scheduler_beacon(found.beacons)["counters"]
    found.trace_file = work / "trace"
    found.trace = list(trace.read_rounds(found.trace_file.read_text("utf-8").splitlines()))
    return found


def beacons(folder: Path) -> list[dict[str, Any]]:
    """Return what the processes say of themselves, after they had the time to look."""
    time.sleep(2.5)  # the beacon looks once a second
    return [json.loads(path.read_text("utf-8")) for path in folder.glob("[0-9]*.json")]


def scheduler_beacon(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the scheduler process says."""
    return next(beacon for beacon in found if beacon["argv"] == ["sglang::scheduler"])


def _ask_all(server: Server) -> Answers:
    return [answer for batch in BATCHES for answer in server.generate(batch, TOKENS)]


def _ask_controlled(server: Server, run_dir: Path, found: DDTreeRun) -> None:
    """Lower the budget while serving, then ask for chains."""
    control = run_dir / "control.json"
    control.write_text(json.dumps({"budget": LOWERED}), "utf-8")
    time.sleep(2.5)
    found.lowered = server.generate(BATCHES[-1], TOKENS)
    found.counters_lowered = scheduler_beacon(beacons(run_dir))["counters"]
    control.write_text(json.dumps({"mode": "chain"}), "utf-8")
    time.sleep(2.5)
    before = scheduler_beacon(beacons(run_dir))["counters"]
    found.chained = server.generate(BATCHES[-1], TOKENS)
    after = scheduler_beacon(beacons(run_dir))["counters"]
    found.counters_chain = {name: after[name] - before[name] for name in ("requests", "nodes_built", "branch_paths")}
    control.unlink()
    time.sleep(2.5)


def _ask_logprobs(server: Server, found: PlainRun) -> None:
    found.logprobs = LOGPROBS.ask(server)
    for path, body, into in (("/v1/completions", COMPLETION, "completion"), ("/v1/chat/completions", CHAT, "chat")):
        status, answer = server.post(path, body)
        assert status == 200, answer
        setattr(found, into, answer["choices"][0])


def _ask_seeded(server: Server) -> dict[str, Answers]:
    """Ask the same three seeded requests alone, again, in a batch, under other budgets, and under memory pressure."""
    own = [{**SEEDED, "sampling_seed": 11 + n} for n in range(3)]
    texts = PROMPTS[3:6]

    def alone(**more: Any) -> Answers:
        return [Question([text], [{**one, **more}]).ask(server)[0] for text, one in zip(texts, own, strict=True)]

    others = [{**SEEDED, "temperature": 1.0}] * 3
    crowd = Question([*PROMPTS[:3], *texts], [*others, *own]).ask(server)
    pressed = Question(
        [*texts, *PROMPTS[:9]], [{**one, "max_new_tokens": 110} for one in (*own, *others, *others, *others)]
    ).ask(server)
    return {
        "alone": alone(),
        "again": alone(),
        "crowd": crowd[3:],
        "small trees": alone(custom_params={"ddtree": {"budget": 2}}),
        "another seed": [Question([texts[0]], [{**own[0], "sampling_seed": 99}]).ask(server)[0]],
        "memory pressure": pressed[:3],
        "all under pressure": pressed,
    }


def _abort(server: Server) -> Answers:
    """Abort two of four requests in flight."""
    names = [f"long-{n}" for n in range(4)]
    question = Question(PROMPTS[:4], [{"max_new_tokens": 118, "ignore_eos": True}] * 4, {"rid": names})
    answers: Answers = []

    def ask() -> None:
        with contextlib.suppress(AssertionError):
            answers.extend(question.ask(server))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.4)
    for name in names[:2]:
        with contextlib.suppress(ValueError):  # the answer has no body
            server.post("/abort_request", {"rid": name})
    thread.join()
    return answers
