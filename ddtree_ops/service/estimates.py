"""What a deploy needs and how long the service is away: estimates, each with what it is made of.

Constants are measured where they say so (SGLang 0.5.20 on two CPU cores: a stop takes 2.5 to 5 s, a start 15 to 36 s,
nearly all of it imports); reading speed of weights is an assumption and is named as one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Facts, ModelFolder, Need
from .settings import ServiceSpec

_STOP = (2.5, 30.0)  # measured low end; the high end is a server that finishes running requests
_INSTALL = (1.0, 10.0)  # editable install and import probe
_IMPORTS = (15.0, 45.0)  # measured 15 to 36 s
_GRAPHS = (0.0, 120.0)  # CUDA graph capture; nothing on a CPU
_SMOKE = (3.0, 60.0)
_READ_RATE = (3e9, 0.5e9)  # bytes per second from fast local NVMe, and from a slow disk: assumed, not measured
_LOGITS_BYTES = 4 + 2  # one row in fp32 for verification beside the model's own half precision
_DEFAULT_RUNNING = 48  # what SGLang sets for DFLASH when --max-running-requests is not given
_GRAPH_BATCH = 8
_REST = 1.2e9  # CUDA context, allocator and kernels: an allowance


def downtime(facts: Facts, *, baseline: bool = False) -> tuple[float, float]:
    """Seconds, low and high, from the stop of the old server (if any) to the first proven answer of ours."""
    weights = sum(model.weights_bytes for model in facts.models)
    with_gpu = bool(facts.gpus)
    low = _INSTALL[0] + _IMPORTS[0] + _SMOKE[0] + weights / _READ_RATE[0]
    high = _INSTALL[1] + _IMPORTS[1] + _SMOKE[1] + weights / _READ_RATE[1] + (_GRAPHS[1] if with_gpu else 0.0)
    if facts.servers:
        low, high = low + _STOP[0], high + _STOP[1]
    if baseline:
        low += _IMPORTS[0] + _STOP[0] + weights / _READ_RATE[0]
        high += _IMPORTS[1] + _STOP[1] + weights / _READ_RATE[1] + _SMOKE[1]
    return round(low, 1), round(high, 1)


def disk_bytes(package_bytes: int) -> int:
    """Bytes under the state folder for one release: the tree, its git objects, its bytecode, and the way back.

    An upper bound, not a measurement: the tree is the package again, its objects are compressed, bytecode comes with
    the first start, and the way back keeps hard links where it can and a copy of the package where it cannot.
    """
    return int(package_bytes * (1 + 0.35 + 0.5 + 1))


def gpu_memory(facts: Facts, spec: ServiceSpec) -> Iterator[Need]:
    """Memory on the GPUs in use: weights of both models, the verify step's logits, an allowance for the rest.

    The key-value cache takes what is left (``--mem-fraction-static``); what is needed for it to be useful is not part
    of this figure, and a server that will be stopped still counts as using its memory.
    """
    if not facts.gpus:
        return
    chosen = [gpu for gpu in facts.gpus if not spec.gpus or str(gpu.index) in spec.gpus or gpu.uuid in spec.gpus]
    weights = sum(model.weights_bytes for model in facts.models)
    logits = verify_logits_bytes(facts, spec)
    needed = (weights + logits + _REST) / 2**20
    free = float(sum(gpu.memory_free_mib for gpu in chosen))
    leaving = " (after the old server has left, more)" if facts.servers else ""
    yield Need(
        what=f"memory of GPU {', '.join(str(gpu.index) for gpu in chosen) or '-'}",
        needed=round(needed),
        available=round(free),
        unit="MiB",
        enough=needed <= free or bool(facts.servers),
        note=(
            f"weights {weights / 2**20:.0f} MiB, verify logits {logits / 2**20:.0f} MiB, "
            f"allowance {_REST / 2**20:.0f} MiB; the key-value cache takes the rest{leaving}"
        ),
    )


def verify_logits_bytes(facts: Facts, spec: ServiceSpec) -> int:
    """Bytes of the largest verify step's logits: requests in a step x verify width x vocabulary, fp32 and half."""
    vocabulary = max((_vocabulary(model) for model in facts.models if model.role == "target"), default=0)
    width = {"DDTREE": max(spec.budget + 1, spec.block_size), "DFLASH": spec.block_size, "NONE": 1}[spec.algorithm]
    batch = _option(spec.extra_args, "--cuda-graph-max-bs") or _option(spec.extra_args, "--max-running-requests")
    return (batch or (_GRAPH_BATCH if facts.gpus else _DEFAULT_RUNNING)) * width * vocabulary * _LOGITS_BYTES


def _vocabulary(model: ModelFolder) -> int:
    nested = model.config.get("text_config")
    found = (nested if isinstance(nested, dict) else model.config).get("vocab_size")
    return found if isinstance(found, int) else 0


def _option(args: tuple[str, ...], name: str) -> int:
    for index, arg in enumerate(args):
        value = arg.partition("=")[2] if arg.startswith(name + "=") else ""
        if arg == name and index + 1 < len(args):
            value = args[index + 1]
        if value.isdigit():
            return int(value)
    return 0
