"""Real servers on a GPU: DDTREE serves without waiting for the device, and refuses to start without its capture hook.

    DDTREE_GPU_SGLANG=PATCHED DDTREE_GPU_TARGET=DIR DDTREE_GPU_DRAFT=DIR python -m pytest tests/gpu/test_server_gpu.py

``PATCHED`` is a folder that holds a patched ``sglang`` package; target and drafter are model folders. A start takes a
minute or two.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NEEDED = ("DDTREE_GPU_SGLANG", "DDTREE_GPU_TARGET", "DDTREE_GPU_DRAFT")
if missing := [name for name in NEEDED if not os.environ.get(name)]:
    pytest.skip(f"needs an NVIDIA GPU and {', '.join(missing)}", allow_module_level=True)

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]

TREE, TARGET, DRAFT = (Path(os.environ[name]) for name in NEEDED)
RUNNER = "sglang/srt/model_executor/runner/decode_cuda_graph_runner.py"
HOOK = re.compile(
    r"        if [^\n]*DDTREE[^\n]*:\n            from [^\n]*ddtree import hook\n            return [^\n]*\n", re.DOTALL
)


@contextlib.contextmanager
def server(
    tree: Path, log: Path, *flags: str, plain: bool = False, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a DDTREE server (``plain``: one without speculation) in a process group of its own; ends it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    drafting = [
        "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(DRAFT),
        "--speculative-num-draft-tokens", "33",
    ]  # fmt: skip
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(TARGET), "--port", str(port),
        *([] if plain else drafting), "--attention-backend", "triton", "--sampling-backend", "pytorch",
        "--grammar-backend", "none", "--max-total-tokens", "32768", "--context-length", "2048",
        "--max-running-requests", "16", "--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", "1", "2", "4", "8",
        *flags,
    ]  # fmt: skip
    path = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def is_up(process: subprocess.Popen[bytes], url: str, seconds: float = 400.0) -> bool:
    """Wait until the server answers or has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url + "/health_generate", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    return False


def generate(url: str, texts: list[str], temperature: float) -> list[dict[str, Any]]:
    """Send a batch."""
    body = {"text": texts, "sampling_params": {"temperature": temperature, "max_new_tokens": 60, "top_p": 0.95}}
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        answers: list[dict[str, Any]] = json.load(reply)
        return answers


def test_steps_do_not_wait_for_the_device(tmp_path: Path) -> None:
    """torch's detector ends the server at the first operation that waits; batches of three and five are padded."""
    texts = ["The capital of France is", "def fib(n):", "Once upon a time", "List three fruits:", "The moon"]
    with server(TREE, tmp_path / "log", DDTREE_SYNC_DEBUG="error") as (process, url):
        assert is_up(process, url), (tmp_path / "log").read_text("utf-8", "replace")[-4000:]
        for temperature in (0.0, 0.7):
            for count in (1, 3, 5):
                for _ in range(2):
                    answers = generate(url, texts[:count], temperature)
                    assert all(answer["meta_info"]["completion_tokens"] > 0 for answer in answers)
        assert process.poll() is None
        assert "captured verify graphs follow the tree" in (tmp_path / "log").read_text("utf-8", "replace")


def test_without_the_capture_hook_the_server_does_not_start(tmp_path: Path) -> None:
    """A graph captured without the mask verifies a chain and returns wrong tokens without any error."""
    tree = tmp_path / "tree"
    shutil.copytree(TREE / "sglang", tree / "sglang", symlinks=True)
    runner = tree / RUNNER
    text, removed = HOOK.subn("", runner.read_text("utf-8"))
    assert removed == 1
    runner.write_text(text, "utf-8")
    with server(tree, tmp_path / "log") as (process, url):
        assert not is_up(process, url)
    log = (tmp_path / "log").read_text("utf-8", "replace")
    assert "DDTREE self-check failed" in log
    assert "apply the patch series" in log
