"""Cells from rounds: figures, validity with reasons, speed-ups, the lines at the top."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ddtree_ops.bench import definitions, intervals
from ddtree_ops.bench.results import Client, Percentiles, acceptance, summarise
from tests.bench.rows import MANIFEST, cell_rows, failed, manifest, request, row, warm


def only(rows, **plan):
    summary = summarise(manifest(**plan), rows)
    assert len(summary.cells) == 1
    return summary.cells[0]


def test_figures_of_a_cell():
    """300 tokens in 1.5 s; 4 tokens per verify step with and 3 drafts without the bonus token (F3)."""
    cell = only(cell_rows("ddtree", 1.5))
    assert (cell.runs, cell.starts, cell.requests, cell.valid) == (6, 2, 18, True)
    assert cell.tok_per_s.median == 200.0
    assert cell.tok_per_s_per_request.median == 50.0
    assert cell.tokens_per_verify.median == 4.0
    assert cell.accepted_drafts.median == 3.0
    assert cell.ttft_ms == Percentiles(p50=500.0, p95=500.0, p99=500.0, samples=18)
    assert cell.tpot_ms.p50 == pytest.approx(1500 / 99)
    assert cell.step_ms.p50 == pytest.approx(1500 / 25)


def test_the_first_chunk_is_not_decoded_in_the_measured_time():
    """A speculative stream may bring several tokens at first."""
    requests = tuple(request(index, first_tokens=10) for index in range(3))
    cell = only([*warm(), row(requests=requests)])
    assert cell.tpot_ms.p50 == pytest.approx(1500 / 90)


def test_tokens_per_verify_is_a_ratio_of_sums():
    """Not a mean of ratios: a short request weighs less than a long one."""
    requests = (request(0), request(1, tokens=10, verify_ct=10, accepted_drafts=0))
    assert only([*warm(), row(requests=requests)]).tokens_per_verify.median == pytest.approx(110 / 35)


def test_speedups_of_the_same_setting_alone():
    """Each regime and concurrency against its own control; nothing is pooled."""
    rows = cell_rows("ar", 3.0) + cell_rows("dflash", 2.0) + cell_rows("ddtree", 1.0)
    rows += cell_rows("ddtree", 1.0, regime="code")
    cells = {(cell.arm, cell.regime): cell for cell in summarise(MANIFEST, rows).cells}
    assert cells["ddtree", "chat"].speedup_vs_ar.median == pytest.approx(3.0)
    assert cells["ddtree", "chat"].speedup_vs_dflash.median == pytest.approx(2.0)
    assert cells["dflash", "chat"].speedup_vs_ar.median == pytest.approx(1.5)
    assert cells["ddtree", "code"].speedup_vs_ar is None
    assert cells["ar", "chat"].speedup_vs_dflash is None


def test_no_speedup_over_an_invalid_control():
    """INVALID is not a number, and nothing is divided by it."""
    rows = cell_rows("ar", 3.0, flushed=False) + cell_rows("ddtree", 1.0)
    rows[-1] = row(start=2, round=2, requests=(failed(), request(1)))
    cells = {cell.arm: cell for cell in summarise(MANIFEST, rows).cells}
    assert not cells["ddtree"].valid
    assert cells["ddtree"].speedup_vs_ar is None
    assert cells["ar"].notes  # the flush was not confirmed


def test_failed_requests_are_counted_listed_and_in_no_rate():
    """F10: a timed-out request makes nothing faster."""
    requests = (request(0), failed(1), failed(2, "timeout", "no byte came for 5 s"), failed(3, "empty", "no tokens"))
    cell = only([*warm(), row(seconds=2.0, requests=requests)])
    assert (cell.failed, cell.timed_out, cell.empty) == (1, 1, 1)
    assert cell.tok_per_s.median == 50.0
    assert "request 2 (chat/2): no byte came for 5 s" in cell.failures[1]
    assert not cell.valid
    assert "3 of 4 requests failed; request 1" in cell.why[0]


def test_a_bound_for_failures_can_be_set():
    """A quarter may fail, if somebody wants that."""
    rows = [*warm(), row(plan=manifest(failed_most=0.5).plan, requests=(request(0), request(1), failed(2)))]
    assert only(rows, failed_most=0.5).valid


def test_a_busy_load_generator_is_no_measurement_of_the_server():
    """It shares the host's cores."""
    cell = only([*warm(), row(client=Client(cpu_s=0.99, wall_s=1.0))])
    assert "load generator" in cell.why[0]


def test_a_round_measured_again_replaces_the_cut_one():
    """--resume: the cut round stays in the file and out of the figures."""
    cut = msgspec.structs.replace(row(), requests=(), verdict="invalid", why=("cut after 0 of 3 requests",), cut=True)
    cell = only([*warm(), cut, row()])
    assert (cell.runs, cell.valid) == (1, True)
    assert not only([*warm(), row(), msgspec.structs.replace(cut, round=1)]).valid


def test_warm_up_of_the_nearest_setting_stands_for_a_cell():
    """One mixed regime warms all regimes; another start's warm-up warms nothing."""
    assert only([*warm(regime="mixed"), row()]).valid
    assert "no warm-up round" in only([*warm(), row(start=2)]).why[0]
    other = [row(kind="warmup", round=index, seconds=1.0 + index, budget=8) for index in range(2)]
    assert only([*other, *warm(), row()]).valid
    assert not only([*other, row()]).valid


