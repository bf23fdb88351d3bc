"""The types of a result folder: what ``ddtree-ops bench`` leaves behind, file by file.

Every figure that cannot be formed is ``None``, never 0 and never infinite. Times are in the unit that the name says
(``_s``, ``_ms``, ``_us``); token counts are completion tokens. Fields may be added under the same ``SCHEMA_VERSION``:
a reader ignores what it does not know; a field that changes its meaning or goes away raises the version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ..model import Value

SCHEMA_VERSION = 1

Budget = int | Literal["auto"] | None  # None: the arm has no tree
RoundKind = Literal["warmup", "measured", "floor"]  # floor: plain decoding at another batch shape, for identity alone
RoundVerdict = Literal["ok", "invalid"]
RequestOutcome = Literal["ok", "empty", "timeout", "failed"]
Outcome = Literal["equal", "near_tie", "differs", "unjudged"]
Verdict = Literal["ok", "INVALID", "FAILED"]


# -- manifest.json --


class ModelOf(Value, frozen=True, kw_only=True):
    """A model that the server runs; ``sha256`` is that of its ``config.json``."""

    path: str
    sha256: str = ""


class Conditions(Value, frozen=True, kw_only=True):
    """What must be equal for two results to be compared."""

    gpu: tuple[str, ...] = ()
    driver: str = ""
    sglang: str = ""
    torch: str = ""
    dtype: str = ""
    models: dict[str, ModelOf] = msgspec.field(default_factory=dict)  # "target", "draft"
    effective_args: dict[str, dict[str, Any]] = msgspec.field(
        default_factory=dict
    )  # arm -> what its server said that it runs with
    other: dict[str, Any] = msgspec.field(default_factory=dict)


class Plan(Value, frozen=True, kw_only=True):
    """What was asked for. Bounds are shares: 0.03 is 3 %."""

    arms: tuple[str, ...] = ("ar", "dflash", "ddtree")
    budgets: tuple[int | Literal["auto"], ...] = (32,)
    concurrency: tuple[int, ...] = (1,)
    regimes: tuple[str, ...] = ("chat", "code", "math")
    temperature: float = 0.0
    max_tokens: int = 128
    repeat: int = 3
    starts: int = 2
    prompts: int = 0  # per regime and round
    prompts_sha256: str = ""
    prompts_file: str = ""  # "" for the bundled ones
    cold: bool = True  # each round starts with an empty prefix cache and no prompt may come from it
    agree: float = 0.03  # two warm-up rounds in a row
    warmup_most: int = 12
    cached_most: float = 0.01
    failed_most: float = 0.0
    silence_s: float = 120.0
    seed: int = 0  # of the bootstrap


class Manifest(Value, frozen=True, kw_only=True):
    """``manifest.json``: written before the first round, then not changed."""

    created: str  # ISO 8601, UTC
    tool_version: str
    host: str
    unit: str = ""
    build_id: str = ""
    command: tuple[str, ...] = ()
    conditions: Conditions = Conditions()
    plan: Plan = Plan()
    definitions: dict[str, str] = msgspec.field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


# -- rows.jsonl --


class Request(Value, frozen=True, kw_only=True):
    """One request of a round, with per-request numbers of the server (deltas by nature, no running average)."""

    index: int
    ok: bool
    tokens: int  # completion tokens, hidden reasoning included
    total_s: float | None = None  # from sending to the last byte
    id: str = ""
    outcome: RequestOutcome = "ok"
    error: str | None = None
    ids: tuple[int, ...] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    verify_ct: int | None = None  # None: the server does not count (no speculation)
    accepted_drafts: int | None = None
    ttft_s: float | None = None  # from sending to the first chunk with a token
    first_tokens: int = 0  # tokens in that chunk
    itl_s: tuple[float, ...] | None = None  # between the chunks that follow
    reasoning_tokens: int | None = None
    visible: bool | None = None  # whether any text was not reasoning; None: not told (token ids)
    finish: str = ""


class Client(Value, frozen=True, kw_only=True):
    """What the load generator cost itself, on the host that it shares with the server."""

    cpu_s: float
    wall_s: float

    @property
    def busy(self) -> float:
        """Share of one core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


