"""One JSON file per process that says what this process really runs; read by the deploy tool, never by SGLang.

``sglang/__init__.py`` calls :func:`start` when ``DDTREE_RUN_DIR`` is set. A daemon thread then keeps
``$DDTREE_RUN_DIR/<pid>.json`` current (schema ``ddtree-beacon/1``): process identity, build, the source and bytecode of
the files that matter, effective settings, counters. It looks about once a second and writes only what changed, by
atomic replacement. ``control.json`` in the same folder may lower the budget, or ask for chains, at run time.

Standard library only, cheap to import, and nothing here ever raises into SGLang: a beacon that cannot be written is
missing evidence, not a broken server.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

SCHEMA = "ddtree-beacon/1"
ENV_RUN_DIR = "DDTREE_RUN_DIR"
CONTROL_FILE = "control.json"
PERIOD_S = 1.0

_HERE = Path(__file__).resolve().parent
_WATCHED = ("__init__.py", "srt/model_executor/runner/decode_cuda_graph_runner.py")
_FLAG_HASH, _FLAG_CHECKED = 0b01, 0b10

settings: dict[str, Any] = {}
"""Effective settings, filled in by the worker: algorithm, budget, width, block_size, backend, overlap ..."""


class Control:
    """What ``control.json`` asks for.

    ``budget`` is ``None`` (the server's own), a number of nodes, or ``auto``; ``mode`` is ``tree``, or ``chain`` for
    trees that are the chain of best candidates (the linear scheme, in captured graphs). A file without ``mode`` leaves
    the mode as it is, until there is no file.
    """

    def __init__(self) -> None:
        self.budget: int | str | None = None
        self.mode = "tree"
        self.error: str | None = None
        self._seen: tuple[int, int] | None = None

    def refresh(self, path: Path) -> None:
        """Read the file when it changed; a bad file changes nothing and is reported in the beacon."""
        try:
            stat = path.stat()
        except OSError:
            self.budget, self.mode, self.error, self._seen = None, "tree", None, None
            return
        if (stat.st_mtime_ns, stat.st_ino) == self._seen:
            return
        self._seen = (stat.st_mtime_ns, stat.st_ino)
        try:
            asked = json.loads(path.read_text("utf-8"))
            budget, mode = asked.get("budget"), asked.get("mode", self.mode)
            if budget not in (None, "auto") and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 1):
                raise ValueError(f'budget must be a whole number of nodes from 1, or "auto", got {budget!r}')
            most = settings.get("budget")
            if isinstance(budget, int) and isinstance(most, int) and budget > most:
                raise ValueError(f"budget {budget} is above the {most} nodes that this server was started for")
            if mode not in ("tree", "chain"):
                raise ValueError(f'mode must be "tree" or "chain", got {mode!r}')
        except (OSError, ValueError, AttributeError) as error:
            self.error = f"{path.name}: {error}"
            return
        self.budget, self.mode, self.error = budget, mode, None


control = Control()


class Beacon:
    """The writer of this process's file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f"{os.getpid()}.json"
        self._files: dict[str, dict[str, Any]] = {}
        self._written = ""
        self._build = build()
        self._identity: dict[str, Any] = {
            "schema": SCHEMA,
            "pid": os.getpid(),
            "start_time": _start_time(),
            "executable": sys.executable,
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "package": str(_HERE),
            "build": {name: value for name, value in self._build.items() if name != "files"},
        }

    def run(self) -> None:
        """Keep the file current until the process ends."""
        while True:
            try:
                control.refresh(self.folder / CONTROL_FILE)
                self.write()
            except Exception:
                pass  # evidence is missing then; the server must go on
            time.sleep(PERIOD_S)

    def write(self) -> None:
        """Replace the file when its content changed."""
        text = json.dumps(self.content(), sort_keys=True)
        if text == self._written and self.path.exists():
            return
        part = self.path.with_suffix(".part")
        part.write_text(text, "utf-8")
        part.replace(self.path)
        self._written = text

    def content(self) -> dict[str, Any]:
        """Return the document as it is now."""
        self._look_at_modules()
        return {
            **self._identity,
            "argv": _command_line(),
            "files": [self._files[name] for name in sorted(self._files)],
            "settings": dict(settings),
            "counters": _counters(),
            "control": {"budget": control.budget, "mode": control.mode, "error": control.error},
        }

    def _look_at_modules(self) -> None:
        """Record modules of interest once, as soon as they are seen."""
        wanted = set(_WATCHED) | set(self._build.get("files", ()))
        root = _package_root()
        for name, module in list(sys.modules.items()):
            if name in self._files or not (name == "sglang" or name.startswith("sglang.")):
                continue
            source = getattr(module, "__file__", None)
            if source is None or not source.endswith(".py"):
                continue
            inside = os.path.relpath(source, root).replace(os.sep, "/") if root else source
            if name.startswith("sglang.srt.speculative.") or inside in wanted:
                self._files[name] = _describe(name, module, source)


def start() -> None:
    """Start the beacon of this process, and of every process it forks. Never raises."""
    try:
        folder = os.environ.get(ENV_RUN_DIR)
        if not folder or not Path(folder).is_dir():
            return
        _start(Path(folder))
        os.register_at_fork(after_in_child=lambda: _start(Path(folder)))
    except Exception:
        pass  # see the module's docstring


def _start(folder: Path) -> None:
    beacon = Beacon(folder)
    threading.Thread(target=beacon.run, name="ddtree-beacon", daemon=True).start()
    atexit.register(_remove, beacon.path, os.getpid())


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:
        path.unlink(missing_ok=True)


def _start_time() -> int | None:
    """Return the process's start time in clock ticks since boot (field 22 of /proc/self/stat)."""
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _command_line() -> list[str]:
    """Return the first two words of the command line: the title that SGLang's processes give themselves, no secrets."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode("utf-8", "replace").rstrip() for word in words if word.strip()][:2]


@functools.cache
def build() -> dict[str, Any]:
    """Return ``_build.json`` beside the package: build_id, release_id, series, ``files`` of the package."""
    try:
        data = json.loads((_HERE / "_build.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _package_root() -> str | None:
    """Return the folder of the ``sglang`` package that this process imported."""
    module = sys.modules.get("sglang")
    source = getattr(module, "__file__", None)
    return os.path.dirname(source) if source else None


def _describe(name: str, module: Any, source: str) -> dict[str, Any]:
    """Return path, source hash and bytecode mode of one imported module."""
    entry: dict[str, Any] = {"module": name, "path": source, "sha256": _sha256(Path(source)), "bytecode": "source"}
    cached = getattr(getattr(module, "__spec__", None), "cached", None)
    if not cached or not Path(cached).is_file():
        return entry
    data = Path(cached).read_bytes()
    flags = int.from_bytes(data[4:8], "little")
    if flags & _FLAG_HASH:
        entry["bytecode"] = "checked-hash" if flags & _FLAG_CHECKED else "unchecked-hash"
    else:
        stat = Path(source).stat()
        recorded = (int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:16], "little"))
        actual = (int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
        entry["bytecode"] = "timestamp-pyc" if recorded == actual else "source"
    if entry["bytecode"] != "source":
        entry["code_sha256"] = hashlib.sha256(data[16:]).hexdigest()
    return entry


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _counters() -> dict[str, Any]:
    """Return the counters when this process has loaded the metrics module (the scheduler has)."""
    metrics = sys.modules.get(f"{__package__}.metrics")
    return metrics.snapshot() if metrics is not None else {}
