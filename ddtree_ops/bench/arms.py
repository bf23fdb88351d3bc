"""The arms of a comparison: the deployed service, and the same service with another speculation. Pure.

An arm is what the deployed unit is, less what must differ: the algorithm, a unit name, a port of its own on loopback,
and a unit file that lives in ``/run``. What SGLang decides by itself, by the algorithm (requests at once, attention
backend, graph sizes) or by the memory that is free at its start (prefill chunks), is *pinned*: every arm gets as flags
what the deployed server says that it runs with. What still differs afterwards, other than speculation, makes the
comparison INVALID.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ..service.settings import Algorithm, ServiceSpec

Arm = Literal["ar", "dflash", "ddtree"]
ARMS: tuple[Arm, ...] = ("ar", "dflash", "ddtree")
ALGORITHMS: Mapping[str, Algorithm] = {"ar": "NONE", "dflash": "DFLASH", "ddtree": "DDTREE"}
TITLES = {"ar": "plain decoding", "dflash": "DFLASH", "ddtree": "DDTREE"}
TRACE_FILE = "trace.jsonl"
TRACE_BYTES = 128 << 20  # a file that reaches this is rotated; it lies in the run folder, in memory
LADDER = "DDTREE_LADDER"  # verify widths that the server captures: budget + 1 each

#: Server arguments that SGLang resolves by itself and that must be equal; each is also a flag of the same name.
PINNED = (
    "max_running_requests",
    "attention_backend",
    "mem_fraction_static",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "sampling_backend",
)
#: Switches: pinned when they are on.
PINNED_SWITCHES = ("disable_overlap_schedule", "disable_cuda_graph", "disable_radix_cache")
#: What may differ between two servers that are otherwise the same, and why.
EXEMPT: Mapping[str, str] = {
    "port": "each server has its own",
    "host": "arms listen on loopback",
    "nccl_port": "chosen anew by each server",
    "dist_init_addr": "chosen anew by each server",
    "random_seed": "chosen anew by each server",
    "launch_command": "the command itself, compared by what it resolves to",
    "startup_time": "a time",
    "status": "a state",
    "max_total_num_tokens": "what memory is left for the cache: a drafter takes some",
    "max_req_input_len": "follows from it",
    "forward_pass_metrics_ipc_name": "a name of a socket",
    "weight_cache_socket": "a name of a socket",
}
#: Of newer releases: what was asked for, of which ``cuda_graph_config`` is what came out; the latter is compared.
_ASKED_GRAPHS = ("cuda_graph_bs", "cuda_graph_max_bs", "cuda_graph_bs_decode", "cuda_graph_max_bs_decode")
_SPECULATION = ("speculative_", "_speculative_", "spec_")


class ArmSpec(ServiceSpec, frozen=True, kw_only=True):
    """One arm as a service; its unit never outlives a reboot, its secrets are those of the deployed unit."""

    secrets_of: str = ""

    @property
    def unit_path(self) -> str:
        """Under ``/run`` for systemd; for the process runner a file that is removed with the arm."""
        if self.init == "systemd":
            return f"/run/systemd/system/{self.unit}"
        return f"{self.state_root}/services/{self.name}.json"

    @property
    def secrets_path(self) -> str:
        """The deployed unit's."""
        return f"{self.state_root}/secrets/{self.secrets_of}.env"


def arm_spec(
    deployed: ServiceSpec,
    arm: str,
    *,
    port: int,
    budgets: Sequence[int] = (),
    pins: Sequence[str] = (),
    trace_rounds: int = 0,
) -> ArmSpec:
    """The service of an arm.

    Args:
        budgets: Of the DDTREE arm: one server is started for the largest, with the widths of all in its ladder.
        pins: Flags from :func:`pins`.
        trace_rounds: Above 0 the DDTREE arm writes so many rounds of ``ddtree-trace/1`` into its run folder.
    """
    algorithm = ALGORITHMS[arm]
    base = deployed.variant(algorithm)
    values = {name: getattr(base, name) for name in ServiceSpec.__struct_fields__}
    values.update(
        unit=f"{deployed.name}-bench-{arm}.service",
        secrets_of=deployed.name,
        listen="127.0.0.1",
        port=port,
        extra_args=(*base.extra_args, *pins),
    )
    if not deployed.working_directory:
        values["working_directory"] = ""  # the arm's own run folder
    if arm == "ddtree":
        values.update(budget=max(budgets, default=deployed.budget), auto_budget=deployed.auto_budget and not budgets)
    spec = ArmSpec(**values)
    if arm != "ddtree":
        return spec
    environment = dict(spec.environment)
    if budgets:
        environment.pop(LADDER, None)  # the deployed one is for the deployed budget
    if len(set(budgets)) > 1:
        environment[LADDER] = ",".join(str(budget + 1) for budget in sorted(set(budgets)))
    if trace_rounds:
        environment.update(
            DDTREE_TRACE=f"{spec.run_dir}/{TRACE_FILE}",
            DDTREE_TRACE_ROUNDS=str(trace_rounds),
            DDTREE_TRACE_BYTES=str(TRACE_BYTES),
        )
    return msgspec.structs.replace(spec, environment=environment)


