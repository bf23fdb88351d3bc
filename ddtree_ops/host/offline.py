"""The verbs ``offline_record`` and ``trace_read``: our offline decoder in the service's interpreter, and traces.

The decoder needs torch and transformers, which this program does not have: its modules are written to a temporary
folder and run as a child there. The child's records travel as they come; the folder goes with the child, also when the
controller is lost (we kill it) or this program is killed (its stdin closes, and it removes the folder itself).
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from base64 import b64encode
from typing import IO, Any, Dict, List, Optional

from . import commands
from .protocol import Emit, HostError, verb

SILENCE_SECONDS = 900.0  # loading a large model tells nothing
BATCH_SECONDS = 0.5
_STDERR_LINES = 40
_CHUNK = 4 << 20
MODULE = "ddtree_ops.baseline.offline"
PREFIX = "ddtree-offline-"

Params = Dict[str, Any]


@verb("offline_record")
def offline_record(params: Params, emit: Emit) -> Params:
    """Run the offline decoder: ``python`` (interpreter), ``files`` (relative path -> text), ``prompts`` (JSON lines),
    ``argv`` (its arguments but prompts and output), ``env``, ``silence``.

    Events: ``{"kind": "lines", "lines": [...]}`` in order, and its progress. Result: ``status``, ``stderr`` (last
    lines), ``lines`` (count). Raises ``no_interpreter`` and ``offline_silent``; nothing of it stays on the host.
    """
    python = str(params["python"])
    if not os.access(python, os.X_OK):
        raise HostError(
            "no_interpreter",
            "there is no interpreter to run the offline decoder with",
            where=python,
            next="name the environment that has torch and transformers: `environment` in the inventory",
        )
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        _write(folder, {**dict(params.get("files") or {}), "prompts.jsonl": str(params["prompts"])})
        return _run(folder, python, params, emit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: str, files: Dict[str, str]) -> None:
    root = os.path.realpath(folder)
    for name, text in files.items():
        path = os.path.realpath(os.path.join(root, name))
        if not path.startswith(root + os.sep):
            raise HostError("bad_params", "a file name leaves the folder: %r" % name, exit=1)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _run(folder: str, python: str, params: Params, emit: Emit) -> Params:
    argv = [python, "-B", "-u", "-m", MODULE, *map(str, params.get("argv") or ())]
    argv += ["--prompts", "prompts.jsonl", "--out", "-", "--tied", folder]
    env = commands.clean_environment({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    env.update({str(key): str(value) for key, value in dict(params.get("env") or {}).items()})
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=env,
        start_new_session=True,
    )
    complaints: List[str] = []
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        threading.Thread(target=_keep, args=(child.stderr, complaints), daemon=True).start()
        lines = _pass_on(child.stdout, float(params.get("silence") or SILENCE_SECONDS), emit)
        status = child.wait(timeout=60.0)
    finally:
        _end(child)
    return {"status": status, "stderr": complaints[-_STDERR_LINES:], "lines": lines}


def _keep(stream: IO[bytes], lines: List[str]) -> None:
    for line in stream:
        lines.append(line.decode("utf-8", "replace").rstrip("\n"))
        del lines[:-_STDERR_LINES]


def _pass_on(stream: IO[bytes], silence: float, emit: Emit) -> int:
    """Send lines in batches until the stream ends; returns how many. ``emit`` raises when nobody listens any more."""
    arrived: "queue.Queue[Optional[bytes]]" = queue.Queue(maxsize=1000)
    threading.Thread(target=_read, args=(stream, arrived), daemon=True).start()
    count, heard = 0, time.monotonic()
    while True:
        batch, ended = _batch(arrived)
        if batch:
            heard = time.monotonic()
            count += len(batch)
            emit({"kind": "lines", "lines": batch})
        elif not ended:
            if time.monotonic() - heard > silence:
                raise HostError("offline_silent", "the offline decoder said nothing for %.0f s" % silence, exit=9)
            emit({"kind": "running", "step": "offline"})
        if ended:
            return count


def _read(stream: IO[bytes], arrived: "queue.Queue[Optional[bytes]]") -> None:
    for line in stream:
        arrived.put(line)
    arrived.put(None)


def _batch(arrived: "queue.Queue[Optional[bytes]]") -> "tuple[List[str], bool]":
    """What came within half a second, and whether that was all."""
    batch: List[str] = []
    end = time.monotonic() + BATCH_SECONDS
    while True:
        try:
            line = arrived.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            return batch, False
        if line is None:
            return batch, True
        batch.append(line.decode("utf-8", "replace").rstrip("\n"))


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End what is left of the child's group, and reap the child."""
    if child.poll() is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
    for stream in (child.stdin, child.stdout, child.stderr):
        try:
            if stream is not None:
                stream.close()
        except OSError:
            pass
    try:
        child.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        pass


@verb("trace_read")
def trace_read(params: Params, emit: Emit) -> Params:
    """Send the file ``path`` (and its older part ``path.1`` first), at most ``most_bytes`` of its end, as chunks
    ``{"kind": "chunk", "data": base64 of zlib}``. Result: ``size``, ``skipped``. Raises ``no_trace``."""
    path = str(params["path"])
    parts = [part for part in (path + ".1", path) if os.path.isfile(part)]
    if not parts:
        raise HostError(
            "no_trace",
            "there is no trace",
            where=path,
            next="start the service with DDTREE_TRACE=%s in its environment, and send it requests" % path,
        )
    sizes = [os.path.getsize(part) for part in parts]
    total, most = sum(sizes), int(params.get("most_bytes") or 256 << 20)
    skip = max(0, total - most)
    left = skip
    for part, size in zip(parts, sizes):
        if left >= size:
            left -= size
            continue
        with open(part, "rb") as file:
            file.seek(left)
            left = 0
            while True:
                data = file.read(_CHUNK)
                if not data:
                    break
                emit({"kind": "chunk", "data": b64encode(zlib.compress(data, 6)).decode("ascii")})
    return {"size": total, "skipped": skip}
