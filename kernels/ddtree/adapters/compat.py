"""Differences between SGLang releases, found by looking at names and signatures, never at version numbers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

SOURCE = "ddtree"


def has_spec_v2() -> bool:
    """Tell whether this SGLang has the overlap-capable DFLASH worker (0.5.14 and later)."""
    return importlib.util.find_spec("sglang.srt.speculative.dflash_worker_v2") is not None


def optional(module: str, name: str) -> Any:
    """Return ``module.name``, or ``None`` where this release has no such module or name."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        return None


def view(server_args: Any) -> Any:
    """Return what argument resolution has decided so far (newer releases keep decisions beside the record)."""
    resolving_view = optional("sglang.srt.arg_groups.overrides", "resolving_view")
    return resolving_view(server_args) if resolving_view is not None else server_args


def declare(server_args: Any, **fields: Any) -> None:
    """Set server arguments in the way this release wants it done."""
    declare_resolution = optional("sglang.srt.arg_groups.overrides", "declare_resolution")
    if declare_resolution is not None:
        declare_resolution(server_args, SOURCE, **fields)
        return
    for name, value in fields.items():
        setattr(server_args, name, value)


def attention_backends(server_args: Any) -> set[str]:
    """Return the attention backends of prefill and decode as resolved so far."""
    cfg = view(server_args)
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    base, *phases = (getattr(cfg, name, None) for name in names)
    return {str(phase or base) for phase in phases if phase or base}


def disable_decode_graphs(server_args: Any) -> bool:
    """Switch CUDA graphs of the decode phase off; returns whether they were on."""
    cfg = view(server_args)
    graphs = getattr(cfg, "cuda_graph_config", None)
    with_phase = optional("sglang.srt.model_executor.cuda_graph_config", "with_phase")
    if graphs is not None and with_phase is not None and not isinstance(graphs, dict):
        module = importlib.import_module("sglang.srt.model_executor.cuda_graph_config")
        disabled = module.Backend.DISABLED
        was_on = bool(graphs.decode.backend != disabled)
        declare(server_args, cuda_graph_config=with_phase(graphs, module.Phase.DECODE, backend=disabled))
        return was_on
    was_on = not getattr(cfg, "disable_cuda_graph", False)
    declare(server_args, disable_cuda_graph=True)
    return was_on


def accepted(target: Callable[..., Any], **kwargs: Any) -> dict[str, Any]:
    """Keep the keyword arguments that ``target`` (a function or dataclass) knows in this release."""
    known = _parameters(target)
    return {name: value for name, value in kwargs.items() if name in known}


@functools.cache
def _parameters(target: Callable[..., Any]) -> frozenset[str]:
    if dataclasses.is_dataclass(target):
        return frozenset(field.name for field in dataclasses.fields(target) if field.init)
    return frozenset(inspect.signature(target).parameters)


def bonus_tokens(draft_input: Any) -> Any:
    """Return the last emitted token of every request, whatever the field is called."""
    return draft_input.bonus_tokens if hasattr(draft_input, "bonus_tokens") else draft_input.verified_id


def tp_rank(worker: Any) -> int:
    """Return the worker's rank in its tensor-parallel group."""
    return int(getattr(getattr(worker, "ps", worker), "tp_rank", 0) or 0)


def recurrent(model_config: Any) -> bool:
    """Tell whether the target keeps a recurrent state in any layer."""
    mambaish_config = optional("sglang.srt.configs.hybrid_arch", "mambaish_config")
    return mambaish_config is not None and mambaish_config(model_config) is not None


def reserved_lengths(draft_input: Any) -> tuple[Any, int] | None:
    """Return the reserved KV lengths on the host, ``[bs]``, and their sum (bounds of the lengths), or ``None``."""
    for lens, total in (("nxt_kv_lens_cpu", "nxt_kv_lens_sum"), ("reserved_seq_lens_cpu", "reserved_seq_lens_sum")):
        found = getattr(draft_input, lens, None)
        if found is not None:
            return found, int(getattr(draft_input, total))
    return None


def ran_graph(output: Any) -> bool:
    """Tell whether a model runner's output came from a captured graph."""
    return bool(getattr(output, "can_run_graph", False) or getattr(output, "can_run_cuda_graph", False))


def virtual_slots(allocator: Any) -> bool:
    """Tell whether ``req_to_token`` holds ids that a unified memory pool still has to translate to slots."""
    return any(getattr(allocator, name, None) is not None for name in ("translate_kv_loc", "translate_kv_loc_dense"))


def captures_decode_graphs(server_args: Any) -> bool:
    """Tell whether decode graphs are going to be captured."""
    cfg = view(server_args)
    graphs = getattr(cfg, "cuda_graph_config", None)
    if graphs is None or isinstance(graphs, dict):
        return not getattr(cfg, "disable_cuda_graph", False)
    disabled = importlib.import_module("sglang.srt.model_executor.cuda_graph_config").Backend.DISABLED
    return bool(graphs.decode.backend != disabled)


def graph_runner_of_any_width() -> Any:
    """Return the class of decode graph runners when it can be given a width, else ``None``."""
    found = optional("sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner")
    return found if found is not None and "speculative_num_draft_tokens" in _parameters(found) else None


def feature_layers(runner: Any) -> int:
    """Return how many layers' hidden states the target gives the drafter (five where this release does not say)."""
    return len(getattr(getattr(runner, "spec_aux_config", None), "dflash_target_layer_ids", None) or range(5))


def captured_width(graphs: Any) -> int | None:
    """Return the tokens per request that a runner of decode graphs captures, whatever the field is called."""
    for name in ("captured_req_width", "num_tokens_per_bs", "num_tokens_per_req"):
        found = getattr(graphs, name, None)
        if found:
            return int(found)
    return None


def decode_graphs(runner: Any) -> Any:
    """Return the runner of captured decode graphs of a model runner, ``None`` where none were captured."""
    graphs = getattr(runner, "decode_cuda_graph_runner", None) or getattr(runner, "graph_runner", None)
    return graphs if graphs is not None and getattr(graphs, "capture_bs", None) else None
