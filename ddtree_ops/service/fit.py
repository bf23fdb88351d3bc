"""Does the drafter fit the target? Decided from the two ``config.json`` files and the tokenizer, before anything loads.

A drafter for another target can load without an error and then accept nothing, or fail at its first step. Read in
SGLang 0.5.11 to 0.5.23: the drafter reads the outputs of ``target_layer_ids`` (layer ``k`` of the target, counted from
0, is captured *before layer k + 1*, so the last layer's output cannot be captured by the decoder loops); it uses the
target's embedding and ``lm_head``, so hidden sizes must be equal and its mask token a row of the target's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from ..model import Check, ModelFolder
from .settings import ServiceSpec

#: Model families whose layers are not all full attention although their config does not list ``layer_types``.
_HYBRID_TYPES = (
    "mamba", "mamba2", "jamba", "bamba", "falcon_h1", "falcon_mamba", "nemotron_h", "granitemoehybrid", "lfm2",
    "lfm2_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "minimax_m1", "ring_linear", "zamba2", "rwkv",
)  # fmt: skip
_HYBRID_KEYS = ("full_attention_interval", "hybrid_override_pattern", "attn_layer_period", "linear_attn_config")
_PADDING_MOST = 4096  # rows; embedding tables are padded to multiples of 64 to 1024, some vendors add more


def check_fit(models: Iterable[ModelFolder], spec: ServiceSpec) -> tuple[Check, ...]:
    """All checks of the pair; one that fails forbids the deploy, one that warns is shown."""
    folders = {model.role: model for model in models}
    target, draft = folders.get("target"), folders.get("draft")
    missing = [*_missing("target", target, spec.target), *_missing("draft", draft, spec.drafter)]
    if missing or target is None or draft is None:
        return tuple(missing)
    text, drafter = _text_config(target.config), _text_config(draft.config)
    return (
        *_architecture(draft),
        *_hidden_size(text, drafter),
        *_layers(text, draft.config),
        *_vocabulary(target, draft, text, drafter),
        *_block(draft.config, spec),
        *_attention(text, spec),
    )


def _check(state: Literal["ok", "warn", "fail"], text: str, next_step: str = "") -> Check:
    return Check(name="drafter fits", state=state, text=text, next_step=next_step)


def _missing(role: str, folder: ModelFolder | None, path: str) -> Iterator[Check]:
    """A folder that cannot be read on the host; a name of a hub cannot be judged, and that is said."""
    key = "target_model" if role == "target" else "drafter"
    if folder is None or (not folder.exists and not path.startswith(("/", "~"))):
        yield _check(
            "warn", f"{role} {path or 'model'} is not a folder of the host: whether the pair fits is not known"
        )
    elif not folder.exists:
        yield _check("fail", f"the {role} folder {path} does not exist", f"correct `service: {key}` in the inventory")
    elif folder.error or not folder.config:
        yield _check("fail", f"{path}/config.json: {folder.error or 'missing'}", "complete the download of that model")


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part; multimodal configs nest it."""
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping) and "hidden_size" in nested:
            return nested
    return config


def dflash(config: Mapping[str, Any], key: str) -> Any:
    """A DFlash setting, which drafters keep in ``dflash_config`` or at the top."""
    nested = config.get("dflash_config")
    found = nested.get(key) if isinstance(nested, Mapping) else None
    return config.get(key) if found is None else found


def _architecture(draft: ModelFolder) -> Iterator[Check]:
    names = [str(name) for name in draft.config.get("architectures") or ()]
    if any("dflash" in name.lower() for name in names) or draft.config.get("dflash_config"):
        return
    yield _check(
        "fail",
        f"{draft.path} is {', '.join(names) or 'of no named architecture'}, not a DFlash drafter",
        "name the folder of a DFlash drafter (its config has `dflash_config`)",
    )


