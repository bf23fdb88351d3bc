"""Hosts on which a deploy must be refused, made of real material; test_refusals.py runs the tool against each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts import layers
from tests.hosts.lab import Lab, TestHost

MakeHost = Callable[..., TestHost]
Build = Callable[[Lab, MakeHost], TestHost]
SITE = f"{layers.ENVIRONMENT}/lib/python3.11/site-packages"
OTHER = "/opt/other-env"


@dataclass(frozen=True)
class Case:
    """One bad host.

    ``settings`` go into its inventory entry. ``words`` must all be in what the tool says. ``located``: the fault has
    nothing to do with the source, so ``locate-source`` succeeds and only ``plan`` and ``deploy`` refuse.
    """

    name: str
    build: Build
    words: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=lambda: {"environment": layers.ENVIRONMENT})
    located: bool = False
    exit_code: int = 4


def nothing(lab: Lab, make: MakeHost) -> TestHost:
    """No SGLang at all: an environment without it."""
    return make(layers.empty_env_layer(lab))


def too_old(lab: Lab, make: MakeHost) -> TestHost:
    """SGLang 0.5.10.post1, the last release without DFLASH."""
    return make(layers.wheel_layer(lab, layers.OLD))


def two_environments(lab: Lab, make: MakeHost) -> TestHost:
    """Two environments with SGLang, and nothing says which one serves."""
    return make(layers.wheel_layer(lab, "0.5.20"), layers.wheel_layer(lab, "0.5.13.post1", OTHER))


def shadowed(lab: Lab, make: MakeHost) -> TestHost:
    """The service's working directory has a folder ``sglang``: it wins over the environment's wheel."""
    return make(layers.checkout_layer(lab), layers.wheel_layer(lab, "0.5.20"))


def skeleton(lab: Lab, make: MakeHost) -> TestHost:
    """What an uninstall leaves when byte code and data files lay in the package: folders that import as a namespace."""
    host = make(layers.empty_env_layer(lab))
    host.run(
        f"mkdir -p {SITE}/sglang/srt/__pycache__; printf x > {SITE}/sglang/srt/__pycache__/server_args.cpython-311.pyc"
    )
    return host


def foreign(lab: Lab, make: MakeHost) -> TestHost:
    """Somebody else's DDTree in the installed package."""
    host = make(layers.wheel_layer(lab, "0.5.20"))
    host.write(f"{SITE}/sglang/srt/speculative/ddtree_worker.py", "class DDTreeWorker:\n    '''not ours'''\n")
    return host


def read_only_environment(lab: Lab, make: MakeHost) -> TestHost:
    """The environment lies on a file system that is mounted read-only."""
    host = make(layers.wheel_layer(lab, "0.5.20"))
    host.disk("ro", layers.ENVIRONMENT)
    return host


def read_only_state(lab: Lab, make: MakeHost) -> TestHost:
    """/var/lib, where the tool keeps its state, is mounted read-only."""
    host = make(layers.wheel_layer(lab, "0.5.20"))
    host.disk("ro", "/var/lib")
    return host


def no_space(lab: Lab, make: MakeHost) -> TestHost:
    """The disk has 3 MiB left; a tree needs more than 100."""
    host = make(layers.wheel_layer(lab, "0.5.20"), disk="300M")
    host.disk("fill", "/", "3072")
    return host


_DOCKER = """#!/bin/sh
# Stand-in for the docker client: one image and one running container (no container runtime fits into a test host).
case "$1" in
  ps) echo '{"Image":"lmsysorg/sglang:v0.5.20-cu129","Names":"serve","State":"running","Command":"python3"}' ;;
  images) echo 'lmsysorg/sglang:v0.5.20-cu129' ;;
  *) exit 1 ;;
esac
"""


def only_in_container(lab: Lab, make: MakeHost) -> TestHost:
    """SGLang is in a container image and nowhere else."""
    host = make()
    host.write("/usr/local/bin/docker", _DOCKER, "755")
    merged = "/var/lib/docker/overlay2/4c01/diff/usr/local/lib/python3.12/dist-packages/sglang"
    host.write(f"{merged}/__init__.py", "")
    host.write(f"{merged}/version.py", '__version__ = "0.5.20"\n')
    return host


def port_in_use(lab: Lab, make: MakeHost) -> TestHost:
    """Somebody's unit listens on the service's port, and was not named for takeover."""
    host = make(layers.lab_layer(), layers.cpu_layer(), disk="3G")
    host.write(
        "/etc/systemd/system/other.service",
        "[Service]\nExecStart=/usr/bin/python3 -m http.server 30000 --bind 127.0.0.1 --directory /srv\n",
    )
    host.run("systemctl daemon-reload; systemctl start other")
    host.run("for i in $(seq 100); do ss -Hltn sport = 30000 | grep -q . && exit 0; sleep 0.05; done; exit 1")
    return host


SERVICE = {"target_model": "/root/models/pytiny/target", "drafter": "/root/models/pytiny/draft", "port": 30000}
CASES = (
    Case("no-sglang", nothing, ("no SGLang", layers.ENVIRONMENT)),
    Case("too-old", too_old, ("0.5.10.post1", "DFLASH", "0.5.11")),
    Case("two-environments", two_environments, (layers.ENVIRONMENT, OTHER), settings={}),
    Case(
        "shadowed-by-working-directory",
        shadowed,
        (f"{layers.CHECKOUT}/python", "working directory"),
        {"environment": layers.ENVIRONMENT, "service": {"working_directory": f"{layers.CHECKOUT}/python"}},
    ),
    Case("leftover-skeleton", skeleton, ("leftover", f"{SITE}/sglang")),
    Case("foreign-ddtree", foreign, ("ddtree_worker.py",)),
    Case("read-only-environment", read_only_environment, (layers.ENVIRONMENT,), located=True),
    Case("read-only-state", read_only_state, ("/var/lib/ddtree-ops",), located=True),
    Case("no-space", no_space, ("disk under /var/lib/ddtree-ops", "3 MB"), located=True),
    Case("only-in-a-container", only_in_container, ("container", "lmsysorg/sglang"), settings={}),
    Case(
        "port-in-use",
        port_in_use,
        ("30000", "other.service", "--takeover"),
        {"environment": layers.ENVIRONMENT, "service": SERVICE},
        located=True,
    ),
)


def broken_layer_file(folder: Path) -> Path:
    """One byte of the first patch file of a series folder is changed; the file."""
    patch = sorted(folder.glob("*.patch"))[0]
    text = bytearray(patch.read_bytes())
    text[len(text) // 2] ^= 1
    patch.write_bytes(bytes(text))
    return patch


def as_json(text: str) -> dict[str, Any]:
    """The one JSON document of ``--json``."""
    found: dict[str, Any] = json.loads(text)
    return found
