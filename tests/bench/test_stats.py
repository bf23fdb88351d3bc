"""Figures from rows: definitions, and what is no number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.bench import stats


def row(**more):
    base = {
        "id": "code/a",
        "kind": "code",
        "ok": True,
        "completion_tokens": 100,
        "prompt_tokens": 50,
        "cached_tokens": 0,
    }
    return {**base, "verify_ct": 25, "accepted_drafts": 75, "seconds": 2.0, "ttft": 0.5, "first_tokens": 1, **more}


def test_tokens_per_step_and_drafts_per_step_are_two_numbers():
    """F3: with and without the target's own token; both named."""
    rows = [row()]
    assert stats.tokens_per_verify_step(rows) == 4.0
    assert stats.accepted_drafts_per_step(rows) == 3.0


def test_it_is_a_ratio_of_sums():
    """Not a mean of ratios: a short request does not weigh as much as a long one."""
    rows = [row(), row(completion_tokens=10, verify_ct=10, accepted_drafts=0)]
    assert stats.tokens_per_verify_step(rows) == 110 / 35


def test_no_verify_step_is_no_number():
    """F3: verify_ct = 0 is inactive speculation, not an infinite or zero acceptance."""
    assert stats.tokens_per_verify_step([row(verify_ct=0)]) is None
    assert stats.accepted_drafts_per_step([row(verify_ct=0, accepted_drafts=None)]) is None
    assert stats.accepted_drafts_per_step([row(accepted_drafts=None)]) is None


def test_rates():
    """The first chunk of a speculative stream may hold several tokens; they are not decoded in the measured time."""
    assert stats.request_rate(row()) == 50.0
    assert stats.decode_rate(row(first_tokens=4)) == 96 / 1.5
    assert stats.decode_rate(row(first_tokens=100)) is None
    assert stats.request_rate(row(seconds=0.0)) is None


def test_failed_requests_do_not_make_it_faster():
    """F10: a failed request is counted and listed; its tokens and time are in no rate."""
    figures = stats.summary([row(), row(ok=False, completion_tokens=0)], 4.0)
    assert (figures["requests"], figures["failed"], figures["tokens_per_second"]) == (2, 1, 25.0)


def test_a_regime_that_loses_is_visible():
    """F8: figures per regime, over their own seconds."""
    found = stats.by_regime([row(), row(kind="chat", completion_tokens=10, verify_ct=9, accepted_drafts=1)])
    assert [round(found[name]["tokens_per_verify_step"], 2) for name in ("chat", "code")] == [1.11, 4.0]


def test_counters_between_two_readings():
    """Histograms element by element; what only one reading has is left out."""
    before = {"verify_steps": 5, "histogram": [1, 2], "old": 1}
    after = {"verify_steps": 9, "histogram": [2, 5], "new": 3, "name": "x"}
    assert stats.counter_delta(before, after) == {"verify_steps": 4, "histogram": [1, 3]}


def test_counters_of_tables_and_rows():
    """The payload counts ranks by depth and times by width; a width that is new since then began at 0."""
    before = {"ranks": [[1, 0], [2, 2]], "split": {"clock": "gpu", "us": 10.0, "by_width": {"17": {"samples": 1}}}}
    after = {
        "ranks": [[4, 0], [2, 3]],
        "split": {"clock": "gpu", "us": 25.0, "by_width": {"17": {"samples": 4}, "33": {"samples": 2}}},
    }
    assert stats.counter_delta(before, after) == {
        "ranks": [[3, 0], [0, 1]],
        "split": {"clock": "gpu", "us": 15.0, "by_width": {"17": {"samples": 3}, "33": {"samples": 2}}},
    }


@given(
    st.lists(
        st.integers(0, 5).map(lambda n: row(completion_tokens=n, verify_ct=n % 3, ok=n > 0, seconds=n / 7)), max_size=6
    )
)
def test_nothing_divides_by_zero(rows):
    """Any mixture of empty, failed and instant requests gives figures."""
    figures = stats.summary(rows, 0.0)
    assert figures["tokens_per_second"] is None
    stats.by_regime(rows)


def test_quantiles():
    """Linear between neighbours."""
    assert stats.median([]) is None
    assert stats.median([3.0, 1.0, 2.0]) == 2.0
    assert stats.quantile([0.0, 10.0], 0.25) == 2.5
