"""Do target and drafter belong together? Judged by their config files, before anything is loaded, and once more after.

A drafter reads hidden states of some of the target's layers, its own hidden states go through the target's lm_head, and
its input is the target's embedding of a mask token. A wrong pair fails deep inside of a forward pass, minutes later, or
not at all. Standard library only; configs are looked at by attribute, whoever made them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

WAY_OUT = (
    "Give the drafter that was made for this target with --speculative-draft-model-path (its model card names the "
    "target), or serve without --speculative-algorithm"
)


class Needs(NamedTuple):
    """What a drafter's config says about its target; ``None`` where it says nothing."""

    target_layers: int | None
    layer_ids: tuple[int, ...] | None
    mask_token_id: int | None


def text_config(config: Any) -> Any:
    """Return the language model's part of a config."""
    return getattr(config, "text_config", None) or config


def refuse_pair(target: Any, draft: Any, needs: Needs, names: tuple[str, str]) -> None:
    """Raise ``ValueError`` naming every contradiction between two model configs; ``names``: the two model paths."""
    target, draft = text_config(target), text_config(draft)
    problems = [
        *_different("hidden_size", target, draft, "the drafter's states go through the target's lm_head"),
        *_different("vocab_size", target, draft, "drafts are tokens of the target"),
        *_layers(_number(target, "num_hidden_layers"), needs),
        *_mask_token(_number(target, "vocab_size"), needs.mask_token_id),
    ]
    _raise(problems, names)


def refuse_split(tp_size: int, models: Iterable[tuple[str, Any]]) -> None:
    """Raise ``ValueError`` where attention heads cannot be divided between ranks; ``models``: (path, config) pairs."""
    models = [(name, text_config(config)) for name, config in models]
    problems = [
        f"{name} has {_number(config, 'num_attention_heads')} attention heads "
        f"({_number(config, 'num_key_value_heads')} for keys and values)"
        for name, config in models
        if not _divides(tp_size, config)
    ]
    if problems:
        possible = [size for size in range(1, 17) if all(_divides(size, config) for _, config in models)]
        raise ValueError(
            f"DDTREE: --tp-size {tp_size} cannot divide {' and '.join(problems)}; "
            f"both target and drafter can be divided by {', '.join(map(str, possible))}."
        )


def _divides(tp_size: int, config: Any) -> bool:
    """Whether heads can be divided; heads for keys and values may be copied instead, as SGLang does."""
    heads = _number(config, "num_attention_heads")
    shared = _number(config, "num_key_value_heads") or heads
    if not heads or not shared:
        return True  # it does not say
    return heads % tp_size == 0 and (shared % tp_size == 0 if shared >= tp_size else tp_size % shared == 0)


def refuse_other_drafter(block_size: int | None, needs: Needs, name: str) -> None:
    """Raise ``ValueError`` for a model that is no DFlash drafter; ``block_size``: of its config or of the flag."""
    if block_size is None and needs == Needs(None, None, None):
        raise ValueError(
            f"DDTREE: {name} is no DFlash drafter: its config has neither dflash_config nor block_size. {WAY_OUT}."
        )


class Loaded(NamedTuple):
    """What the loaded modules are like; ``None`` where it cannot be told."""

    head_columns: int | None
    vocabulary: int | None
    layers: int | None
    projection: tuple[int, int] | None  # numbers in and out of the drafter's projection of the target's hidden states
    features: int | None  # layers of the target that it reads

    @staticmethod
    def of(head: Any, model_config: Any, draft_model: Any) -> Loaded:
        """Look at the target's lm_head and SGLang config, and at the drafter's module."""
        weight, project = getattr(head, "weight", None), getattr(draft_model, "fc", None)
        taken = _number(project, "in_features") or _number(project, "input_size")
        given = _number(project, "out_features") or _number(project, "output_size")
        return Loaded(
            head_columns=int(weight.shape[1]) if weight is not None and len(weight.shape) == 2 else None,
            vocabulary=_number(model_config, "vocab_size"),
            layers=_number(model_config, "num_hidden_layers"),
            projection=(taken, given) if taken and given else None,
            features=_number(draft_model, "num_context_features"),
        )


