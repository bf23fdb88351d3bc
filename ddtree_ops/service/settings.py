"""What the service is: one frozen value, and the argument vector and environment that follow from it.

Pure. The argument vector is what systemd (or the process runner) hands to ``execve``; its escaping for unit files is
the business of :mod:`.units`. Words: *budget* = draft nodes without the root; SGLang's
``--speculative-num-draft-tokens`` is the verify width, ``budget + 1``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from ..errors import ConfigError
from ..host.servicepath import SYSTEM_PATH
from ..inventory_schema import OWN_FLAGS, REJECTION_SAMPLING
from ..model import Value

Algorithm = Literal["DDTREE", "DFLASH", "NONE"]
Init = Literal["systemd", "process"]

UNIT = "sglang-ddtree.service"
RUN_ROOT = "/run/ddtree-ops"

#: Settings that only we may write; a service environment that names one contradicts the plan.
API_KEY = "SGLANG_DDTREE_API_KEY"
RESERVED_ENVIRONMENT = ("DDTREE_RUN_DIR", "DDTREE_BUDGET", API_KEY)


class ServiceSpec(Value, frozen=True, kw_only=True):
    """Everything that decides what runs; paths are the host's, times are seconds."""

    interpreter: str
    target: str
    drafter: str = ""
    unit: str = UNIT
    init: Init = "systemd"
    algorithm: Algorithm = "DDTREE"
    budget: int = 32
    auto_budget: bool = False  # the server chooses by cost, and `budget` is the most
    block_size: int = 16
    listen: str = "127.0.0.1"
    port: int = 30000
    gpus: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: tuple[str, ...] = ()  # names only; the values travel apart and never into this value
    state_root: str = "/var/lib/ddtree-ops"
    run_root: str = RUN_ROOT
    release_id: str = ""
    build_id: str = ""
    user: str = ""
    working_directory: str = ""
    python_version: tuple[int, int] = (3, 11)
    systemd_version: int = 252
    timeout_start: int = 1800
    timeout_stop: int = 60
    tool_version: str = ""

    @property
    def name(self) -> str:
        """The unit's name without its suffix."""
        return self.unit.removesuffix(".service")

    @property
    def run_dir(self) -> str:
        """``DDTREE_RUN_DIR``: beacons and the control file; emptied by a stop."""
        return f"{self.run_root}/{self.name}"

    @property
    def directory(self) -> str:
        """The working directory: by default the run folder, which never holds a folder named ``sglang``."""
        return self.working_directory or self.run_dir

    @property
    def secrets_path(self) -> str:
        """The 0600 file that holds the secrets, whether or not there are any."""
        return f"{self.state_root}/secrets/{self.name}.env"

    @property
    def unit_path(self) -> str:
        """Where the unit is written; for the process runner a file of ours under ``state_root``."""
        if self.init == "systemd":
            return f"/etc/systemd/system/{self.unit}"
        return f"{self.state_root}/services/{self.name}.json"

    @property
    def cache_dir(self) -> str:
        """JIT caches of this release alone: objects compiled for another torch or SGLang are never picked up."""
        return f"{self.state_root}/cache/{self.release_id or 'unreleased'}"

    @property
    def log_path(self) -> str:
        """The process runner's log; systemd's is the journal."""
        return f"{self.state_root}/services/{self.name}.log"

    @property
    def base_url(self) -> str:
        """The address that the host's own program asks; a wildcard is asked on loopback."""
        host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def ref(self) -> dict[str, Any]:
        """The ``service`` object of the host program's verbs and operations (``host/runner.py``)."""
        return {
            "unit": self.unit,
            "init": self.init,
            "path": self.unit_path,
            "run_dir": self.run_dir,
            "secrets_file": self.secrets_path,
            "address": self.listen,
            "port": self.port,
        }

    def argv(self) -> tuple[str, ...]:
        """The exact argument vector; raises :class:`ConfigError` for extra flags that contradict a setting."""
        refuse_contradictions(self.extra_args, self.algorithm)
        return (
            self.interpreter,
            *("-m", "sglang.launch_server"),
            *("--model-path", self.target),
            *self._speculation(),
            *("--host", self.listen, "--port", str(self.port)),
            *self._extra(),
        )

    def _speculation(self) -> tuple[str, ...]:
        if self.algorithm == "NONE":
            return ()
        if not self.drafter:
            raise ConfigError(
                f"{self.algorithm} needs a drafter",
                where="service: drafter",
                next_step="name the drafter's folder on the host in the inventory",
            )
        width = self.budget + 1 if self.algorithm == "DDTREE" else self.block_size
        return (
            *("--speculative-algorithm", self.algorithm),
            *("--speculative-draft-model-path", self.drafter),
            *("--speculative-num-draft-tokens", str(width)),
        )

    def _extra(self) -> tuple[str, ...]:
        if self.algorithm != "NONE":
            return self.extra_args
        return without_flags(self.extra_args, "--speculative-")

    def env(self) -> dict[str, str]:
        """The environment that the unit sets, without secrets; the operator's own values win over our defaults."""
        taken = sorted(set(self.environment) & set(RESERVED_ENVIRONMENT))
        if taken:
            raise ConfigError(
                f"the service environment sets {', '.join(taken)}, which ddtree-ops decides",
                where="service: environment",
                next_step="remove it there; a budget is `budget:`, an API key is a secret named SGLANG_DDTREE_API_KEY",
            )
        clash = sorted(set(self.environment) & set(self.secrets))
        if clash:
            raise ConfigError(
                f"{', '.join(clash)} is both a secret and a plain variable",
                where="service: environment",
                next_step="keep it under `secrets:` only",
            )
        return {**self._defaults(), **self.environment, **self._own()}

    def _defaults(self) -> dict[str, str]:
        bin_dir = self.interpreter.rpartition("/")[0]
        found = {
            "PATH": f"{bin_dir}:{SYSTEM_PATH}",
            "PYTHONUNBUFFERED": "1",
            # SGLang 0.5.20 follows the first; the others are for releases before it and for the libraries themselves.
            "SGLANG_CACHE_DIR": self.cache_dir,
            "TRITON_CACHE_DIR": f"{self.cache_dir}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{self.cache_dir}/inductor",
            "FLASHINFER_WORKSPACE_BASE": self.cache_dir,
            "CUDA_CACHE_PATH": f"{self.cache_dir}/nv",
            "TVM_FFI_CACHE_DIR": f"{self.cache_dir}/tvm-ffi",
        }
        if self.python_version >= (3, 11):
            # Older ones do not know it; there the neutral working directory alone keeps `-m` from importing beside it.
            found["PYTHONSAFEPATH"] = "1"
        if self.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        return found

    def _own(self) -> dict[str, str]:
        own = {"DDTREE_RUN_DIR": self.run_dir}
        if self.algorithm == "DDTREE":
            own["DDTREE_BUDGET"] = "auto" if self.auto_budget else str(self.budget)
        return own

    def variant(self, algorithm: Algorithm) -> ServiceSpec:
        """The same service with another algorithm: ``NONE`` for a baseline, ``DFLASH`` for the chain.

        Only DDTREE's hook takes the API key from the environment. The other variants would serve without one, so where
        there is a key they listen on loopback alone.
        """
        open_door = algorithm != "DDTREE" and API_KEY in self.secrets
        return msgspec.structs.replace(self, algorithm=algorithm, listen="127.0.0.1" if open_door else self.listen)


