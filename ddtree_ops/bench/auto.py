"""``--budget auto``: predict every budget from one wide recording and a cost curve, measure the best, recommend. Pure.

Trees of one score order are nested: the tree of budget b is the first b nodes of any wider one, so a node's index says
in which trees it is. A recorded round therefore tells what every smaller budget would have accepted: the nodes of its
accepted path with index <= b. (After such a round a smaller budget would have gone on from another position; over many
rounds that averages out, and what is recommended is measured.)

Prediction, per regime and concurrency c, for requests of n tokens: ``c * n / (ttft + n / tokens_per_verify * step)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..baseline.curve import nested_length
from .costs import Probe, StepModel
from .schema import Auto, Cell, Prediction
from .stats import quantile

CANDIDATES = (8, 16, 24, 32, 48, 64)
PER_CONCURRENCY = 2  # budgets that are measured for each concurrency
OVERALL = "all"


Path = Sequence[int]
"""Node indices of one round's accepted path, root first."""


def accept_length(paths: Iterable[Path], budget: int) -> float | None:
    """Mean tokens per verify step (bonus included) that ``budget`` would have had in recorded rounds; None for none."""
    return nested_length(paths, budget)


def predict(
    traces: Mapping[str, Sequence[Path]],
    model: StepModel,
    probes: Sequence[Probe],
    budgets: Sequence[int],
    concurrency: Sequence[int],
) -> tuple[Prediction, ...]:
    """Tokens per second of every budget at every regime (the keys of ``traces``) and concurrency."""
    found = []
    for count in concurrency:
        for regime, paths in traces.items():
            ttft, tokens = _shape(probes, count, regime)
            for budget in budgets:
                length, step = accept_length(paths, budget), model.step_us(budget, count)
                if length is None or step is None or step <= 0 or tokens <= 0:
                    continue
                seconds = ttft + tokens / length * step * 1e-6
                found.append(
                    Prediction(
                        budget=budget,
                        concurrency=count,
                        regime=regime,
                        tokens_per_verify=length,
                        step_us=step,
                        tok_per_s=count * tokens / seconds,
                    )
                )
    return tuple(found)


def _shape(probes: Sequence[Probe], concurrency: int, regime: str) -> tuple[float, float]:
    """Time to the first token and tokens of a request, as probed at this concurrency (this regime, if it was)."""
    here = [probe for probe in probes if probe.concurrency == concurrency]
    here = [probe for probe in here if probe.regime == regime] or here
    ttft, tokens = quantile([one.ttft_s for one in here], 0.5), quantile([one.tokens for one in here], 0.5)
    return ttft or 0.0, tokens or 0.0


def to_measure(predictions: Sequence[Prediction], per_concurrency: int = PER_CONCURRENCY) -> tuple[int, ...]:
    """The best budgets of each concurrency, ascending; at least one is always the best of all."""
    chosen: set[int] = set()
    for count in sorted({one.concurrency for one in predictions}):
        scores = _scores({(p.budget, p.regime): p.tok_per_s for p in predictions if p.concurrency == count})
        chosen.update(sorted(scores, key=lambda budget: -scores[budget])[:per_concurrency])
    return tuple(sorted(chosen))


def recommend(predictions: Sequence[Prediction], cells: Sequence[Cell], source: str) -> Auto:
    """Predictions with what was measured beside them, the measured best per concurrency (and over all), in words."""
    ours = {
        (cell.budget, cell.concurrency, cell.regime): cell
        for cell in cells
        if cell.arm == "ddtree" and cell.valid and cell.tok_per_s is not None and isinstance(cell.budget, int)
    }
    filled = tuple(_filled(one, ours.get((one.budget, one.concurrency, one.regime))) for one in predictions)
    measured = [one for one in filled if one.measured_tok_per_s is not None]
    recommended: dict[str, int] = {}
    for count in sorted({one.concurrency for one in measured}):
        here = {(p.budget, p.regime): _rate(p) for p in measured if p.concurrency == count}
        recommended[str(count)] = _best(here)
    if measured:
        everywhere = {(p.budget, f"{p.regime}/{p.concurrency}"): _rate(p) for p in measured}
        recommended[OVERALL] = _best(everywhere)
    return Auto(recommended=recommended, predictions=filled, text=tuple(_text(recommended, filled, source)))


def _filled(prediction: Prediction, cell: Cell | None) -> Prediction:
    if cell is None or cell.tok_per_s is None:
        return prediction
    length = cell.tokens_per_verify.median if cell.tokens_per_verify else None
    return msgspec.structs.replace(
        prediction, measured_tok_per_s=cell.tok_per_s.median, measured_tokens_per_verify=length
    )


def _rate(prediction: Prediction) -> float:
    return prediction.measured_tok_per_s or 0.0


def _scores(rates: Mapping[tuple[int, str], float]) -> dict[int, float]:
    """Geometric mean over regimes of each budget: the rate of one regime does not outweigh the others. Only budgets
    that have a rate in every regime are scored."""
    regimes = {regime for _, regime in rates}
    found = {}
    for budget in {budget for budget, _ in rates}:
        values = [rates[budget, regime] for regime in regimes if rates.get((budget, regime), 0.0) > 0]
        if len(values) == len(regimes):
            found[budget] = math.exp(sum(map(math.log, values)) / len(values))
    return found


def _best(rates: Mapping[tuple[int, str], float]) -> int:
    """The budget with the highest score; of equals the smaller one."""
    scores = _scores(rates) or {budget: rate for (budget, _), rate in rates.items()}
    return min(scores, key=lambda budget: (-scores[budget], budget))


def _text(recommended: Mapping[str, int], predictions: Sequence[Prediction], source: str) -> Iterable[str]:
    if not recommended:
        yield "no budget is recommended: none of those that were to be measured has a valid cell"
    else:
        per = ", ".join(f"{budget} at concurrency {count}" for count, budget in recommended.items() if count != OVERALL)
        yield f"recommended budget: {recommended[OVERALL]} over all settings; {per}"
    yield f"costs: {source}"
    for one in predictions:
        if one.measured_tok_per_s is None:
            continue
        error = 100 * (one.tok_per_s / one.measured_tok_per_s - 1) if one.measured_tok_per_s else math.nan
        length = one.measured_tokens_per_verify
        yield (
            f"budget {one.budget}, {one.regime}, concurrency {one.concurrency}: predicted {one.tok_per_s:.1f} tokens/s "
            f"({one.tokens_per_verify:.2f} per verify step), measured {one.measured_tok_per_s:.1f}"
            + (f" ({length:.2f})" if length is not None else "")
            + f": {error:+.0f} %"
        )
