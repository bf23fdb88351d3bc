"""What a drafter's ``config.json`` says, in the words of the format that SGLang loads as ``DFlashDraftModel``.

Values of ``dflash_config`` go before those of the top level. What this implementation does not do is refused here, by
name: a drafter that is run wrongly still gives right tokens, only fewer per step, so nobody would notice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
_OTHER_KINDS = (
    *("selector_rank", "selector_top_k", "projector_type", "lilicorr", "conv_kernel_size", "output_multiplier"),
    *("final_logit_softcapping", "attention_sink_bias", "attention_value_scale"),
    *("shift_label", "pure_draft_prefix_len"),
)


class Unsupported(ValueError):
    """A model or file that this implementation does not understand; the message says what and where."""


@dataclass(frozen=True)
class DraftConfig:
    """Shapes and numbers of a drafter; ``taps`` counts the target's layers from 0 and means their outputs."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float
    theta: float
    bias: bool
    block: int
    taps: tuple[int, ...]
    mask_id: int

    @property
    def depth(self) -> int:
        """Levels of a tree: the block without its anchor."""
        return self.block - 1


def read_config(folder: Path) -> Config:
    """Read ``config.json`` of a model folder."""
    path = folder / "config.json"
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise Unsupported(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise Unsupported(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unsupported(f"{path} is not a JSON object")
    return found


def draft_config(found: Config, target: Config, where: str) -> DraftConfig:
    """Interpret a drafter's config beside its target's; raises :class:`Unsupported` with the key and its value."""
    dflash = found.get("dflash_config") or {}
    hidden, heads = _int(found, "hidden_size", where), _int(found, "num_attention_heads", where)
    if hidden != target.get("hidden_size"):
        raise Unsupported(f"{where}: hidden_size {hidden} is not the target's {target.get('hidden_size')}")
    layers = _int(found, "num_hidden_layers", where)
    _refuse(found, dflash, where)
    target_layers = int(target["num_hidden_layers"])
    block = dflash.get("block_size", found.get("block_size", 16))
    if block is None or int(block) < 2:
        raise Unsupported(f"{where}: block_size {block} drafts nothing")
    mask_id = dflash.get("mask_token_id", found.get("mask_token_id"))
    if mask_id is None:
        raise Unsupported(f"{where}: no mask_token_id; a mask token by name alone is not looked up")
    return DraftConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=int(found.get("num_key_value_heads") or heads),
        head_dim=int(found.get("head_dim") or hidden // heads),
        inner=_int(found, "intermediate_size", where),
        eps=float(found.get("rms_norm_eps", 1e-6)),
        theta=rope_theta(found, where),
        bias=bool(found.get("attention_bias", False)),
        block=int(block),
        taps=_taps(dflash.get("target_layer_ids", found.get("target_layer_ids")), target_layers, layers, where),
        mask_id=int(mask_id),
    )


def rope_theta(found: Config, where: str) -> float:
    """The base of plain rotary positions; scaled ones are refused."""
    rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise Unsupported(f"{where}: rotary positions of type {kind!r}")
    return float(rope.get("rope_theta") or found.get("rope_theta") or 10000.0)


def check_target(found: Config, where: str) -> None:
    """Refuse targets whose attention or logits are not plain; a 4-D mask would silently replace a sliding window."""
    kinds = set(found.get("layer_types") or ()) - {"full_attention"}
    if kinds or (found.get("use_sliding_window") and found.get("sliding_window")):
        raise Unsupported(f"{where}: layers of other kinds than full attention: {sorted(kinds) or 'sliding window'}")
    for key in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if found.get(key) not in (None, 0, 1, 1.0):
            raise Unsupported(f"{where}: {key} = {found[key]}")


def _int(found: Config, key: str, where: str) -> int:
    if not isinstance(found.get(key), int) or found[key] < 1:
        raise Unsupported(f"{where}: {key} is {found.get(key)!r}, not a positive number")
    return int(found[key])


def _refuse(found: Config, dflash: Config, where: str) -> None:
    kinds = set(found.get("layer_types") or ()) - {"full_attention"}
    if kinds or (found.get("use_sliding_window") and found.get("sliding_window")):
        raise Unsupported(f"{where}: a drafter with layers of other kinds than full attention: {sorted(kinds)}")
    if found.get("is_causal"):
        raise Unsupported(f"{where}: is_causal: a causal drafter block")
    if found.get("hidden_act", "silu") != "silu":
        raise Unsupported(f"{where}: hidden_act {found['hidden_act']!r}")
    for name in _OTHER_KINDS:
        if (value := dflash.get(name, found.get(name))) not in (None, False, 0, 1, 1.0):
            raise Unsupported(f"{where}: {name} = {value!r}: another kind of drafter than plain DFlash")


def _taps(given: Any, target_layers: int, layers: int, where: str) -> tuple[int, ...]:
    if given is None:
        return default_taps(target_layers, layers)
    taps = tuple(int(layer) for layer in given)
    if not taps or not all(0 <= layer < target_layers for layer in taps):
        raise Unsupported(f"{where}: target_layer_ids {list(taps)} do not fit a target of {target_layers} layers")
    return taps


def default_taps(target_layers: int, layers: int) -> tuple[int, ...]:
    """The layers that are tapped where a config names none: one per drafter layer, evenly between 1 and L - 3."""
    if layers == 1:
        return (target_layers // 2,)
    first, last = 1, target_layers - 3
    if last < first:
        raise Unsupported(f"no target_layer_ids, and a target of {target_layers} layers is too shallow for the default")
    return tuple(round(first + i * (last - first) / (layers - 1)) for i in range(layers))
