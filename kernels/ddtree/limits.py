"""What this version does not serve, and says so: at start for a configuration, with an error reply for a request.

Nothing here degrades silently. A configuration that has not been tested with a tree is refused before any model is
loaded; a request that needs what a tree does not give yet is answered with an error that says what to change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

OTHERWISE = "serve with --speculative-algorithm DFLASH, which verifies a chain, or without speculation"


class Rule(NamedTuple):
    """One refusal: ``found`` returns a description of the offending setting, or ``None``."""

    name: str
    found: Callable[[Any], str | None]
    why: str


def _more_than_one(field: str, flag: str) -> Callable[[Any], str | None]:
    def found(cfg: Any) -> str | None:
        value = getattr(cfg, field, None)
        return f"{flag} {value}" if value is not None and int(value) > 1 else None

    return found


def _is_set(field: str, flag: str, *unset: Any) -> Callable[[Any], str | None]:
    def found(cfg: Any) -> str | None:
        value = getattr(cfg, field, None)
        return f"{flag} {value}" if value not in (None, False, "", *unset) else None

    return found


START_RULES: tuple[Rule, ...] = (
    Rule("pp", _more_than_one("pp_size", "--pp-size"), "DFLASH itself has no pipeline parallelism"),
    Rule("dp", _more_than_one("dp_size", "--dp-size"), "not tested"),
    Rule("dp-attention", _is_set("enable_dp_attention", "--enable-dp-attention"), "not tested"),
    Rule("page", _more_than_one("page_size", "--page-size"), "only single-slot pages are tested"),
    Rule(
        "window",
        _is_set("speculative_draft_window_size", "--speculative-draft-window-size"),
        "a compact draft cache is not tested with a tree",
    ),
    Rule("lora", _is_set("enable_lora", "--enable-lora"), "not tested"),
    Rule("disaggregation", _is_set("disaggregation_mode", "--disaggregation-mode", "null"), "not tested"),
    Rule("adaptive", _is_set("speculative_adaptive", "--speculative-adaptive"), "the budget is DDTREE's own"),
    Rule(
        "deterministic",
        _is_set("enable_deterministic_inference", "--enable-deterministic-inference"),
        "verification has another batch shape than decoding",
    ),
    Rule("hierarchical-cache", _is_set("enable_hierarchical_cache", "--enable-hierarchical-cache"), "not tested"),
    Rule("mixed-chunk", _is_set("enable_mixed_chunk", "--enable-mixed-chunk"), "not tested"),
    Rule("two-batch", _is_set("enable_two_batch_overlap", "--enable-two-batch-overlap"), "not tested"),
)


def refuse_configuration(cfg: Any) -> None:
    """Raise ``ValueError`` naming every setting of ``cfg`` (a view of the server arguments) that is not served."""
    hits = [(rule, text) for rule in START_RULES if (text := rule.found(cfg)) is not None]
    if hits:
        listed = "; ".join(f"{text} ({rule.why})" for rule, text in hits)
        raise ValueError(f"DDTREE does not support in this version: {listed}. Leave that out, or {OTHERWISE}.")


GPU_MAX_BUDGET = 256


def refuse_gpu_budget(budget: int) -> None:
    """Raise ``ValueError`` for trees that the GPU kernels do not build."""
    if budget > GPU_MAX_BUDGET:
        raise ValueError(
            f"DDTREE: a budget of {budget} nodes is above the {GPU_MAX_BUDGET} that the GPU builder covers; "
            "give a smaller one with DDTREE_BUDGET or --speculative-num-draft-tokens (budget + 1)."
        )


def refuse_target(model_config: Any, sliding_window: Any, recurrent: bool, lm_head: Any) -> None:
    """Raise ``ValueError`` when the target is of a kind that a tree would get wrong.

    ``sliding_window`` is the window of the target's runner (``None`` without one), ``recurrent`` whether any layer
    keeps a recurrent state.
    """
    problems: list[str] = []
    if int(sliding_window or 0) > 0 or getattr(model_config, "is_hybrid_swa", False):
        problems.append("sliding-window attention (a window over node indices is wrong for a tree)")
    if recurrent:
        problems.append("recurrent layers (mamba, linear attention: their state follows a chain, not a tree)")
    if getattr(model_config, "is_multimodal", False):
        problems.append("multimodal input (tree positions are one row, it needs three)")
    weight = getattr(lm_head, "weight", None)
    if weight is None or not weight.is_floating_point() or weight.element_size() < 2:
        problems.append("a quantised lm_head (it gives no logits to draft from)")
    shard = getattr(lm_head, "shard_indices", None)
    if shard is not None and int(getattr(shard, "num_added_elements", 0)) != 0:
        problems.append("an lm_head with added vocabulary")
    _raise("target", problems)


def refuse_memory(virtual_slots: bool) -> None:
    """Raise ``ValueError`` where the table of KV slots holds ids that are not slots."""
    if virtual_slots:
        raise ValueError(
            "DDTREE does not support in this version a unified memory pool (virtual KV slots). "
            f"Leave --enable-unified-memory out, or {OTHERWISE}."
        )


def refuse_drafter(draft_model: Any, draft_config: Any) -> None:
    """Raise ``ValueError`` for drafters whose scores are not plain per-depth marginals.

    Looks at content (attributes of the module and its parsed config), so that releases that know fewer kinds pass.
    """
    problems: list[str] = []
    if getattr(draft_model, "candidate_selector", None) is not None:
        problems.append("a candidate selector")
    kind = getattr(draft_config, "projector_type", None)
    if kind:
        problems.append(f"a {kind} head")
    named = [type(draft_model).__name__, *(name for name, value in vars(draft_config).items() if value)]
    if any("lilicorr" in name.lower() for name in named):
        problems.append("a LiLiCorr head")
    if float(getattr(draft_config, "output_multiplier", None) or 1.0) != 1.0:
        problems.append("scaled logits (output_multiplier)")
    _raise("drafter", problems)


def _raise(what: str, problems: list[str]) -> None:
    if problems:
        listed = "; nor with ".join(problems)
        way_out = OTHERWISE if what == "target" else f"give another with --speculative-draft-model-path, or {OTHERWISE}"
        raise ValueError(f"DDTREE does not support in this version a {what} with {listed}. You can {way_out}.")


def refuse_request(
    req: Any, most: int | None = None, logprobs: bool = True, grammars: bool = True
) -> tuple[str, str] | None:
    """Return ``(reason, message)`` when a request needs more than this version serves, else ``None``.

    ``most``: the largest budget that a request may ask for (``None``: not checked); ``logprobs``, ``grammars``: whether
    this SGLang release carries log-probabilities from a speculative step to the answer, and can mask a tree.
    """
    params = req.sampling_params
    checks: tuple[tuple[str, bool, str], ...] = (
        ("logprob", bool(getattr(req, "return_logprob", False)) and not logprobs, "return_logprob"),
        ("hidden_states", bool(getattr(req, "return_hidden_states", False)), "return_hidden_states"),
        (
            "grammar",
            _has_grammar(req, params) and not grammars,
            "structured output (json_schema, regex, ebnf, structural_tag)",
        ),
        ("processor", bool(getattr(req, "custom_logit_processor", None)), "custom logit processors"),
        ("beam", int(getattr(params, "beam_width", None) or 1) > 1, "beam search"),
        ("multimodal", getattr(req, "multimodal_inputs", None) is not None, "multimodal input"),
        ("lora", getattr(req, "lora_id", None) is not None, "LoRA adapters"),
    )
    for reason, hit, what in checks:
        if hit:
            return reason, f"DDTREE speculative decoding does not support {what} in this version."
    try:
        request_budget(params, most)
    except ValueError as error:
        return "budget", str(error)
    seed = getattr(params, "sampling_seed", None)
    if seed is not None and not is_seed(seed):
        return "seed", f"DDTREE: the seed {seed!r} is not a number that 64 bits hold."
    return None


def request_budget(params: Any, most: int | None = None) -> int | None:
    """Return the budget that a request's ``custom_params`` ask for, ``None`` where they do not.

    ``{"ddtree": {"budget": n}}``: at most n draft nodes per step for this request, 1 to ``most``. Raises ``ValueError``
    with the request's error message for anything else under ``ddtree``.
    """
    custom = getattr(params, "custom_params", None)
    if not isinstance(custom, dict) or "ddtree" not in custom:
        return None
    asked = custom["ddtree"]
    if not isinstance(asked, dict) or set(asked) != {"budget"}:
        raise ValueError(f'DDTREE: custom_params ask for {asked!r}; what can be asked for is {{"budget": nodes}}.')
    budget = asked["budget"]
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ValueError(f"DDTREE: a budget of {budget!r} is not a number of nodes; ask for 1 or more.")
    if most is not None and budget > most:
        raise ValueError(f"DDTREE: a budget of {budget} nodes is above the {most} that this server was started with.")
    return budget


def is_seed(value: Any) -> bool:
    """Tell whether a seed is a number that 64 bits hold."""
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def _has_grammar(req: Any, params: Any) -> bool:
    fields = ("json_schema", "regex", "ebnf", "structural_tag")
    return getattr(req, "grammar", None) is not None or any(getattr(params, f, None) for f in fields)


def has_penalty(params: Any) -> bool:
    """Tell whether a request's logits depend on what it has already said, or on how much."""
    return (
        float(getattr(params, "frequency_penalty", 0.0)) != 0.0
        or float(getattr(params, "presence_penalty", 0.0)) != 0.0
        or float(getattr(params, "repetition_penalty", 1.0)) != 1.0
        or int(getattr(params, "min_new_tokens", 0)) > 0
    )