def test_no_rows_is_invalid():
    """No division by zero, and no empty table that looks fine."""
    summary = summarise(MANIFEST, [])
    assert (summary.verdict, summary.cells) == ("INVALID", ())
    assert "no round" in summary.headline[0]


def test_definitions_are_stored_with_the_figures():
    """Every figure of a cell has one, and the two accept lengths are not the same word."""
    summary = summarise(MANIFEST, cell_rows("ddtree", 1.0))
    assert set(definitions.NAMES) <= set(summary.definitions)
    assert "bonus" in summary.definitions["tokens_per_verify"]
    assert "without the bonus" in summary.definitions["accepted_drafts"]
    with pytest.raises(KeyError):
        definitions.definitions("beauty")


def test_counters_become_acceptance():
    """Sums over the measured rounds, by depth; the warm-up's are not in them."""
    delta = {
        "verify_steps": 10, "requests": 10, "accept_length_histogram": [4, 3, 3], "first_miss_rank": [5, 1],
        "steps_by_width": {"33": 10}, "steps_by_shape": {"tree": 8, "chain": 2}, "refused": 2,
        "refused_grammar": 2, "fallback_late_commit": 3, "fallback_eager_draft": 0, "full_paths": 1,
        "time_split": {"clock": "gpu", "samples": 2, "draft_us": 100.0, "build_us": 20.0, "verify_us": 900.0,
                       "commit_us": 10.0},
    }  # fmt: skip
    rows = [*warm(counters_delta=delta), row(counters_delta=delta), row(round=1, counters_delta=delta), row("ar")]
    (cell,) = acceptance(rows).cells
    assert (cell.verify_steps, cell.request_steps, cell.chain_steps) == (20, 20, 4)
    assert [(one.depth, one.reached, one.accepted) for one in cell.by_depth] == [(1, 20, 12), (2, 12, 6)]
    assert cell.time_us == {"draft": 50.0, "build": 10.0, "verify": 450.0, "commit": 5.0}
    assert cell.first_miss_rank == (10, 2)
    assert cell.steps_by_width == {"33": 20}
    assert cell.fallbacks == {"refused_grammar": 4, "fallback_late_commit": 6}
    assert acceptance([row(counters_delta={})]).cells == ()


numbers = st.floats(0, 3, allow_nan=False)
requests = st.lists(
    st.builds(
        lambda tokens, steps, total, ok, at: request(
            at, ok=ok, tokens=tokens, verify_ct=steps, total_s=total, ttft_s=total, prompt_tokens=tokens, error="x",
            accepted_drafts=None if steps == 2 else tokens,
        ),
        st.integers(0, 5), st.integers(0, 3) | st.none(), numbers, st.booleans(), st.integers(0, 2),
    ),
    max_size=4,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ar", "dflash", "ddtree"]), numbers, requests), max_size=6))
@example([("ar", 5e-324, [request(total_s=5e-324)])])
def test_nothing_divides_by_zero(rounds):
    """Any mixture of empty, failed and instant requests and rounds gives a summary without an infinite figure."""
    rows = [row(arm, seconds, requests=tuple(found), round=at) for at, (arm, seconds, found) in enumerate(rounds)]
    text = msgspec.json.encode(summarise(MANIFEST, rows))
    assert b"Infinity" not in text
    assert b"NaN" not in text


# -- intervals --


def test_intervals_are_the_same_each_time():
    """Seeded; another seed gives nearly the same one."""
    groups = [[1.0, 1.1, 0.9], [1.2, 1.15]]
    assert intervals.of_rounds(groups, "a") == intervals.of_rounds(groups, "a")
    assert intervals.of_rounds(groups, "b").low == pytest.approx(intervals.of_rounds(groups, "a").low, abs=0.1)


def test_two_starts_that_differ_widen_the_interval():
    """Six rounds of two starts are not six independent ones."""
    apart = intervals.of_rounds([[1.0, 1.01, 0.99], [2.0, 2.01, 1.99]], "s")
    assert apart.low < 1.05
    assert apart.high > 1.95


def test_an_interval_holds_its_point_and_a_single_value_has_none():
    """One sample: no width is invented."""
    one = intervals.of_rounds([[5.0]], "s")
    assert (one.median, one.low, one.high, one.samples) == (5.0, 5.0, 5.0, 1)
    assert intervals.of_rounds([[], []], "s") is None
    assert intervals.ratio_of_sums([(1.0, 0.0)], "s") is None
    assert intervals.ratio_of_medians([[1.0]], [[0.0]], "s") is None


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_bootstrap_covers_the_point(values):
    """Low <= median <= high, within the range of the values."""
    found = intervals.of_rounds([values], "s")
    assert min(values) - 1e-9 <= found.low <= found.median <= found.high <= max(values) + 1e-9


def test_percentiles():
    """Linear between neighbours."""
    found = intervals.percentiles([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99, found.samples) == (50.0, 95.0, 99.0, 101)
    assert intervals.percentiles([]) is None