def pins(reference: Mapping[str, Any], extra_args: Iterable[str], may_differ: Iterable[str] = ()) -> tuple[str, ...]:
    """Flags that give every arm what the reference server runs with (the deployed one, else the first arm).

    Args:
        reference: The reference's effective arguments.
        extra_args: The deployed flags; what they name is equal already.
        may_differ: Arguments that the user leaves to each algorithm.
    """
    free = set(may_differ)
    named = {_flag_name(arg) for arg in extra_args if arg.startswith("--")}
    found: list[str] = []
    for key in PINNED:
        value = reference.get(key)
        if key in free or key in named or isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        found += [f"--{key.replace('_', '-')}", str(value)]
    if not free & {"cuda_graph_config", *_ASKED_GRAPHS}:
        found += _graph_sizes(reference, named)
    for key in PINNED_SWITCHES:
        if key not in free and key not in named and reference.get(key) is True:
            found.append(f"--{key.replace('_', '-')}")
    return tuple(found)


def _graph_sizes(reference: Mapping[str, Any], named: set[str]) -> list[str]:
    """The batch sizes that are captured: SGLang pads finer where it speculates, and plain decoding would pay for it."""
    if named & {"cuda_graph_bs", "cuda_graph_bs_decode"}:
        return []
    config = reference.get("cuda_graph_config")
    if isinstance(config, Mapping):
        decode = config.get("decode")
        if not isinstance(decode, Mapping) or decode.get("backend") == "disabled":
            return []
        sizes, flag = decode.get("bs"), "--cuda-graph-bs-decode"
    else:
        sizes, flag = reference.get("cuda_graph_bs"), "--cuda-graph-bs"
    return [flag, *map(str, sizes)] if isinstance(sizes, list) and sizes else []


def differences(
    reference: Mapping[str, Any], other: Mapping[str, Any], may_differ: Iterable[str] = ()
) -> tuple[str, ...]:
    """Arguments in which two servers differ other than by speculation, in words; empty when they may be compared."""
    free = {*EXEMPT, *may_differ}
    if "cuda_graph_config" in reference and "cuda_graph_config" in other:
        free |= set(_ASKED_GRAPHS)
    return tuple(
        f"{key} {_short(other.get(key))} instead of {_short(reference.get(key))}"
        for key in sorted({*reference, *other})
        if key not in free and not key.startswith(_SPECULATION) and reference.get(key) != other.get(key)
    )


def allowed_differences(
    reference: Mapping[str, Any], other: Mapping[str, Any], may_differ: Iterable[str]
) -> tuple[str, ...]:
    """Those of ``may_differ`` that do differ: not INVALID, but told with the figures."""
    return tuple(
        f"{key} {_short(other.get(key))} instead of {_short(reference.get(key))}, as `may_differ` allows"
        for key in sorted(set(may_differ))
        if reference.get(key) != other.get(key)
    )


def counters_between(before: Any, after: Any) -> Any:
    """What was counted in between, for counters of any shape: numbers, lists and objects of them.

    A counter that only the later reading has began at zero; what is no number is as it was read last.
    """
    if isinstance(after, Mapping):
        old = before if isinstance(before, Mapping) else {}
        return {name: counters_between(old.get(name), value) for name, value in after.items()}
    if isinstance(after, list):
        old_list = before if isinstance(before, list) else []
        return [counters_between(old_list[i] if i < len(old_list) else None, value) for i, value in enumerate(after)]
    if isinstance(after, bool) or not isinstance(after, int | float):
        return after
    number = before if isinstance(before, int | float) and not isinstance(before, bool) else 0
    return after - number


def _flag_name(arg: str) -> str:
    return arg.partition("=")[0].lstrip("-").replace("-", "_")


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