def _hidden_size(target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[Check]:
    wanted, found = target.get("hidden_size"), draft.get("hidden_size")
    if wanted is None or found is None:
        yield _check("warn", "a config names no hidden_size")
    elif wanted != found:
        yield _check(
            "fail",
            f"hidden size: the target has {wanted}, the drafter was made for {found}",
            "use the drafter of this target",
        )
    else:
        yield _check("ok", f"hidden size {wanted} in both")


def _layers(target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[Check]:
    count = target.get("num_hidden_layers")
    made_for, ids = dflash(draft, "num_target_layers"), dflash(draft, "target_layer_ids")
    if count is None:
        yield _check("warn", "the target's config names no num_hidden_layers")
        return
    if made_for is not None and made_for != count:
        yield _check(
            "fail",
            f"layers: the target has {count}, the drafter was trained on a target with {made_for}",
            "use the drafter of this target",
        )
    if ids is None:
        yield _check("warn", "the drafter names no target_layer_ids; SGLang chooses evenly spaced layers")
        return
    note = "SGLang captures layer k's output before layer k + 1, layers counted from 0"
    beyond = [one for one in ids if not isinstance(one, int) or not 0 <= one < count]
    if beyond:
        yield _check("fail", f"the drafter reads target layer {beyond[0]}, the target has {count} ({note})")
    elif count - 1 in ids:
        yield _check(
            "fail", f"the drafter reads target layer {count - 1} of {count}, the last: it is not captured ({note})"
        )
    else:
        yield _check("ok", f"reads target layers {', '.join(map(str, ids))} of {count} ({note})")


def _vocabulary(
    target: ModelFolder, draft: ModelFolder, text: Mapping[str, Any], drafter: Mapping[str, Any]
) -> Iterator[Check]:
    ours, theirs = text.get("vocab_size"), drafter.get("vocab_size")
    both = bool(target.tokenizer_sha256 and draft.tokenizer_sha256)
    same = both and target.tokenizer_sha256 == draft.tokenizer_sha256
    if both and not same and ours != theirs:
        yield _check(
            "fail",
            f"vocabulary: {ours} against {theirs} rows, and the tokenizers differ",
            "use the drafter of this target",
        )
    elif both and not same:
        yield _check("warn", f"the tokenizer files differ, with {ours} rows in both: perhaps only their formatting")
    elif isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
        known = "same tokenizer" if same else "the drafter brings no tokenizer to compare"
        state: Literal["ok", "warn", "fail"] = "ok" if same else "warn"
        if abs(ours - theirs) > _PADDING_MOST:
            state = "fail"
        yield _check(state, f"vocabulary: {ours} against {theirs} rows, {known}: padding only if no token lies beyond")
    else:
        yield _check(
            "ok", f"vocabulary of {ours} rows" + ("" if both else "; the drafter brings no tokenizer to compare")
        )
    mask = dflash(draft.config, "mask_token_id")
    if isinstance(mask, int) and isinstance(ours, int) and mask >= ours:
        yield _check("fail", f"the drafter's mask token {mask} is not in the target's vocabulary of {ours}")


def _block(draft: Mapping[str, Any], spec: ServiceSpec) -> Iterator[Check]:
    block = dflash(draft, "block_size")
    if not isinstance(block, int):
        yield _check("warn", "the drafter's config names no block_size; give --speculative-dflash-block-size")
    elif block < 2:
        yield _check("fail", f"block size {block} drafts nothing (it counts the anchor)")
    elif spec.algorithm == "DDTREE" and spec.budget < block - 1:
        yield _check(
            "warn",
            f"budget {spec.budget} is below the block's depth {block - 1}: the tree cannot hold the whole chain",
            f"a budget of {block - 1} or more",
        )
    else:
        yield _check(
            "ok", f"block size {block}, depth {block - 1}, budget {spec.budget}, verify width {spec.budget + 1}"
        )


def _attention(target: Mapping[str, Any], spec: ServiceSpec) -> Iterator[Check]:
    """Hybrid and sliding-window targets: their state or window is not committed along a tree path yet."""
    if spec.algorithm != "DDTREE":
        return
    reason = not_full_attention(target)
    if reason:
        yield _check(
            "fail",
            f"the target is not plain full attention ({reason}); a tree verify would corrupt its output silently",
            "serve this target with DFLASH or without speculation",
        )


def not_full_attention(config: Mapping[str, Any]) -> str:
    """Why a model is hybrid or has sliding windows; "" for plain full attention in every layer."""
    kinds = sorted({str(kind) for kind in config.get("layer_types") or ()} - {"full_attention", "attention"})
    if kinds:
        return f"layer_types has {', '.join(kinds)}"
    model = str(config.get("model_type", ""))
    if model in _HYBRID_TYPES:
        return f"model type {model}"
    for key in _HYBRID_KEYS:
        if config.get(key):
            return f"{key} is set"
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        return f"sliding window of {config['sliding_window']} tokens"
    return ""
