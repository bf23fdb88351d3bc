"""Tables from result files. Pure: results in, Markdown lines out; nothing is compared with what it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..bench.render.text import DASH, md, number, plural
from .files import Result, Row, offline

Lines = list[str]
Setting = tuple[str, float]  # target, temperature

SPREAD = (
    "**Bold**: every run of the one lies beyond every run of the other, with two runs or more of each; else the "
    "difference is within the spread of the runs, or there is one run only."
)


def current(results: Sequence[Result]) -> dict[Setting, Result]:
    """The newest file of each target and temperature."""
    found: dict[Setting, Result] = {}
    for result in results:
        if result.kind == "serving":
            found.update(dict.fromkeys(((row.target, row.temperature) for row in result.rows), result))
    return dict(sorted(found.items()))


def budget_plan(results: Sequence[Result]) -> Lines:
    """Which budget gives what: acceptance expected and measured, speed against DFLASH by concurrency; greedy."""
    lines: Lines = []
    for (target, temperature), result in current(results).items():
        rows = [row for row in result.rows if (row.target, row.temperature) == (target, temperature)]
        if temperature == 0.0 and any(row.is_tree for row in rows):
            lines += [f"{md(target)}, greedy, from `{result.name}`:", "", *_plan_table(rows, result), ""]
    if not lines:
        return ["No result file has a tree at a budget."]
    return [
        *lines,
        "Accept ratio: tokens per verify step over DFLASH's; expected: of the offline decoder, on the same prompts. "
        f"tokens/s: against DFLASH at the same concurrency and prompts. {SPREAD}",
    ]


def _plan_table(rows: Sequence[Row], result: Result) -> Lines:
    expected = offline(result.conditions, rows[0].target)
    levels = sorted({row.concurrency for row in rows if row.is_tree})
    budgets = sorted({row.budget for row in rows if row.is_tree}, key=_order)
    head = ["budget", "accept ratio, expected", "measured", *(f"tokens/s × at {level}" for level in levels)]
    body = []
    for budget in budgets:
        mine = {row.concurrency: row for row in rows if row.is_tree and row.budget == budget}
        first = mine[min(mine)]
        body.append(
            [
                str(budget),
                _times(_divided(expected.get(str(budget)), expected.get("linear"))),
                _times(_accepted(first, control(rows, first, "dflash"))),
                *(_against(rows, mine.get(level)) for level in levels),
            ]
        )
    return _table(head, body)


def serving(results: Sequence[Result]) -> Lines:
    """Every arm of every current file: a table per target and temperature."""
    lines: Lines = []
    for (target, temperature), result in current(results).items():
        rows = [row for row in result.rows if (row.target, row.temperature) == (target, temperature)]
        heat = "greedy" if temperature == 0.0 else f"temperature {temperature:g}"
        lines += [f"### {md(target)}, {heat}", "", _origin(result), "", *_losses(rows), *_serving_table(rows), ""]
    note = (
        "tokens/s of the server, median over the runs; in brackets against DFLASH at the same concurrency and prompts."
    )
    return [*lines, f"{note} {SPREAD}"] if lines else ["No result file yet."]


def _serving_table(rows: Sequence[Row]) -> Lines:
    levels = sorted({row.concurrency for row in rows})
    usual = max((row.asked for row in rows), key=[row.asked for row in rows].count)
    arms = dict.fromkeys((row.arm, row.asked) for row in rows)
    head = ["arm", "tokens per verify step", "ms per step", *(f"tokens/s at {level}" for level in levels)]
    body = []
    for arm, asked in arms:
        mine = {row.concurrency: row for row in rows if (row.arm, row.asked) == (arm, asked)}
        first = mine[min(mine)]
        body.append(
            [
                md(arm) + (f" ({asked} prompts)" if asked != usual else ""),
                _number(first.tokens_per_verify, 2),
                _number(first.step_ms, 2),
                *(_speed(rows, mine.get(level)) for level in levels),
            ]
        )
    return _table(head, body)


def _losses(rows: Sequence[Row]) -> Lines:
    """What is slower than plain decoding, or than DFLASH, stands before the table."""
    lines = []
    for arm, words in (("ar", "plain decoding"), ("dflash", "DFLASH")):
        slow = [text for row in rows if (text := _slower(rows, row, arm))]
        if slow:
            lines += [f"Slower than {words}: {', '.join(slow)}.", ""]
    return lines


def _slower(rows: Sequence[Row], row: Row, arm: str) -> str:
    """``dflash at 8 (**0.80×**)``; empty where it is not slower, or is no speculation."""
    other = control(rows, row, arm)
    if row.arm in ("ar", arm) or other is None:
        return ""
    ratio = _divided(row.tok_per_s, other.tok_per_s)
    if ratio is None or ratio >= 1.0:
        return ""
    mark = "**" if parted(row, other) else ""
    return f"{md(row.arm)} at {row.concurrency} ({mark}{ratio:.2f}×{mark})"


def _origin(result: Result) -> str:
    told = [f"{name} {md(str(result.conditions[name]))}" for name in ("gpu", "sglang") if name in result.conditions]
    counts = {len(row.runs) for row in result.rows}
    runs = plural(max(counts), "run") if len(counts) == 1 else f"{min(counts)} to {max(counts)} runs"
    return f"`{result.name}`: {'; '.join([*told, f'{runs} of each'])}."


def kernels(results: Sequence[Result]) -> Lines:
    """The kernels of the newest file that timed them."""
    found = [one for one in results if one.kind == "kernels"]
    if not found:
        return ["No kernel was timed yet."]
    newest = found[-1]
    told = ", ".join(f"{name} {md(str(value))}" for name, value in newest.conditions.items())
    head = ["kernel", "requests", "case", "alone, µs", "added to a graph, µs", "the same without it"]
    body = [
        [
            md(row["what"]),
            str(row.get("bs", "")),
            _case(row),
            _us(row.get("graph_us")),
            _us(row.get("chained_us")),
            _rival(row),
        ]
        for row in newest.kernels
    ]
    return [
        f"`{newest.name}`: {told}. *Alone*: one replay of a graph that holds it, about 10 µs of it the launch. "
        "Times of the host (heap, torch outside a graph) vary from run to run: see the file's notes.",
        "",
        *_table(head, body),
    ]


_CASE = ("budget", "depth", "rows", "shards", "vocab", "layers", "row_bytes", "dtype", "moves")


def _case(row: dict[str, object]) -> str:
    return md(", ".join(f"{name} {row[name]}" for name in _CASE if row.get(name) is not None))


def _rival(row: dict[str, object]) -> str:
    names = (("torch_graph_us", "torch in a graph"), ("heap_cpu_us", "heap on the CPU"), ("exact_torch_us", "torch"))
    return "; ".join(f"{words} {_us(row[name])}" for name, words in names if row.get(name) is not None) or DASH


def _us(value: object) -> str:
    return _number(float(value), 1) if isinstance(value, int | float) else DASH


def inventory(results: Sequence[Result]) -> Lines:
    """Every file: what it is, and whether a table above is made from it."""
    used = {one.name for one in current(results).values()}
    used |= {one.name for one in [one for one in results if one.kind == "kernels"][-1:]}
    body = [[f"`{one.name}`", one.date[:10], _what(one), "yes" if one.name in used else "no"] for one in results]
    return _table(["file", "date", "holds", "in a table here"], body)


def _what(one: Result) -> str:
    if one.kind == "serving":
        targets = ", ".join(sorted({md(row.target) for row in one.rows}))
        return f"{plural(len(one.rows), 'row')} of serving: {targets}"
    if one.kind == "kernels":
        return f"{plural(len(one.kernels), 'row')} of kernel times"
    return md(one.what)


# -- comparing --


def control(rows: Sequence[Row], row: Row, arm: str) -> Row | None:
    """The row of ``arm`` that ``row`` may be compared with: same target, concurrency, temperature and prompts."""
    key = _key(row)
    return next((one for one in rows if one.arm == arm and _key(one) == key), None)


def _key(row: Row) -> tuple[object, ...]:
    return row.target, row.concurrency, row.temperature, row.asked


def parted(one: Row, other: Row) -> bool:
    """Whether the runs of the two do not overlap, with two or more of each."""
    left, right = [run.tok_per_s for run in one.runs], [run.tok_per_s for run in other.runs]
    return len(left) > 1 and len(right) > 1 and (min(left) > max(right) or max(left) < min(right))


def _against(rows: Sequence[Row], row: Row | None) -> str:
    other = control(rows, row, "dflash") if row is not None else None
    if row is None or other is None:
        return DASH
    text = _times(_divided(row.tok_per_s, other.tok_per_s))
    return f"**{text}**" if parted(row, other) and text != DASH else text


def _speed(rows: Sequence[Row], row: Row | None) -> str:
    if row is None or row.tok_per_s is None:
        return DASH
    text = _number(row.tok_per_s, 0)
    return text if row.arm == "dflash" else f"{text} ({_against(rows, row)})"


def _accepted(row: Row, other: Row | None) -> float | None:
    return _divided(row.tokens_per_verify, other.tokens_per_verify if other else None)


def _divided(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}×"


def _number(value: float | None, digits: int) -> str:
    return md(number(value, digits))


def _order(budget: int | str | None) -> tuple[bool, int]:
    return not isinstance(budget, int), budget if isinstance(budget, int) else 0


_WORDS = {"case", "the same without it", "date", "holds", "in a table here"}


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Lines:
    line = "| --- |" + "".join(" --- |" if name in _WORDS else " ---: |" for name in head[1:])
    return [f"| {' | '.join(head)} |", line, *(f"| {' | '.join(row)} |" for row in body)]


BLOCKS: dict[str, Callable[[Sequence[Result]], Lines]] = {
    "budget-plan": budget_plan,
    "serving": serving,
    "kernels": kernels,
    "files": inventory,
}
"""What can stand between markers, by name."""