def refuse_loaded_pair(loaded: Loaded, needs: Needs, names: tuple[str, str]) -> None:
    """Raise ``ValueError`` where the loaded modules do not fit; ``names``: the two model paths."""
    problems = [*_layers(loaded.layers, needs), *_mask_token(loaded.vocabulary, needs.mask_token_id)]
    columns = loaded.head_columns
    if loaded.projection is not None and columns is not None:
        taken, given = loaded.projection
        if given != columns:
            problems.append(f"the drafter's hidden states have {given} numbers, the target's lm_head takes {columns}")
        if loaded.features is not None and taken != loaded.features * columns:
            problems.append(
                f"the drafter takes {taken} numbers of the target's hidden states, {loaded.features} layers of this "
                f"target have {loaded.features * columns}"
            )
    _raise(problems, names)


def refuse_layers(target: Any, name: str) -> None:
    """Raise ``ValueError`` for a target whose config names layers that a tree would get wrong."""
    config = text_config(target)
    kinds = Counter(str(kind) for kind in getattr(config, "layer_types", None) or ())
    windows = [kind for kind in kinds if kind.startswith(("sliding", "chunked"))]
    recurrent = [kind for kind in kinds if any(word in kind for word in ("linear", "mamba", "recurrent", "conv"))]
    recurrent += [kind for kind in ("mamba",) if kind in str(getattr(config, "model_type", "")) and not recurrent]
    problems = []
    if windows:
        listed = _listed(kinds, windows)
        problems.append(f"{listed}: a window over node indices is wrong for a tree")
    if recurrent:
        listed = _listed(kinds, recurrent)
        problems.append(f"{listed}: their state follows a chain, not a tree")
    if problems:
        raise ValueError(
            f"DDTREE does not support in this version the target {name}: it has {'; and '.join(problems)}. "
            "Serve it with --speculative-algorithm DFLASH, which verifies a chain, or without speculation."
        )


def _listed(kinds: Counter[str], chosen: Iterable[str]) -> str:
    return ", ".join(f"{kinds[kind] or 'some'} layers of type {kind}" for kind in chosen)


def _number(config: Any, field: str) -> int | None:
    value = getattr(config, field, None)
    return None if value is None else int(value)


def _different(field: str, target: Any, draft: Any, why: str) -> list[str]:
    ours, theirs = _number(target, field), _number(draft, field)
    if ours is None or theirs is None or ours == theirs:
        return []
    return [f"{field} is {theirs} in the drafter's config and {ours} in the target's ({why})"]


def _layers(layers: int | None, needs: Needs) -> list[str]:
    if layers is None:
        return []
    problems = []
    if needs.target_layers is not None and needs.target_layers != layers:
        problems.append(f"the drafter was made for a target of {needs.target_layers} layers, this one has {layers}")
    outside = [number for number in needs.layer_ids or () if not 0 <= number < layers]
    if outside:
        listed = ", ".join(map(str, outside))
        problems.append(f"the drafter reads the target's layers {listed}, which has layers 0 to {layers - 1}")
    return problems


def _mask_token(vocabulary: int | None, mask_token: int | None) -> list[str]:
    if vocabulary is None or mask_token is None or 0 <= mask_token < vocabulary:
        return []
    return [f"the drafter's mask token {mask_token} is outside of the target's vocabulary of {vocabulary}"]


def _raise(problems: list[str], names: tuple[str, str]) -> None:
    if problems:
        target, draft = names
        raise ValueError(
            f"DDTREE: the drafter {draft} does not fit the target {target}: {'; '.join(problems)}. {WAY_OUT}."
        )
