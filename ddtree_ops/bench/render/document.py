"""Everything of a result folder that a report shows, read once; what is missing or damaged is said, not guessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...model import Value
from ..definitions import DEFINITIONS, NAMES
from ..results import Folder, open_folder, summarise
from ..schema import (
    Acceptance,
    Auto,
    Cell,
    Cost,
    Gates,
    IdentityPair,
    IdentityReport,
    Interval,
    Manifest,
    Offline,
    Summary,
)
from . import trees
from .text import number, plural, ratio, visible


class Report(Value, frozen=True, kw_only=True):
    """The values of one folder. ``notes``: what the reader must know about the folder itself."""

    manifest: Manifest
    summary: Summary
    identity: IdentityReport | None = None
    acceptance: Acceptance = Acceptance()
    costs: tuple[Cost, ...] = ()
    gates: Gates | None = None
    auto: Auto | None = None
    offline: Offline | None = None
    tree: trees.Sample | None = None
    notes: tuple[str, ...] = ()
    rounds: int = 0

    @property
    def title(self) -> str:
        """The target and the GPU, as far as they are known."""
        parts = (base_name(self.target), *_counted(self.manifest.conditions.gpu))
        return " · ".join(one for one in parts if one) or self.manifest.host

    @property
    def target(self) -> str:
        """Path or name of the target model."""
        found = self.manifest.conditions.models.get("target")
        return found.path if found else ""


def read(source: Folder | Path) -> Report:
    """Read a folder. Raises :class:`ConfigError` for a damaged file, but for a trace: that is noted."""
    folder = open_folder(source) if isinstance(source, Path) else source
    notes: list[str] = []
    rows = folder.rows()
    summary = folder.summary
    if summary is None:
        summary = summarise(folder.manifest, rows)
        notes.append("The run has not ended: there is no summary.json. The figures are those of the rounds so far.")
    return Report(
        manifest=folder.manifest,
        summary=summary,
        identity=folder.identity,
        acceptance=folder.acceptance or Acceptance(),
        costs=folder.costs,
        gates=folder.gates,
        auto=folder.auto,
        offline=folder.load("offline"),
        tree=_tree(folder.path, notes),
        notes=tuple(notes),
        rounds=len(rows),
    )


def _tree(path: Path, notes: list[str]) -> trees.Sample | None:
    try:
        return trees.sample(list((path / "traces").glob("*.jsonl")))
    except (ConfigError, OSError) as error:
        why = f"{error.what}: {error.why}" if isinstance(error, ConfigError) else str(error)
        notes.append(f"No tree is drawn: {why}.")
        return None


def base_name(path: str) -> str:
    """The last part of a model's path or name."""
    return path.rstrip("/").rsplit("/", 1)[-1]


# -- what the pages say --


class Glance(Value, frozen=True, kw_only=True):
    """One regime and concurrency: the controls and the best valid tree."""

    regime: str
    concurrency: int
    ar: Cell | None
    dflash: Cell | None
    best: Cell | None


def headline(summary: Summary) -> list[str]:
    """What stands above everything else: the losses and the INVALID, or that there is no loss, as far as is known."""
    alarms = [line for line in summary.headline if line.startswith(("SLOWER", "INVALID"))]
    found = [*alarms, *_below_dflash(summary.cells)]
    if any(line.startswith("SLOWER") for line in alarms):
        return found
    compared = sum(one.speedup_vs_ar is not None for one in summary.cells)
    known = f"None of {plural(compared, 'valid comparison')} with plain decoding is below 1.0× (medians)."
    nothing = "No valid comparison with plain decoding: nothing here says whether speculation pays."
    return [*found, known if compared else nothing]


def _below_dflash(cells: Sequence[Cell]) -> list[str]:
    """Settings where even the fastest tree loses against the linear scheme."""
    lost = []
    for one in glance(cells):
        against = one.best.speedup_vs_dflash if one.best else None
        if against is not None and against.median < 1.0:
            noise = ", within noise" if loses(against) == "even" else ""
            lost.append(f"{one.regime}, concurrency {one.concurrency}: {times(against)}{noise}")
    return [f"SLOWER than DFLASH at every measured budget: {'; '.join(lost)}"] if lost else []


