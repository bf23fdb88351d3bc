"""Numbers and refusals of the payload, without torch and without SGLang."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernels.payload import limits, metrics, settings


@pytest.mark.parametrize(
    ("width", "env", "block", "drafter", "expected"),
    [
        (None, None, None, 16, (32, 33, 16)),  # default budget
        (17, None, None, 16, (16, 17, 16)),
        (17, "16", 8, 8, (16, 17, 8)),
        (None, "4", None, 16, (4, 16, 16)),  # the tree shares the draft block's window: padded to the block
        (None, "1024", None, 16, (1024, 1025, 16)),
    ],
)
def test_settings(width: int | None, env: str | None, block: int | None, drafter: int | None, expected: Any) -> None:
    """Budget counts nodes without the root, the flag counts it: the classic off-by-one of tree speculation."""
    found = settings.resolve(width, block, drafter, {settings.ENV_BUDGET: env} if env else {})
    assert (found.budget, found.width, found.block_size) == expected
    left = {settings.ENV_RESOLVED: str(found.budget)}
    assert settings.inherit(found.width, found.block_size, left) == found


@pytest.mark.parametrize(
    ("width", "env", "block", "drafter", "words"),
    [
        (33, "16", None, 16, ["DDTREE_BUDGET=16", "--speculative-num-draft-tokens=33", "17"]),
        (17, None, 8, 16, ["--speculative-dflash-block-size=8", "block_size=16"]),
        (17, None, None, None, ["block_size", "--speculative-dflash-block-size"]),
        (1, None, None, 16, ["--speculative-num-draft-tokens=1", "at least 2"]),
        (None, "0", None, 16, ["DDTREE_BUDGET=0"]),
        (None, "many", None, 16, ["DDTREE_BUDGET='many'"]),
        (None, "1025", None, 16, ["1025", "1024"]),
        (None, "32", None, 64, ["order code"]),
        (None, "32", 1, 1, ["block size 1"]),
    ],
)
def test_contradictions_name_both_sources(
    width: int | None, env: str | None, block: int | None, drafter: int | None, words: list[str]
) -> None:
    """An operator must be able to fix the unit from the message alone."""
    with pytest.raises(ValueError, match="DDTREE") as caught:
        settings.resolve(width, block, drafter, {settings.ENV_BUDGET: env} if env else {})
    for word in words:
        assert word in str(caught.value)


def test_configurations_that_are_not_served() -> None:
    """Every offending setting is named at once; a clean configuration passes."""
    clean = SimpleNamespace(pp_size=1, page_size=1, disaggregation_mode="null", enable_lora=None)
    limits.refuse_configuration(clean)
    with pytest.raises(ValueError, match=r"--pp-size 2.*--page-size 16.*Leave that out, or serve with"):
        limits.refuse_configuration(SimpleNamespace(pp_size=2, page_size=16, disaggregation_mode="null"))


def _request(**changes: Any) -> SimpleNamespace:
    params = {"top_k": 1, "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
    params.update({key: value for key, value in changes.items() if key not in ("return_logprob", "grammar")})
    outer = {key: value for key, value in changes.items() if key in ("return_logprob", "grammar")}
    return SimpleNamespace(sampling_params=SimpleNamespace(**params), **outer)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"top_k": 1 << 30}, None),
        ({"top_k": 40}, None),
        ({"return_logprob": True}, "logprob"),
        ({"json_schema": "{}"}, "grammar"),
        ({"grammar": object()}, "grammar"),
        ({"repetition_penalty": 1.1}, None),
        ({"min_new_tokens": 3}, None),
        ({"beam_width": 2}, "beam"),
        ({"sampling_seed": -5}, None),
        ({"sampling_seed": 1 << 63}, "seed"),
        ({"custom_params": {"mine": 3}}, None),
        ({"custom_params": {"ddtree": {"budget": 32}}}, None),
        ({"custom_params": {"ddtree": {"budget": 33}}}, "budget"),
        ({"custom_params": {"ddtree": {"budget": 0}}}, "budget"),
        ({"custom_params": {"ddtree": {"budget": True}}}, "budget"),
        ({"custom_params": {"ddtree": {"budget": "8"}}}, "budget"),
        ({"custom_params": {"ddtree": {"bugdet": 8}}}, "budget"),
        ({"custom_params": {"ddtree": 8}}, "budget"),
    ],
)
def test_requests_that_are_not_served(changes: dict[str, Any], reason: str | None) -> None:
    """Sampling is served; whatever a tree would get wrong must not be ignored in silence."""
    refusal = limits.refuse_request(_request(**changes), most=32, logprobs=False, grammars=False)
    assert (refusal[0] if refusal else None) == reason


def test_logprobs_and_grammars_are_served_where_the_release_can() -> None:
    """Refused without need they are missing; served without the release's seams they end the server."""
    assert limits.refuse_request(_request(return_logprob=True)) is None
    assert limits.refuse_request(_request(json_schema="{}")) is None


