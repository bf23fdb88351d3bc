"""A real sshd on loopback for the transport's tests, and a host program with verbs that misbehave on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.inventory import Host, SshOptions
from ddtree_ops.remote import bundle
from tests.hosts.light_sshd import LightHost, find_sshd

MISBEHAVING = '''
"""Verbs for tests of the transport."""
import os
import sys
import time
from . import protocol

@protocol.verb("echo")
def echo(params, emit):
    return params

@protocol.verb("flood")
def flood(params, emit):
    """Events on stdout and text on stderr, in turns, so that a reader of one stream alone would block us."""
    for number in range(params["blocks"]):
        emit({"kind": "block", "data": os.urandom(params["size"]).hex()})
        sys.stderr.write("e" * params["size"])
        sys.stderr.flush()
    return {"blocks": params["blocks"]}

@protocol.verb("stray")
def stray(params, emit):
    print("a stray print")
    os.system("echo a child that prints; cat")
    return {"done": True}

@protocol.verb("sleep")
def sleep(params, emit):
    time.sleep(params["seconds"])
    return {"slept": params["seconds"]}

@protocol.verb("die")
def die(params, emit):
    sys.stderr.write("about to die\\n")
    sys.stderr.flush()
    os._exit(9)

@protocol.verb("paths")
def paths(params, emit):
    return {"names": sorted(os.listdir(params["folder"]))}

@protocol.verb("crash")
def crash(params, emit):
    raise KeyError("crash of the verb")

@protocol.verb("truncate")
def truncate(params, emit):
    """Half a reply, then the end."""
    from .frames import encode
    frame = encode({"id": 0, "event": {"kind": "x" * 1000}}, params["nonce"])
    os.write(params["fd"], frame[: len(frame) // 2])
    os._exit(0)

@protocol.verb("mark")
def mark(params, emit):
    """When the controller is lost, say so in a file."""
    def hook(reason):
        with open(params["file"], "w") as out:
            out.write(reason)
    protocol.on_lost(hook)
    protocol.set_idle_limit(params.get("idle"))
    return {}
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bundle.Bundle:
    """The host program with the verbs of :data:`MISBEHAVING` in it, instead of the real one."""
    folder = tmp_path / "program"
    folder.mkdir()
    real = Path(bundle.__file__).parents[1] / "host"
    for name in ("__init__.py", "frames.py", "protocol.py", "main.py"):
        shutil.copy(real / name, folder / name)
    (folder / "facts.py").write_text(MISBEHAVING)
    made = bundle.build(folder)
    monkeypatch.setattr(bundle, "bundle", lambda: made)
    return made


@pytest.fixture(scope="module")
def light() -> Iterator[LightHost]:
    """One sshd for the tests of a module."""
    if find_sshd() is None:
        pytest.skip("openssh-server is not installed")
    with LightHost() as host:
        yield host


def ssh_host(light: LightHost, **ssh: Any) -> Host:
    """An inventory host for ``light`` with its right key and known_hosts, neither ~/.ssh nor an agent involved."""
    empty = light.dir / "ssh_config"
    empty.touch()
    options: dict[str, Any] = {
        "config": str(empty),
        "identity_files": (light.key,),
        "known_hosts": (light.known_hosts,),
        "agent": False,
    }
    return Host(
        name="light", address=light.address, port=light.port, user=light.user, ssh=SshOptions(**(options | ssh))
    )


def ssh_config(light: LightHost, text: str) -> Host:
    """A host of which all but the name is in an ssh_config file with ``text``."""
    path = light.dir / "ssh_config_of_test"
    path.write_text(text)
    return Host(name="alias", address="alias", ssh=SshOptions(config=str(path), agent=False))


@pytest.fixture
def host(light: LightHost) -> Host:
    """``light`` as a host of the inventory."""
    return ssh_host(light)


Wait = Callable[[Callable[[], bool]], bool]


@pytest.fixture
def within() -> Wait:
    """``within(condition)`` waits up to 10 s for it and returns whether it came true."""
    import time

    def wait(condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False

    return wait