def ordered(cells: Sequence[Cell]) -> list[Cell]:
    """By regime and concurrency, arms and budgets within, so that what is compared stands together."""
    regimes, arms = (list(dict.fromkeys(getattr(one, name) for one in cells)) for name in ("regime", "arm"))

    def place(cell: Cell) -> tuple[float, ...]:
        budget = cell.budget if isinstance(cell.budget, int) else 0 if cell.budget is None else 1 << 30
        return regimes.index(cell.regime), cell.concurrency, cell.temperature, arms.index(cell.arm), budget

    return sorted(cells, key=place)


def shared_notes(cells: Sequence[Cell]) -> tuple[str, ...]:
    """Notes that every cell has; said once instead of with each."""
    return tuple(note for note in cells[0].notes if all(note in one.notes for one in cells)) if len(cells) > 1 else ()


def glance(cells: Sequence[Cell]) -> list[Glance]:
    """One line per setting, by regime and concurrency; INVALID cells are left out here, and listed elsewhere."""
    found: dict[tuple[str, int, float], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.regime, cell.concurrency, cell.temperature), []).append(cell)
    order = list(dict.fromkeys(cell.regime for cell in cells))
    return [_glance(found[key]) for key in sorted(found, key=lambda key: (order.index(key[0]), *key[1:]))]


def _glance(here: list[Cell]) -> Glance:
    valid = [one for one in here if one.valid and one.tok_per_s is not None]
    trees_ = [one for one in valid if one.budget is not None]
    by_arm = {one.arm: one for one in valid if one.budget is None}
    return Glance(
        regime=here[0].regime,
        concurrency=here[0].concurrency,
        ar=by_arm.get("ar"),
        dflash=by_arm.get("dflash"),
        best=max(trees_, key=speed, default=None),
    )


def speed(cell: Cell) -> float:
    """Tokens/s, 0 where there are none."""
    return cell.tok_per_s.median if cell.tok_per_s else 0.0


def span(value: Interval | None, digits: int = 1) -> str:
    """``880.1 (861.0 to 893.2)``; no interval for a single sample."""
    if value is None:
        return number(None)
    if value.high <= value.low:
        return number(value.median, digits)
    return f"{number(value.median, digits)} ({number(value.low, digits)} to {number(value.high, digits)})"


def times(value: Interval | None) -> str:
    """``1.16× (1.12 to 1.19)``."""
    if value is None or value.high <= value.low:
        return ratio(value.median if value else None)
    return f"{ratio(value.median)} ({value.low:.2f} to {value.high:.2f})"


def loses(value: Interval | None) -> str:
    """How a speed-up is to be read: ``worse`` or ``better`` only where the interval does not hold 1."""
    if value is None:
        return ""
    return "worse" if value.high < 1.0 else "better" if value.low > 1.0 else "even"


def pairs(identity: IdentityReport) -> list[tuple[str, IdentityPair]]:
    """The floor first, then each arm, with their names."""
    floor = [("floor", identity.floor)] if identity.floor else []
    return [*floor, *((pair_name(one), one) for one in identity.pairs)]


def pair_name(pair: IdentityPair) -> str:
    """``ddtree 32, concurrency 4``."""
    budget = "" if pair.budget is None else f" {pair.budget}"
    return f"{pair.arm}{budget}, concurrency {pair.concurrency}"