class RoundRow(Value, frozen=True, kw_only=True):
    """One line of ``rows.jsonl``: one round of one arm at one setting."""

    arm: str
    budget: Budget = None
    start: int = 1  # which start of this arm's server, from 1
    round: int = 0
    kind: RoundKind = "measured"
    regime: str
    concurrency: int
    temperature: float = 0.0
    seconds: float  # from the first byte sent to the last byte received
    flushed: bool = False  # the server confirmed that its prefix cache was emptied before the round
    requests: tuple[Request, ...] = ()
    counters_delta: dict[str, Any] | None = None
    verdict: RoundVerdict = "ok"
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cut: bool = False  # the round did not end (connection, interrupt): a resumed run measures it again
    time: float = 0.0
    client: Client | None = None


# -- summary.json --


class Interval(Value, frozen=True, kw_only=True):
    """A point estimate and its 95 % bootstrap interval; ``low == high`` where only one sample exists."""

    median: float
    low: float
    high: float
    samples: int = 1


class Percentiles(Value, frozen=True, kw_only=True):
    """Over all finished requests of the measured rounds; with fewer than 100 of them p99 is close to the worst."""

    p50: float
    p95: float
    p99: float
    samples: int = 1


class Cell(Value, frozen=True, kw_only=True):
    """One arm and budget at one regime, concurrency and temperature. Regimes and concurrencies are never pooled."""

    arm: str
    budget: Budget = None
    regime: str
    concurrency: int
    temperature: float = 0.0
    runs: int  # measured rounds
    starts: int = 1
    requests: int = 0
    tok_per_s: Interval | None = None
    tok_per_s_per_request: Interval | None = None
    tokens_per_verify: Interval | None = None  # bonus included
    accepted_drafts: Interval | None = None  # without it
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    step_ms: Percentiles | None = None
    failed: int = 0
    empty: int = 0
    timed_out: int = 0
    failures: tuple[str, ...] = ()  # each with its reason
    cached_share: float = 0.0
    speedup_vs_ar: Interval | None = None
    speedup_vs_dflash: Interval | None = None
    valid: bool = True
    why: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warmup: tuple[float, ...] = ()  # tokens/s of the discarded rounds, in order

    @property
    def name(self) -> str:
        """``ddtree budget 32, chat, concurrency 4``."""
        budget = "" if self.budget is None else f" budget {self.budget}"
        warm = f", temperature {self.temperature:g}" if self.temperature else ""
        return f"{self.arm}{budget}, {self.regime}, concurrency {self.concurrency}{warm}"


class Summary(Value, frozen=True, kw_only=True):
    """``summary.json``. ``headline[0]`` names every regime that is slower than plain decoding, if there is one."""

    cells: tuple[Cell, ...]
    headline: tuple[str, ...]
    verdict: Verdict = "ok"
    why: tuple[str, ...] = ()
    definitions: dict[str, str] = msgspec.field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


# -- identity.json --


class Comparison(Value, frozen=True, kw_only=True):
    """One prompt; ``index`` counts generated tokens from 0, ``gap`` is in nats on the reference server."""

    id: str
    outcome: Outcome
    compared: int
    index: int | None = None
    gap: float | None = None
    plain: int | None = None  # the token there
    ours: int | None = None
    top2: float | None = None  # between the reference server's best two candidates there
    regime: str = ""
    loop: str = ""  # not empty: how the answer repeats itself where the reference does not


class IdentityPair(Value, frozen=True, kw_only=True):
    """All prompts of one comparison, e.g. ``ddtree`` at budget 32 against ``ar``."""

    arm: str
    budget: Budget = None
    concurrency: int = 1
    against: str = "ar"
    against_concurrency: int = 1
    counts: dict[str, int]  # outcome -> prompts
    tokens: int  # compared
    comparisons: tuple[Comparison, ...] = ()
    missing: tuple[str, ...] = ()
    verdict: Verdict = "ok"
    text: str = ""  # in words


class IdentityReport(Value, frozen=True, kw_only=True):
    """``identity.json``: the floor (``ar`` against itself at another batch shape) first, then each arm and budget."""

    dtype: str
    near_tie: float  # nats
    rule: str
    floor: IdentityPair | None = None
    pairs: tuple[IdentityPair, ...] = ()
    verdict: Verdict = "ok"
    why: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


# -- acceptance.json, costs.json, gates.json, auto.json --


class DepthCount(Value, frozen=True, kw_only=True):
    """Request-steps whose walk reached a node at ``depth`` (1: the first draft token), and that accepted one there."""

    depth: int
    reached: int
    accepted: int


