"""What a bench measures: ``playbooks/bench.yaml``, then the command line on top, each value with its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..bench import library, records
from ..bench.arms import ARMS, Arm
from ..bench.auto import CANDIDATES
from ..bench.gates import GateBook, check_gates, load_gates
from ..bench.schema import Plan
from ..errors import ConfigError, UsageError
from ..model import Value
from ..patching.strict import Document, read_document
from ..resources import data_dir

Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Nodes = Annotated[int, msgspec.Meta(ge=1, le=1023)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class SmokeBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``smoke:``, the short form: ``--against-service``."""

    count: Annotated[int, msgspec.Meta(ge=0)] = 6  # bundled prompts in all; 0: every one
    max_tokens: Count = 48
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class BenchBook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``playbooks/bench.yaml``; the packaged file says what each key means."""

    name: str
    arms: tuple[Arm, ...] = ARMS
    budget: Nodes | tuple[Nodes | Literal["auto"], ...] | Literal["auto"] = 32
    auto: tuple[Nodes, ...] = CANDIDATES
    concurrency: Count | tuple[Count, ...] = (1, 4)
    regime: str | tuple[str, ...] = "all"
    prompts: str = ""
    count: Annotated[int, msgspec.Meta(ge=0)] = 16
    max_tokens: Count = 128
    temperature: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    starts: Annotated[int, msgspec.Meta(ge=1, le=20)] = 2
    repeat: Annotated[int, msgspec.Meta(ge=1, le=50)] = 2
    warm_within: Share = 0.03
    warm_most: Annotated[int, msgspec.Meta(ge=2, le=100)] = 12
    silence: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 120.0
    trace_rounds: Annotated[int, msgspec.Meta(ge=0, le=20000)] = 0
    may_differ: tuple[str, ...] = ()
    gpu_tolerance_mib: Annotated[int, msgspec.Meta(ge=1)] = 64
    gpu_timeout: Annotated[float, msgspec.Meta(ge=1)] = 120.0
    gate: str = ""
    smoke: SmokeBook = SmokeBook()


AUTO = "auto"
TRACE_ROUNDS = 400  # what --trace records; also what --budget auto needs at least


class Wanted(Value, frozen=True, kw_only=True):
    """A checked wish. ``plan`` is what the result folder keeps and what ``--resume`` holds to."""

    plan: Plan
    prompts: dict[str, tuple[records.Prompt, ...]]  # by regime
    candidates: tuple[int, ...] = ()  # of --budget auto, else empty
    trace_rounds: int = 0
    may_differ: tuple[str, ...] = ()
    gpu_tolerance_mib: int = 64
    gpu_timeout: float = 120.0
    smoke: SmokeBook = SmokeBook()
    gate: str = ""
    wish: dict[str, Any] = msgspec.field(default_factory=dict)  # by key of the playbook: what --resume begins with
    origins: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def auto(self) -> bool:
        """Whether the budgets are still to be found."""
        return bool(self.candidates)

    def with_budgets(self, budgets: Sequence[Any]) -> Wanted:
        """The same with the budgets that are to be measured."""
        return msgspec.structs.replace(self, plan=msgspec.structs.replace(self.plan, budgets=tuple(budgets)))


def load_book(beside: Path | None, path: Path | None = None) -> tuple[BenchBook, Document]:
    """``bench.yaml`` in force (beside the inventory, else packaged). Raises ConfigError: file, line and key."""
    document = read_document(path or data_dir("playbooks", beside) / "bench.yaml")
    return document.convert(BenchBook), document


def wanted(beside: Path | None, given: Mapping[str, Any]) -> Wanted:
    """The wish of a run; ``given`` is what the command line says, by key of the playbook.

    Raises:
        ConfigError: a mistake in the playbook or the prompts. UsageError: one on the command line.
    """
    book, document = load_book(beside)
    origins = {name: f"{document.origin}:{document.line(f'$.{name}')}" for name in document.data or ()}
    origins |= dict.fromkeys(given, "command line")
    book = _convert({**msgspec.to_builtins(book), **given})
    _check_book(book, origins)
    places = {key: _beside(getattr(book, key), key, origins, beside) for key in ("prompts", "gate")}
    book = msgspec.structs.replace(book, **places)
    prompts, regimes = _prompts(book)
    auto = book.budget == "auto"
    plan = Plan(
        arms=book.arms,
        budgets=_budgets(book),
        concurrency=_tuple(book.concurrency),
        regimes=regimes,
        temperature=book.temperature,
        max_tokens=book.max_tokens,
        repeat=book.repeat,
        starts=book.starts,
        prompts=max(len(one) for one in prompts.values()),
        prompts_sha256=records.digest([one for items in prompts.values() for one in items]),
        prompts_file=book.prompts,
        agree=book.warm_within,
        warmup_most=book.warm_most,
        silence_s=book.silence,
    )
    return Wanted(
        plan=plan,
        prompts=prompts,
        candidates=tuple(sorted(set(book.auto))) if auto else (),
        trace_rounds=book.trace_rounds,
        may_differ=book.may_differ,
        gpu_tolerance_mib=book.gpu_tolerance_mib,
        gpu_timeout=book.gpu_timeout,
        smoke=book.smoke,
        gate=book.gate,
        wish=msgspec.to_builtins(book),
        origins=origins,
    )


def _convert(values: Mapping[str, Any]) -> BenchBook:
    try:
        return msgspec.convert(dict(values), BenchBook, strict=True)
    except msgspec.ValidationError as problem:
        message, _, where = str(problem).partition(" - at ")
        key = where.strip("`").removeprefix("$.") or "bench"
        raise UsageError(
            f"--{key.partition('[')[0].replace('_', '-')}: {message[:1].lower()}{message[1:]}",
            next_step="ddtree-ops bench --help",
        ) from problem


def _check_book(book: BenchBook, origins: Mapping[str, str]) -> None:
    for name, values in (("arms", book.arms), ("budget", _budgets(book)), ("concurrency", _tuple(book.concurrency))):
        if not values:
            raise UsageError(f"{name} is empty", where=origins.get(name, ""), next_step=f"name at least one: {name}")
        if len(set(values)) != len(values):
            raise UsageError(f"{name} names something twice", where=origins.get(name, ""), next_step="name it once")
    if not any(isinstance(one, int) for one in _budgets(book)) and book.budget != AUTO:
        raise UsageError("budget names no number", where=origins.get("budget", ""), next_step="--budget 16,32,auto")
    if book.budget == "auto" and "ddtree" not in book.arms:
        raise UsageError("--budget auto needs the arm ddtree", where=origins.get("arms", ""), next_step="add it")


def _budgets(book: BenchBook) -> tuple[Any, ...]:
    return ("auto",) if book.budget == "auto" else _tuple(book.budget)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _prompts(book: BenchBook) -> tuple[dict[str, tuple[records.Prompt, ...]], tuple[str, ...]]:
    """Prompts by regime, and the regimes in order; the file's own ones where it is one's own file."""
    if book.prompts:
        found: dict[str, tuple[records.Prompt, ...]] = {}
        for one in records.read(Path(book.prompts)):
            found[one.regime] = (*found.get(one.regime, ()), one)
        return {name: items[: book.count or None] for name, items in found.items()}, tuple(found)
    asked = _tuple(book.regime)
    regimes = tuple(sorted(library.REGIMES)) if "all" in asked else asked
    return {name: library.prompts(name, book.count) for name in regimes}, regimes


def _beside(text: str, key: str, origins: Mapping[str, str], beside: Path | None) -> str:
    """A path as an absolute one ("" stays): that of a playbook is relative to the inventory's folder."""
    if not text:
        return ""
    path = Path(text).expanduser()
    of_playbook = origins.get(key) != "command line" and beside is not None
    return str((beside / path if of_playbook and beside is not None else path).absolute())


