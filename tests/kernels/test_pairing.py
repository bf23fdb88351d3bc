"""Target and drafter that do not belong together, told by their configs or by the loaded modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernels.payload import pairing

NAMES = ("/models/target", "/models/drafter")
TARGET = {"hidden_size": 256, "vocab_size": 1024, "num_hidden_layers": 6}
DRAFT = {"hidden_size": 256, "vocab_size": 1024, "num_hidden_layers": 3}
NEEDS = pairing.Needs(target_layers=6, layer_ids=(1, 3, 5), mask_token_id=1021)


def _config(base: dict[str, Any], **changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**base, **changes})


def test_a_pair_that_fits_passes() -> None:
    """Also where a config says little: only contradictions are refused."""
    pairing.refuse_pair(_config(TARGET), _config(DRAFT), NEEDS, NAMES)
    pairing.refuse_pair(SimpleNamespace(), SimpleNamespace(), pairing.Needs(None, None, None), NAMES)
    nested = SimpleNamespace(text_config=_config(TARGET))
    pairing.refuse_pair(nested, _config(DRAFT), NEEDS, NAMES)
    pairing.refuse_other_drafter(16, pairing.Needs(None, None, None), "x")
    pairing.refuse_other_drafter(None, NEEDS, "x")


@pytest.mark.parametrize(
    ("draft", "needs", "words"),
    [
        ({"hidden_size": 128}, {}, ["hidden_size is 128", "256 in the target's", "lm_head"]),
        ({"vocab_size": 32000}, {}, ["vocab_size is 32000", "1024"]),
        ({}, {"target_layers": 36}, ["36 layers", "this one has 6"]),
        ({}, {"layer_ids": (1, 6, 40)}, ["layers 6, 40", "layers 0 to 5"]),
        ({}, {"mask_token_id": 1024}, ["mask token 1024", "vocabulary of 1024"]),
    ],
)
def test_every_contradiction_is_named(draft: dict[str, Any], needs: dict[str, Any], words: list[str]) -> None:
    """The message has to name both models, what contradicts what, and the way out."""
    with pytest.raises(ValueError, match="does not fit") as caught:
        pairing.refuse_pair(_config(TARGET), _config(DRAFT, **draft), NEEDS._replace(**needs), NAMES)
    for word in [*words, *NAMES, "--speculative-draft-model-path", "--speculative-algorithm"]:
        assert word in str(caught.value)


def test_all_contradictions_stand_in_one_message() -> None:
    """One restart, not one for each."""
    draft = _config(DRAFT, hidden_size=64, vocab_size=5)
    with pytest.raises(ValueError, match=r"hidden_size.*vocab_size.*36 layers"):
        pairing.refuse_pair(_config(TARGET), draft, NEEDS._replace(target_layers=36), NAMES)


def test_what_is_no_drafter_is_called_so() -> None:
    """A plain model as drafter: SGLang would try to make a DFlash model of it."""
    with pytest.raises(ValueError, match="plain is no DFlash drafter"):
        pairing.refuse_other_drafter(None, pairing.Needs(None, None, None), "plain")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}, ["5 layers of type sliding_attention"]),
        ({"layer_types": ["chunked_attention", "full_attention"]}, ["1 layers of type chunked_attention"]),
        (
            {"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
            ["3 layers of type linear_attention", "chain"],
        ),
        ({"layer_types": ["mamba", "attention"]}, ["1 layers of type mamba"]),
        ({"model_type": "falcon_mamba"}, ["some layers of type mamba"]),
    ],
)
def test_targets_with_other_layers_are_refused_with_a_way_out(config: dict[str, Any], words: list[str]) -> None:
    """They are refused after loading as well; here it costs a second instead of minutes."""
    with pytest.raises(ValueError, match="DFLASH") as caught:
        pairing.refuse_layers(_config(TARGET, **config), "/models/target")
    for word in [*words, "/models/target"]:
        assert word in str(caught.value)


def test_plain_attention_passes() -> None:
    """Most configs list their layers by now: full attention is what is served."""
    pairing.refuse_layers(_config(TARGET, layer_types=["full_attention"] * 6, sliding_window=4096), "t")
    pairing.refuse_layers(_config(TARGET, model_type="qwen3"), "t")


class _Weight:
    shape = (1024, 256)


def _loaded(**changes: Any) -> Any:
    model = {"num_context_features": 3, "fc": SimpleNamespace(in_features=768, out_features=256)}
    return pairing.Loaded.of(
        SimpleNamespace(weight=_Weight()), _config(TARGET), SimpleNamespace(**{**model, **changes})
    )


def test_loaded_modules_are_looked_at_again() -> None:
    """Configs can be wrong, or be overridden on the command line."""
    pairing.refuse_loaded_pair(_loaded(), NEEDS, NAMES)
    pairing.refuse_loaded_pair(_loaded(fc=None), NEEDS, NAMES)
    pairing.refuse_loaded_pair(_loaded(fc=SimpleNamespace(input_size=768, output_size=256)), NEEDS, NAMES)
    narrow = _loaded(fc=SimpleNamespace(in_features=384, out_features=128))
    with pytest.raises(ValueError, match=r"have 128 numbers.*takes 256.*takes 384 numbers.*have 768"):
        pairing.refuse_loaded_pair(narrow, NEEDS, NAMES)
    with pytest.raises(ValueError, match="layers 0 to 5"):
        pairing.refuse_loaded_pair(_loaded(), NEEDS._replace(layer_ids=(9,)), NAMES)


def test_heads_that_cannot_be_divided_are_refused_by_name() -> None:
    """SGLang's own assertion comes minutes later, names no model, and does not say what would do."""
    nine = SimpleNamespace(num_attention_heads=9, num_key_value_heads=3)
    twelve = SimpleNamespace(num_attention_heads=12, num_key_value_heads=2)
    silent = SimpleNamespace()
    for tp, models in ((1, (nine, nine)), (3, (nine, nine)), (4, (twelve, twelve)), (2, (silent, twelve))):
        pairing.refuse_split(tp, zip(("target", "drafter"), models, strict=True))
    with pytest.raises(ValueError, match=r"--tp-size 2 cannot divide a/target has 9 attention heads \(3 .*by 1\.$"):
        pairing.refuse_split(2, [("a/target", nine), ("a/drafter", twelve)])
    with pytest.raises(ValueError, match=r"a/drafter has 9 .* can be divided by 1, 3, 9\.$"):
        pairing.refuse_split(2, [("a/target", silent), ("a/drafter", nine)])