class AcceptanceCell(Value, frozen=True, kw_only=True):
    """What the payload counted in the measured rounds of one cell; empty where it does not count that."""

    arm: str
    budget: Budget = None
    regime: str
    concurrency: int
    temperature: float = 0.0
    verify_steps: int = 0
    request_steps: int = 0
    by_depth: tuple[DepthCount, ...] = ()
    accept_length: tuple[int, ...] = ()  # request-steps by accepted drafts, from 0
    accepted_rank: tuple[int, ...] = ()  # accepted drafts by rank among their siblings; the last bin: that or higher
    first_miss_rank: tuple[int, ...] = ()  # the target's token where the walk left the tree: its rank with the drafter
    first_miss_outside: int | None = None  # it was none of the drafter's candidates
    nodes_built: int | None = None
    nodes_padded: int | None = None
    nodes_by_depth: tuple[int, ...] = ()  # from depth 1
    tree_depth: tuple[int, ...] = ()  # trees by the depth of their deepest node, from 0
    steps_by_width: dict[str, int] = msgspec.field(default_factory=dict)
    steps_by_budget: dict[str, int] = msgspec.field(default_factory=dict)
    steps_by_reason: dict[str, int] = msgspec.field(
        default_factory=dict
    )  # why that budget: fixed, cost, limit, request, control, probe
    chain_steps: int | None = None  # steps that verified the drafter's chain and no tree
    fallbacks: dict[str, int] = msgspec.field(default_factory=dict)  # refusals and slow paths, where there were any
    time_us: dict[str, float] | None = None  # draft, build, verify, commit: mean of the sampled steps
    clock: str = ""  # what timed them: "gpu" or "host"
    counters: dict[str, Any] = msgspec.field(default_factory=dict)  # the deltas as they came


class Acceptance(Value, frozen=True, kw_only=True):
    """``acceptance.json``."""

    cells: tuple[AcceptanceCell, ...] = ()
    schema_version: int = SCHEMA_VERSION


class Cost(Value, frozen=True, kw_only=True):
    """Time of one verify step at ``batch`` requests and ``width`` nodes each (root included)."""

    batch: int
    width: int
    verify_us: float


class Gate(Value, frozen=True, kw_only=True):
    """One gate: what was wanted, what was found, in words."""

    name: str
    passed: bool
    wanted: str
    found: str
    where: str = ""  # regime, concurrency, budget


class Gates(Value, frozen=True, kw_only=True):
    """``gates.json``."""

    passed: bool
    gates: tuple[Gate, ...] = ()
    file: str = ""
    schema_version: int = SCHEMA_VERSION


class Prediction(Value, frozen=True, kw_only=True):
    """One budget at one regime and concurrency: predicted from costs and traces, measured where it was tried."""

    budget: int
    concurrency: int
    regime: str = "all"
    tokens_per_verify: float
    step_us: float
    tok_per_s: float
    measured_tok_per_s: float | None = None
    measured_tokens_per_verify: float | None = None


class Auto(Value, frozen=True, kw_only=True):
    """``auto.json``: the recommended budget per concurrency (as text), and prediction against measurement."""

    recommended: dict[str, int]
    predictions: tuple[Prediction, ...] = ()
    text: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


# -- offline.json --


class OfflinePoint(Value, frozen=True, kw_only=True):
    """Tokens per verify step of an exact decoder without a server, bonus included; ``budget`` None: linear DFlash."""

    budget: int | None
    tokens_per_verify: float
    regime: str = "all"
    low: float | None = None
    high: float | None = None
    rounds: int = 0


class Offline(Value, frozen=True, kw_only=True):
    """``offline.json``: accept length by budget from a baseline (trees are nested: one wide recording serves all)."""

    points: tuple[OfflinePoint, ...]
    source: str = ""
    schema_version: int = SCHEMA_VERSION

    def curve(self, regime: str) -> tuple[OfflinePoint, ...]:
        """Trees of ``regime`` by budget; those over all regimes where it has none of its own."""
        trees = sorted((one for one in self.points if one.budget is not None), key=lambda one: one.budget or 0)
        own = tuple(one for one in trees if one.regime == regime)
        return own or tuple(one for one in trees if one.regime == "all")


FILES: Mapping[str, Any] = {
    "manifest": Manifest,
    "summary": Summary,
    "identity": IdentityReport,
    "acceptance": Acceptance,
    "costs": tuple[Cost, ...],
    "gates": Gates,
    "auto": Auto,
    "offline": Offline,
}
"""The JSON files of a folder by name, ``<name>.json``, and their types."""
