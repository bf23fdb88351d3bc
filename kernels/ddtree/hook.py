"""What the patch into SGLang's own files calls; thin, and importable on every release.

No module of SGLang is imported here at module level: a release without the DFLASH v2 worker must be able to import this
file and to be told in one sentence that DDTREE is not for it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from . import beacon, limits, pairing, settings

logger = logging.getLogger(__name__)

ALGORITHM = "DDTREE"
_BACKENDS = {"cuda": "triton", "cpu": "torch_native"}
_DEFAULT_MAX_RUNNING_REQUESTS = 48  # as DFLASH
_api_key: str | None = None


class HiddenText(str):
    """A secret that compares and travels as text, but is not shown: SGLang logs its resolved arguments at start."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def create_worker(server_args: Any) -> type:
    """Return the worker class; called in every scheduler process by ``SpeculativeAlgorithm.create_worker``."""
    _require_spec_v2()
    from .adapters import compat
    from .adapters.requests import install_request_check

    cfg = compat.view(server_args)
    settings.remember(settings.inherit(cfg.speculative_num_draft_tokens, cfg.speculative_dflash_block_size))
    install_request_check()
    from .adapters.worker_v2 import DDTreeWorkerV2

    return DDTreeWorkerV2


def handle_server_args(server_args: Any) -> None:
    """Check and resolve the server's arguments; raises ``ValueError`` for what this version does not serve."""
    _require_spec_v2()
    from .adapters import compat

    _take_api_key(server_args)
    cfg = compat.view(server_args)
    device = _check_device(str(cfg.device))
    limits.refuse_configuration(cfg)
    settings.time_every()  # refuses a bad value now, not after loading
    if cfg.speculative_draft_model_path is None:
        raise ValueError("DDTREE needs a DFlash drafter: give it with --speculative-draft-model-path.")
    drafter_block = _check_models(cfg)
    resolved = settings.resolve(cfg.speculative_num_draft_tokens, cfg.speculative_dflash_block_size, drafter_block)
    os.environ[settings.ENV_RESOLVED] = str(resolved.budget)  # children see resolved flags only
    for name in ("speculative_num_steps", "speculative_eagle_topk"):
        if getattr(cfg, name, None) not in (None, 1):
            logger.warning("DDTREE has no use for --%s; it is set to 1.", name.replace("_", "-"))
    compat.declare(
        server_args,
        speculative_num_draft_tokens=resolved.width,
        speculative_dflash_block_size=resolved.block_size,
        # Generic accounting multiplies these two: the tree is described by its width alone.
        speculative_num_steps=1,
        speculative_eagle_topk=1,
    )
    backend = _choose_backends(server_args, _BACKENDS[device])
    if cfg.max_running_requests is None:
        compat.declare(server_args, max_running_requests=_DEFAULT_MAX_RUNNING_REQUESTS)
    if device == "cuda":
        limits.refuse_gpu_budget(resolved.width - 1)
    elif compat.disable_decode_graphs(server_args):
        logger.info("DDTREE: no decode graphs on this device.")
    overlap = not getattr(cfg, "disable_overlap_schedule", False)
    beacon.settings.update(algorithm=ALGORITHM, backend=backend, overlap=overlap, **resolved.as_dict())
    logger.info(
        "DDTREE: budget %d nodes, verify width %d, block size %d, attention %s, overlap scheduling %s.",
        resolved.budget, resolved.width, resolved.block_size, backend, "on" if overlap else "off",
    )  # fmt: skip


def verify_width(num_draft_tokens: int, is_draft_worker: bool) -> int:
    """Return the tokens per request of a TARGET_VERIFY forward: the tree for the target, the block for the drafter."""
    return settings.current().block_size if is_draft_worker else num_draft_tokens


def make_dummy_verify_input(num_tokens_per_req: int, custom_mask: Any, is_draft_worker: bool) -> Any:
    """Return a verify input that has only shapes, for warm-up forwards."""
    if not is_draft_worker:
        from .adapters.verify_input import shapes_only

        return shapes_only(num_tokens_per_req, custom_mask)
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.dflash_info import DFlashVerifyInput

    return DFlashVerifyInput(
        draft_token=None,
        positions=None,
        draft_token_num=num_tokens_per_req,
        custom_mask=None,
        capture_hidden_mode=CaptureHiddenMode.NULL,
    )