def gates_for(path: Path | None, wanted: Wanted, served: int) -> GateBook | None:
    """The gates of a run, checked against what will be measured; None without a file."""
    if path is None:
        return None
    book = load_gates(path)
    check_gates(book, path, wanted.plan, None if wanted.auto else _judged(wanted.plan, served))
    return book


def _judged(plan: Plan, served: int) -> int:
    numbers = [one for one in plan.budgets if isinstance(one, int)]
    return served if served in numbers or not numbers else max(numbers)


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """``8,16,32`` as numbers. Raises UsageError."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text}: numbers separated by commas are wanted", next_step=f"{flag} 8,16") from None
    if not found or min(found) < 1:
        raise UsageError(f"{flag} {text}: from 1 on", next_step=f"{flag} 8,16")
    return found


def words(text: str) -> tuple[str, ...]:
    """``ar,ddtree`` as words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def budget_of(text: str) -> Any:
    """``32``; ``8,16,32``, with ``auto`` among them for the server's own choice at every step; or ``auto`` alone."""
    if text == AUTO:
        return AUTO
    fixed = numbers(",".join(word for word in text.split(",") if word.strip() != AUTO), "--budget")
    return (*fixed, AUTO) if AUTO in [word.strip() for word in text.split(",")] else fixed


def check_conditions(before: Mapping[str, Any], now: Mapping[str, Any], where: Path) -> None:
    """Raise ConfigError that names what differs between a folder and a run that would resume it."""
    changed = [
        f"{name}: {before.get(name)} there, {value} now" for name, value in now.items() if before.get(name) != value
    ]
    if changed:
        raise ConfigError(
            f"this folder was measured under other conditions: {changed[0]}",
            where=str(where),
            why="; ".join(changed[1:]),
            next_step="measure into another folder: --out",
        )