def without_flags(args: Sequence[str], prefix: str) -> tuple[str, ...]:
    """``args`` without the flags that begin with ``prefix``, and without their values."""
    kept: list[str] = []
    dropping = False
    for arg in args:
        if arg.startswith("--"):
            dropping = arg.startswith(prefix)
        if not dropping:
            kept.append(arg)
    return tuple(kept)


def refuse_contradictions(args: Iterable[str], algorithm: Algorithm = "DDTREE") -> None:
    """Raise :class:`ConfigError` when an extra flag says what a setting already says, or may not be there.

    argparse accepts any unambiguous prefix of a flag, so ``--speculative-num`` is caught as well; the reader of the
    inventory knows the full names only.
    """
    for arg in args:
        flag = arg.partition("=")[0].replace("_", "-")
        if not arg.startswith("--") or (algorithm == "NONE" and REJECTION_SAMPLING.startswith(flag)):
            continue
        for own, why in OWN_FLAGS.items():
            if flag == own or (len(flag) > _SHORTEST and own.startswith(flag)):
                raise ConfigError(
                    f"the extra flag {shlex.quote(arg)} may not stand there",
                    where="service: extra_flags",
                    why=f"{own} {why}",
                    next_step=f"remove {flag} from extra_flags",
                )


_SHORTEST = 4  # characters of a prefix that is taken for its flag