def make_capture_verify_input(runner: Any, num_tokens: int) -> Any:
    """Return the verify input with which the target's decode graphs are captured: one that has a tree mask.

    With it the attention backend captures kernels that read its mask buffer; without it they would be causal, and
    verify a tree as a chain. The worker's self-check refuses to serve from graphs captured without this hook.
    """
    from .adapters import compat
    from .adapters.verify_input import graph_mask, shapes_only

    del num_tokens  # the width per request is what shapes the graph
    mask = getattr(runner.buffers, "custom_mask", None)
    if mask is None:
        mask = graph_mask(runner.attn_backend)
    if mask is None:
        raise RuntimeError("DDTREE: the attention backend has no buffer for a tree mask; start with triton attention.")
    return shapes_only(compat.captured_width(runner) or settings.current().width, mask)


def _require_spec_v2() -> None:
    from .adapters import compat

    if not compat.has_spec_v2():
        raise ValueError(
            "DDTREE for spec v1 (SGLang 0.5.11 to 0.5.13, without dflash_worker_v2) is not in this version; "
            "it needs SGLang 0.5.14 or later."
        )


def _take_api_key(server_args: Any) -> None:
    """Set the API key from the environment, so that it is on no command line, and take it out of the environment.

    Children get the resolved arguments and need no variable. The key is kept for a second resolution in this process.
    """
    global _api_key
    from .adapters import compat

    _api_key = os.environ.pop(settings.ENV_API_KEY, None) or _api_key
    if _api_key and compat.view(server_args).api_key is None:
        compat.declare(server_args, api_key=HiddenText(_api_key))


def _check_device(device: str) -> str:
    kind = device.split(":")[0]
    if kind == "cuda" or (kind == "cpu" and os.environ.get(settings.ENV_ALLOW_CPU) == "1"):
        return kind
    raise ValueError(
        f"DDTREE runs on CUDA devices, not on {device!r}. (Tests on a CPU need {settings.ENV_ALLOW_CPU}=1 and an "
        "attention backend that can verify with a mask.)"
    )


def _check_models(cfg: Any) -> int | None:
    """Refuse models that do not fit, by their config files alone; returns the block size that the drafter's names.

    A target whose config cannot be read is left to SGLang, which says so itself.
    """
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    draft = _config(cfg, cfg.speculative_draft_model_path, getattr(cfg, "speculative_draft_model_revision", None))
    parsed = parse_dflash_draft_config(draft_hf_config=draft)
    needs, size = needs_of(parsed), parsed.resolve_block_size(default=None)
    names = str(cfg.model_path), str(cfg.speculative_draft_model_path)
    pairing.refuse_other_drafter(cfg.speculative_dflash_block_size or size, needs, names[1])
    try:
        target = _config(cfg, cfg.model_path, getattr(cfg, "revision", None))
    except Exception as error:
        logger.info("DDTREE: the target's config could not be checked: %s: %s", type(error).__name__, error)
    else:
        pairing.refuse_layers(target, names[0])
        pairing.refuse_pair(target, draft, needs, names)
        pairing.refuse_split(int(getattr(cfg, "tp_size", None) or 1), zip(names, (target, draft), strict=True))
    return None if size is None else int(size)


def needs_of(parsed: Any) -> pairing.Needs:
    """Return what a parsed drafter config (SGLang's ``DFlashDraftConfig``) says about its target."""
    layers = parsed.target_layer_ids
    return pairing.Needs(parsed.num_target_layers, None if layers is None else tuple(layers), parsed.mask_token_id)


def _config(cfg: Any, path: str, revision: str | None) -> Any:
    """Read a model's config as SGLang does."""
    import json

    from .adapters import compat

    get_config = compat.optional("sglang.srt.utils.hf_transformers_utils", "get_config")
    return get_config(
        path,
        trust_remote_code=cfg.trust_remote_code,
        revision=revision,
        model_override_args=json.loads(cfg.json_model_override_args),
    )


def _choose_backends(server_args: Any, served: str) -> str:
    """Use the one attention backend that is served; refuse another that was asked for."""
    from .adapters import compat

    cfg = compat.view(server_args)
    asked = {
        flag: getattr(server_args, flag, None)
        for flag in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    }
    other = {flag: value for flag, value in asked.items() if value not in (None, served)}
    draft = cfg.speculative_draft_attention_backend
    if draft not in (None, served):
        other["speculative_draft_attention_backend"] = draft
    if other:
        listed = ", ".join(f"--{flag.replace('_', '-')} {value}" for flag, value in other.items())
        raise ValueError(
            f"DDTREE verifies with the {served} attention backend in this version, but got {listed}. Give "
            f"--attention-backend {served} and leave the others out (older releases choose one by themselves)."
        )
    if compat.attention_backends(server_args) != {served}:
        compat.declare(server_args, attention_backend=served)
    if draft is None and served == "triton":
        compat.declare(server_args, speculative_draft_attention_backend=served)
    return served