def conditions(report: Report) -> list[tuple[str, str]]:
    """Everything that must be equal for another result to be compared with this one."""
    found, plan = report.manifest.conditions, report.manifest.plan
    rows = [
        ("host", report.manifest.host),
        ("unit", report.manifest.unit),
        ("build", report.manifest.build_id),
        ("GPU", ", ".join(_counted(found.gpu))),
        ("driver", found.driver),
        ("SGLang", found.sglang),
        ("torch", found.torch),
        ("dtype", found.dtype),
        *((f"{name} model", _model(one.path, one.sha256)) for name, one in found.models.items()),
        *((name, str(value)) for name, value in found.other.items() if isinstance(value, str | int | float)),
        ("arms", ", ".join(plan.arms)),
        ("budgets", ", ".join(map(str, plan.budgets))),
        ("concurrency", ", ".join(map(str, plan.concurrency))),
        ("regimes", ", ".join(plan.regimes)),
        (
            "prompts",
            f"{plan.prompts} per regime and round, {plan.prompts_file or 'bundled'}, sha256 {plan.prompts_sha256[:16]}",
        ),
        ("temperature", f"{plan.temperature:g}"),
        ("longest answer", f"{plan.max_tokens} tokens"),
        ("rounds", f"{plan.repeat} per start, {plan.starts} starts of each arm"),
        (
            "prefix cache",
            f"cold: emptied before each round, at most {plan.cached_most:.0%} cached" if plan.cold else "warm",
        ),
        ("warm-up", f"until two rounds agree within {plan.agree:.0%}, at most {plan.warmup_most}"),
        ("tool", f"ddtree-ops {report.manifest.tool_version}"),
        ("command", " ".join(report.manifest.command)),
    ]
    return [(name, value) for name, value in rows if value]


def arguments(report: Report) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """The arms, and the server arguments in which they differ."""
    arms = report.manifest.conditions.effective_args
    names = sorted({name for one in arms.values() for name in one})
    rows = [(name, [_argument(one, name) for one in arms.values()]) for name in names]
    return list(arms), [row for row in rows if len(set(row[1])) > 1]


def _argument(arguments_: dict[str, Any], name: str) -> str:
    return str(arguments_[name]) if name in arguments_ else number(None)


STEPS = ("cell", "steps", "nodes/step", "padded", "by width", "by budget", "by reason", "chain steps", "fallbacks")


def step_rows(found: Acceptance) -> list[tuple[str, ...]]:
    """Tree shape, widths and reasons, of the cells whose payload counts them."""
    rows: list[tuple[str, ...]] = []
    for one in found.cells:
        if one.budget is None or not one.request_steps:
            continue
        rows.append(
            (
                f"{one.arm} {one.budget}, {one.regime}, concurrency {one.concurrency}",
                number(one.verify_steps, 0),
                number(one.nodes_built / one.request_steps if one.nodes_built is not None else None, 1),
                number(one.nodes_padded, 0),
                _counts(one.steps_by_width),
                _counts(one.steps_by_budget),
                _counts(one.steps_by_reason),
                number(one.chain_steps, 0),
                _counts(one.fallbacks),
            )
        )
    return rows


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name}: {number(count, 0)}" for name, count in found.items() if count) or number(None)


def definitions(report: Report) -> list[tuple[str, str]]:
    """What the figures mean: the run's own words, else the program's."""
    found = report.summary.definitions or report.manifest.definitions or DEFINITIONS
    return [(NAMES.get(name, name.replace("_", " ")), text) for name, text in found.items()]


def missing(report: Report) -> list[tuple[str, str]]:
    """What a report can show and this folder does not have, and what brings it."""
    counted = report.acceptance.cells
    wanted = (
        (report.identity, "token identity", "it needs the plain arm and greedy answers"),
        (report.offline, "an expected accept curve", "`ddtree-ops baseline curve TRACE --out DIR/offline.json`"),
        (any(one.by_depth for one in counted), "acceptance by depth", "the payload's counters"),
        (any(one.first_miss_rank for one in counted), "first-miss ranks", "the payload's counters"),
        (any(one.time_us for one in counted), "the time split", "the payload's sampled timers"),
        (report.costs, "verify costs", "the payload measures them at start-up on a GPU"),
        (report.tree, "a draft tree", "traces, recorded with `--trace`"),
        (report.auto, "a prediction", "`--budget auto`"),
        (report.gates, "gates", "`--gate gates.yaml`"),
    )
    return [(what, how) for there, what, how in wanted if not there]


def _model(path: str, digest: str) -> str:
    return f"{path} (config sha256 {digest[:16]})" if digest else path


def _counted(gpus: Iterable[str]) -> list[str]:
    """``2 × NVIDIA H200`` instead of the same name twice."""
    names = [visible(one) for one in gpus]
    return [f"{names.count(one)} × {one}" if names.count(one) > 1 else one for one in dict.fromkeys(names)]
