"""Pairs of configs that fit, and those that do not (F6, F7, F9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.model import Facts, Gpu, HostInfo, ModelFolder
from ddtree_ops.service import estimates
from ddtree_ops.service.fit import check_fit, not_full_attention

from .test_settings import SPEC

TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "vocab_size": 151936,
    "sliding_window": None,
    "use_sliding_window": False,
}
DRAFT: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "hidden_size": 4096,
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "vocab_size": 151936,
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
}


def pair(target: dict[str, Any] | None = None, draft: dict[str, Any] | None = None, **folders: Any):
    one = ModelFolder(role="target", path="/m/t", exists=True, config={**TARGET, **(target or {})})
    two = ModelFolder(role="draft", path="/m/d", exists=True, config={**DRAFT, **(draft or {})})
    hashes = {"target": folders.pop("target_tokenizer", ""), "draft": folders.pop("draft_tokenizer", "")}
    return [msgspec.structs.replace(model, tokenizer_sha256=hashes[model.role], **folders) for model in (one, two)]


def worst(models, spec=SPEC) -> tuple[str, str]:
    """The worst state and the texts that have it."""
    checks = check_fit(models, spec)
    for state in ("fail", "warn", "ok"):
        texts = " | ".join(check.text for check in checks if check.state == state)
        if texts:
            return state, texts
    raise AssertionError("no checks")


def test_a_pair_that_fits():
    """And the convention of layer numbers is said."""
    state, text = worst(pair())
    assert state == "ok"
    assert "SGLang captures layer k's output before layer k + 1" in text
    assert "verify width 33" in text


def test_the_trained_pair_of_the_tests_fits():
    """The configs that are really served in the tests."""
    folder = Path(__file__).parents[1] / "models" / "pytiny"
    models = [
        ModelFolder(
            role=role, path=f"/m/{role}", exists=True, config=json.loads((folder / role / "config.json").read_text())
        )
        for role in ("target", "draft")
    ]
    assert worst(models)[0] == "ok"


@pytest.mark.parametrize(
    ("target", "draft", "words"),
    [
        ({"hidden_size": 2560}, {}, ("2560", "4096")),
        ({"num_hidden_layers": 32}, {}, ("32", "36")),
        ({}, {"num_target_layers": None, "dflash_config": {"target_layer_ids": [1, 36]}}, ("layer 36", "has 36")),
        ({}, {"dflash_config": {"target_layer_ids": [1, 35]}}, ("layer 35 of 36", "not captured")),
        ({}, {"dflash_config": {"target_layer_ids": [1], "mask_token_id": 151936}}, ("mask token 151936", "151936")),
        ({}, {"vocab_size": 32000}, ("151936", "32000")),
        (
            {},
            {"architectures": ["LlamaForCausalLM"], "dflash_config": None},
            ("LlamaForCausalLM", "not a DFlash drafter"),
        ),
        ({}, {"block_size": 1}, ("block size 1",)),
        ({"layer_types": ["linear_attention", "full_attention"]}, {}, ("linear_attention", "corrupt")),
        ({"layer_types": ["sliding_attention", "full_attention"]}, {}, ("sliding_attention",)),
        (
            {"model_type": "mistral", "sliding_window": 4096, "use_sliding_window": True},
            {},
            ("sliding window of 4096",),
        ),
        ({"full_attention_interval": 4}, {}, ("full_attention_interval",)),
    ],
)
def test_pairs_that_do_not_fit_are_refused_with_both_numbers(target, draft, words):
    """F6 and F9: found from the configs, without a GPU."""
    state, text = worst(pair(target, draft))
    assert state == "fail"
    for word in words:
        assert word in text


def test_padding_of_the_vocabulary_is_no_mismatch():
    """F6: 151936 against 152064 rows with the same tokenizer passes with a note; with another tokenizer it does not."""
    state, text = worst(pair(draft={"vocab_size": 152064}, target_tokenizer="a", draft_tokenizer="a"))
    assert (state, "padding only" in text) == ("ok", True)
    assert worst(pair(draft={"vocab_size": 152064}, target_tokenizer="a", draft_tokenizer="b"))[0] == "fail"
    assert worst(pair(draft={"vocab_size": 152064}))[0] == "warn"


def test_a_quantised_repack_of_the_right_target_passes():
    """F6: the weights' format is not the drafter's business."""
    assert worst(pair({"quantization_config": {"quant_method": "awq"}, "torch_dtype": "float16"}))[0] == "ok"


def test_multimodal_targets_are_read_where_their_text_model_is():
    """The top level of such a config has no hidden_size of the language model."""
    nested = {"architectures": ["X"], "hidden_size": 1, "text_config": dict(TARGET)}
    models = [ModelFolder(role="target", path="/m/t", exists=True, config=nested), pair()[1]]
    assert worst(models)[0] == "ok"


def test_a_budget_below_the_chain_is_a_warning():
    """A tree of 8 nodes cannot hold a chain of 15."""
    state, text = worst(pair(), msgspec.structs.replace(SPEC, budget=8))
    assert (state, "budget 8" in text) == ("warn", True)


def test_folders_that_are_not_there():
    """A wrong path fails; a hub's name cannot be judged and is said so."""
    spec = msgspec.structs.replace(SPEC, target="/m/t", drafter="z-lab/x")
    gone = [msgspec.structs.replace(model, exists=False) for model in pair()]
    assert worst(gone, spec)[0] == "fail"
    checks = check_fit([pair()[0]], spec)
    assert [check.state for check in checks] == ["warn"]


def test_full_attention_of_older_configs():
    """`sliding_window` with `use_sliding_window: false` is full attention (Qwen)."""
    assert not_full_attention({"sliding_window": 4096, "use_sliding_window": False}) == ""
    assert not_full_attention({"layer_types": ["full_attention"] * 3}) == ""


def facts(**more: Any) -> Facts:
    names = ("hostname", "user", "home", "os", "kernel", "arch", "boot_id", "pid1")
    models = tuple(msgspec.structs.replace(model, weights_bytes=8 * 2**30) for model in pair())
    return Facts(host=HostInfo(euid=0, **dict.fromkeys(names, "")), models=models, **more)


def test_gpu_memory_is_weighed():
    """F7: weights and verify logits against what is free, with the parts named."""
    (need,) = estimates.gpu_memory(facts(gpus=(Gpu(index=0, name="x", memory_free_mib=12000),)), SPEC)
    assert not need.enough
    assert need.needed > 16 * 1024
    assert "verify logits" in need.note
    wide = msgspec.structs.replace(SPEC, budget=256, extra_args=("--cuda-graph-max-bs", "64"))
    assert estimates.verify_logits_bytes(facts(), wide) == 64 * 257 * 151936 * 6
    assert list(estimates.gpu_memory(facts(), SPEC)) == []


def test_downtime_is_a_range():
    """A baseline is one more start."""
    low, high = estimates.downtime(facts())
    more_low, more_high = estimates.downtime(facts(), baseline=True)
    assert 0 < low < high
    assert more_low > low
    assert more_high > high
