"""Where the demo plays: a real host with systemd when this machine can make one, else a plain sshd as this user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts import layers
from tests.hosts.lab import Lab, TestHost
from tests.hosts.light_sshd import LightHost, find_sshd

ROOT = Path(__file__).parents[1]
FIRST_TIME = "torch, triton and SGLang 0.5.20 come from the package index the first time"


class SetupFailed(Exception):
    """The stage could not be set up; the text says what to do."""


@dataclass(frozen=True)
class Job:
    """One piece of the set-up."""

    title: str
    work: Callable[[], object]
    note: str = ""  # shown while it runs


def free_port() -> int:
    """A TCP port on loopback that nobody holds now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stage(ABC):
    """A place with a host; ``jobs`` sets it up, ``close`` leaves nothing of it."""

    left_out: tuple[str, ...] = ()
    description = ""
    compared = "the host's whole disk"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def jobs(self) -> list[Job]:
        """The set-up, in order."""

    @abstractmethod
    def inventory(self) -> Path:
        """The inventory file that names the host."""

    @abstractmethod
    def differs(self) -> dict[str, Any]:
        """What is on the host's disk now that its layers do not have, path by path; seen past the tool."""

    @abstractmethod
    def proven(self) -> None:
        """Everything is as it was set up: it may serve again."""

    @abstractmethod
    def close(self) -> None:
        """End the host."""


class SystemdStage(Stage):
    """A host with systemd as PID 1, sshd, an own disk and address. Nothing of this machine is changed."""

    description = "a throw-away host on this machine: systemd, sshd, its own disk, network and address"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lab = Lab(f"demo{os.getpid()}")
        self.host: TestHost | None = None
        self._cpu = Path()
        self._pool = ThreadPoolExecutor(1)

    def jobs(self) -> list[Job]:
        """Root file system and SGLang environment side by side, then the old checkout, then the host."""
        environment = self._pool.submit(_cpu_environment)

        def wait_environment() -> None:
            self._cpu = environment.result()

        return [
            Job("root file system of the host (Debian 12)", self.lab.image, "from Debian packages the first time"),
            Job("environment with the SGLang 0.5.20 wheel, CPU torch", wait_environment, FIRST_TIME),
            Job("old checkout 0.5.10.post1 with two edited files", self._checkout),
            Job("host boots", self._boot),
        ]

    def _checkout(self) -> None:
        self.lab.up()
        layers.checkout_layer(self.lab)

    def _boot(self) -> None:
        stack = [layers.checkout_layer(self.lab), layers.lab_layer(), self._cpu]
        self.host = self.lab.add(stack, disk="4G")
        self.lab.enter()

    def inventory(self) -> Path:
        """The host as ``demo``, with the key and known_hosts file that were made for it."""
        assert self.host is not None
        return self.host.inventory(
            self.folder / "inventory.yaml",
            "demo",
            environment=layers.ENVIRONMENT,
            checkouts=[layers.CHECKOUT],
            service=layers.cpu_service(),
        )

    def differs(self) -> dict[str, Any]:
        """The host's overlay against its layers: the whole disk."""
        assert self.host is not None
        return self.host.differs()

    def proven(self) -> None:
        """Nothing to keep: a host has a disk of its own each time."""

    def close(self) -> None:
        """Host, network and disk are gone."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.lab.down()


def _cpu_environment() -> Path:
    ready = layers.ORIGINAL_ENV.get("DDTREE_TEST_LAYER")
    return Path(ready) if ready else _make_env(layers.cache() / "layers" / "cpu")


def _make_env(place: Path, *options: str) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["bash", str(ROOT / "tests/sglang_cpu/make_env.sh"), str(place), *options],
        env=layers.ORIGINAL_ENV,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 3:
        raise SetupFailed(
            "pip on this machine would fetch torch as a CUDA build: gigabytes that this demo has no use for.\n"
            "Nothing was downloaded. Name an index with CPU builds and start again, for example PyTorch's own:\n\n"
            "    TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu make demo"
        )
    if done.returncode:
        raise SetupFailed(f"the environment could not be made:\n{done.stderr.strip()[-3000:]}")
    return place


class LightStage(Stage):
    """Without root: sshd on loopback as this user, an environment in the cache folder, ``init: process``."""

    description = "a plain sshd on 127.0.0.1 as the user who runs this; the service is a process group"
    compared = "environment and checkout"
    left_out = (
        "systemd: the unit, its verification, enablement and restart policy (`init: process` instead)",
        "an own disk: the environment lies in the cache folder of this user",
        "the proof over the whole disk: only the environment and the checkout are compared",
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.host = LightHost()
        self.place = layers.cache() / "light"

    def jobs(self) -> list[Job]:
        """Environment, checkout, sshd."""
        return [
            Job("environment with the SGLang 0.5.20 wheel, CPU torch", self._environment, FIRST_TIME),
            Job("old checkout 0.5.10.post1 with two edited files", self._checkout),
            Job("sshd on loopback", self._boot),
        ]

    def _environment(self) -> None:
        if (self.place / ".in-use").exists():  # an earlier demo was killed: what it left is not what we start from
            shutil.rmtree(self.place)
        _make_env(self.place, "--in-place")
        (self.place / ".in-use").touch()

    def _checkout(self) -> None:
        checkout = self.folder / "sglang"
        shutil.rmtree(checkout, ignore_errors=True)
        checkout.mkdir()
        recipe = layers.checkout_recipe(str(checkout))
        subprocess.run(["sh", "-euc", recipe, "sh", str(layers.source_file())], check=True, stdout=subprocess.DEVNULL)

    def _boot(self) -> None:
        if find_sshd() is None:
            raise SetupFailed("sshd is not installed: apt-get install openssh-server, then make demo again")
        self.host.__enter__()

    def inventory(self) -> Path:
        """The sshd as ``demo``."""
        lab = self.place / "root"
        entry = {
            "address": self.host.address,
            "port": self.host.port,
            "user": self.host.user,
            "init": "process",
            "environment": str(lab / "ml-env"),
            "checkouts": [str(self.folder / "sglang")],
            "state_root": str(self.folder / "state"),
            "ssh": {"identity_files": [self.host.key], "known_hosts": [self.host.known_hosts], "agent": False},
            "service": layers.cpu_service(free_port(), str(lab / "lab"), str(ROOT / "tests/models/pytiny")),
        }
        path = self.folder / "inventory.yaml"
        path.write_text(json.dumps({"hosts": {"demo": entry}}, indent=2))
        return path

    def differs(self) -> dict[str, Any]:
        """Hashes of the environment and the checkout, byte code left out."""
        return layers.hashes(self.place / "root" / "ml-env") | layers.hashes(self.folder / "sglang")

    def proven(self) -> None:
        """The environment need not be made anew next time."""
        (self.place / ".in-use").unlink(missing_ok=True)

    def close(self) -> None:
        """End sshd."""
        self.host.__exit__()


def choose(folder: Path) -> tuple[Stage, str]:
    """The best stage that this machine allows, and why not the better one."""
    reason = Lab.missing() or layers.cpu_obstacle()
    return (SystemdStage(folder), "") if reason is None else (LightStage(folder), reason)
