"""Start, ask and stop real SGLang servers on the CPU; used by the tests of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


@dataclass(frozen=True)
class Environment:
    """The CPU environment: its interpreter, its pristine SGLang and a folder for bytecode."""

    python: Path
    bytecode: Path

    @property
    def sglang(self) -> Path:
        """The installed, unmodified package."""
        return next((self.python.parents[1] / "lib").glob("python3.*/site-packages/sglang"))

    def variables(self, *pythonpath: Path, **more: str) -> dict[str, str]:
        """The variables of a child: stand-ins and CPU patches on the path, bytecode outside of the environment."""
        path = [HERE / "stubs", HERE / "runtime", *pythonpath]
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        fixed = {
            "PYTHONPATH": ":".join(map(str, path)),
            "PYTHONPYCACHEPREFIX": str(self.bytecode),
            "SGLANG_USE_CPU_ENGINE": "1",
            "TRITON_INTERPRET": "1",
            "HF_HUB_OFFLINE": "1",
            "DDTREE_ALLOW_CPU": "1",
            "OMP_NUM_THREADS": "1",
        }
        return {**kept, **fixed, **more}

    def run(self, *command: str | Path, variables: Mapping[str, str] | None = None, text: str = "") -> str:
        """Run the interpreter with a command line; returns stdout, raises with stderr when it fails."""
        done = subprocess.run(
            [str(self.python), *map(str, command)],
            env=dict(variables or self.variables()),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise AssertionError(f"{command[0]}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done.stdout


def make_patched_tree(pristine: Path, folder: Path) -> Path:
    """Copy a pristine package into ``folder``, patch it, add the payload; returns what goes on PYTHONPATH."""
    from ddtree_ops import patching  # the questions are asked from GPU hosts, too, which have no use for it

    recipe = patching.load_recipe(REPOSITORY / "patches" / "recipe.yaml")
    series = patching.make_git_series(recipe, patching.open_tree(pristine))
    package = folder / "sglang"
    shutil.copytree(pristine, package, ignore=shutil.ignore_patterns("__pycache__"))
    for state in series.meta.files:
        (package / state.path).write_bytes(series.result(state.path, (pristine / state.path).read_bytes()))
    for path, data in patching.load_payload(recipe, REPOSITORY / "kernels").placed().items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_bytes(data)
    return folder


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Server:
    """A running server."""

    url: str
    log: Path

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Send JSON; returns status and decoded answer, also for errors."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def get(self, path: str) -> str:
        """Return the text of an answer; raises for errors."""
        with urllib.request.urlopen(self.url + path, timeout=60) as reply:
            return str(reply.read().decode())

    def generate(self, texts: Sequence[str], tokens: int, temperature: float = 0) -> list[dict[str, Any]]:
        """Decode all texts in one batch, greedily unless a temperature is given."""
        sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        status, answer = self.post("/generate", {"text": list(texts), "sampling_params": sampling})
        assert status == 200, answer
        return list(answer)


@contextlib.contextmanager
def serving(
    environment: Environment, model: Path, log: Path, *arguments: str | Path, tree: Path | None = None, **variables: str
) -> Iterator[Server]:
    """Run a server until the block ends; its whole process group is ended then."""
    port = free_port()
    command: list[str | Path] = [HERE / "start.sh", "--python", environment.python, "--model", model, "--log", log]
    command += ["--port", str(port), "--dtype", "bfloat16", "--life", "1500"]
    if tree is not None:
        command += ["--pythonpath", tree]
    done = subprocess.run(
        [*map(str, command), "--", *map(str, arguments)],
        env=environment.variables(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the server did not start:\n{done.stderr[-4000:]}"
    group = int(done.stdout)
    try:
        yield Server(f"http://127.0.0.1:{port}", log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
        _await_group(group)


def _await_group(group: int, timeout: float = 30.0) -> None:
    """Wait until a process group is gone; kill what is left of it after the timeout."""
    import time

    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