class _Weight:
    def __init__(self, floating: bool = True, size: int = 2) -> None:
        self._floating, self._size = floating, size

    def is_floating_point(self) -> bool:
        return self._floating

    def element_size(self) -> int:
        return self._size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 4096}, "sliding-window"),
        ({"recurrent": True}, "recurrent"),
        ({"model_config": SimpleNamespace(is_multimodal=True)}, "multimodal"),
        ({"lm_head": SimpleNamespace(weight=_Weight(floating=False))}, "quantised"),
        ({"lm_head": SimpleNamespace(weight=_Weight(size=1))}, "quantised"),
        (
            {"lm_head": SimpleNamespace(weight=_Weight(), shard_indices=SimpleNamespace(num_added_elements=8))},
            "added vocabulary",
        ),
    ],
)
def test_targets_that_are_not_served(changes: dict[str, Any], words: str) -> None:
    """These give wrong tokens without any error in SGLang itself."""
    good: dict[str, Any] = {
        "model_config": SimpleNamespace(),
        "sliding_window": None,
        "recurrent": False,
        "lm_head": SimpleNamespace(weight=_Weight()),
    }
    limits.refuse_target(**good)
    with pytest.raises(ValueError, match=f"{words}.*--speculative-algorithm DFLASH"):
        limits.refuse_target(**{**good, **changes})


@pytest.mark.parametrize(
    ("model", "config", "words"),
    [
        ({"candidate_selector": object()}, {}, "selector"),
        ({}, {"projector_type": "domino"}, "domino"),
        ({}, {"lilicorr_rank": 8}, "LiLiCorr"),
        ({}, {"output_multiplier": 0.5}, "output_multiplier"),
    ],
)
def test_drafters_that_are_not_served(model: dict[str, Any], config: dict[str, Any], words: str) -> None:
    """Their heads are conditional: a best-first tree over plain marginals would be built from the wrong scores."""
    limits.refuse_drafter(SimpleNamespace(candidate_selector=None), SimpleNamespace(projector_type=None))
    with pytest.raises(ValueError, match=f"{words}.*--speculative-draft-model-path"):
        limits.refuse_drafter(SimpleNamespace(**model), SimpleNamespace(**config))


def test_drafter_of_another_target_is_noticed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are right and its speed is not: without a word nobody looks at the drafter."""
    monkeypatch.setattr(metrics, "_warned", False)
    monkeypatch.setattr(metrics, "host", metrics.HostCounters())
    for steps, accepted, nodes in ((31, 0, 992), (5000, 600, 160000), (500, 0, 0)):  # the last: budget 0 was asked for
        metrics._judge_drafter({"requests": steps, "accepted_drafts": accepted, "nodes_built": nodes})
    assert not caplog.records
    assert metrics.host.values["poor_drafter"] == 0
    for steps, accepted in ((200, 3), (300, 4)):
        metrics._judge_drafter({"requests": steps, "accepted_drafts": accepted, "nodes_built": 32 * steps})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    for words in ("3 drafts", "200 steps", "1.01 tokens per step", "--speculative-draft-model-path"):
        assert words in caplog.text
    assert metrics.host.values["poor_drafter"] == 1


def test_drafter_is_looked_at_within_the_first_hundred_steps(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading once a second comes after hundreds of steps, and without a run folder nobody reads at all."""

    class Device:
        """Counters whose copy arrives at the third look; two requests a step, nothing accepted."""

        looks = 0

        def look(self) -> dict[str, int] | None:
            self.looks += 1
            steps = 2 * metrics.LOOK_AT_STEP
            return {"requests": steps, "accepted_drafts": 1, "nodes_built": 9 * steps} if self.looks > 2 else None

    device = Device()
    monkeypatch.setattr(metrics, "device", device)
    monkeypatch.setattr(metrics, "host", metrics.HostCounters())
    monkeypatch.setattr(metrics, "_warned", False)
    monkeypatch.setattr(metrics, "_looked", False)
    for _ in range(99):
        metrics.step_done()
    assert len(caplog.records) == 1
    for _ in range(200):
        metrics.step_done()
    assert device.looks == 3
    assert len(caplog.records) == 1


def test_how_often_a_step_is_timed() -> None:
    """A bad value is refused when the arguments are read, not after minutes of loading."""
    found = [settings.time_every({settings.ENV_TIME_EVERY: text} if text else {}) for text in ("", "0", "8")]
    assert found == [64, 0, 8]
    for text in ("often", "-1", "1.5"):
        with pytest.raises(ValueError, match=f"DDTREE_TIME_EVERY='{text}'"):
            settings.time_every({settings.ENV_TIME_EVERY: text})
