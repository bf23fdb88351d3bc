"""``--budget auto`` on a host: one wide server is recorded and timed, then the best budgets go into the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..bench import auto, costs
from ..bench.costs import Probe
from ..bench.results import Auto, Prediction
from ..bench.schedule import Round
from ..errors import GateFailed
from .bench_plan import Wanted
from .bench_run import Bench, Running

WARM_ROUNDS = 2  # of a probe; what it predicts is measured properly afterwards
PROMPTS = 6  # of a probe at least, per regime
ROUNDS = 600  # traced for each regime, at most


def choose(driver: Bench) -> Wanted:
    """The wish with the budgets that are to be measured; predictions are kept in ``auto.json``.

    A folder that is resumed has them already.

    Raises:
        GateFailed: the server wrote no trace, or no step could be timed: nothing can be predicted (exit 8).
    """
    folder = driver.folder
    known = folder.auto
    predictions = known.predictions if known is not None else _probed(driver)
    budgets = auto.to_measure(predictions)
    if not budgets:
        raise GateFailed(
            "no budget can be predicted: no verify step was timed or traced",
            where=driver.host.name,
            next_step="name the budgets: --budget 8,16,32",
            code="invalid",
        )
    driver.wanted = driver.wanted.with_budgets(budgets)
    folder.manifest = msgspec.structs.replace(folder.manifest, plan=driver.wanted.plan)
    folder.save("manifest", folder.manifest)
    driver.bars.say(f"predicted best: budget {', '.join(map(str, budgets))}; they are measured now")
    return driver.wanted


def _probed(driver: Bench) -> tuple[Prediction, ...]:
    wanted = driver.wanted
    rounds = ROUNDS * len(wanted.plan.regimes) + WARM_ROUNDS * wanted.plan.max_tokens
    running = driver.start("ddtree", 0, wanted.candidates, max(rounds, wanted.trace_rounds))
    with driver.bars.step("probe", "Record traces and time steps at a wide budget"):
        probes, traces = _probe(driver, running)
    driver.stop(running)
    model = costs.StepModel(driver.costs, probes)
    predictions = auto.predict(traces, model, probes, wanted.candidates, wanted.plan.concurrency)
    driver.folder.save("auto", Auto(recommended={}, predictions=predictions, text=(f"costs: {model.source}",)))
    driver.costs = driver.costs or costs.costs_of_probes(probes)
    return predictions


def _probe(driver: Bench, running: Running) -> tuple[list[Probe], dict[str, Sequence[auto.Path]]]:
    """Steps at every concurrency, traces once per regime; the widest budget, and others where costs are not known."""
    candidates = driver.wanted.candidates
    widest = candidates[-1]
    budgets = [widest] if driver.costs else sorted({candidates[0], candidates[len(candidates) // 2], widest})
    probes: list[Probe] = []
    traces: dict[str, Sequence[auto.Path]] = {}
    traced_to = 0  # bytes of the trace that were read
    for concurrency in sorted(driver.wanted.plan.concurrency):
        for budget in sorted(budgets, reverse=True):  # the traced one first: what is recorded is bounded
            for number in range(WARM_ROUNDS):
                _round(driver, running, next(iter(driver.prompts)), concurrency, budget, number, concurrency)
            for regime in driver.wanted.plan.regimes:
                traced = budget == widest and regime not in traces
                _, before = driver.paths(running, traced_to) if traced else ([], 0)
                found = _round(driver, running, regime, concurrency, budget, WARM_ROUNDS, max(PROMPTS, 2 * concurrency))
                probe = costs.probe_of(found, concurrency=concurrency, budget=budget, regime=regime)
                probes += [probe] if probe is not None else []
                if traced:
                    traces[regime], traced_to = driver.paths(running, before)
    everything = [path for paths in traces.values() for path in paths]
    return probes, {regime: paths or everything for regime, paths in traces.items() if paths or everything}


def _round(
    driver: Bench, running: Running, regime: str, concurrency: int, budget: int, number: int, count: int
) -> Sequence[Mapping[str, Any]]:
    plan = driver.wanted.plan
    one = Round(
        arm="ddtree",
        start=0,
        round=number,
        regime=regime,
        concurrency=concurrency,
        temperature=plan.temperature,
        budget=budget,
    )
    driver.set_budget(running, budget)
    row = driver.measure(running, one, driver.prompts[regime][:count], kind="warmup")
    return [msgspec.to_builtins(request) for request in row.requests]
