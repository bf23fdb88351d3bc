"""The beacon in a process of its own: what the file says, control.json, and that it never harms its host process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.payload import KERNELS, beacon

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the beacon reads /proc")

PACKAGE = {
    "sglang/__init__.py": "",
    "sglang/srt/speculative/spec_info.py": "VALUE = 1\n",
    "sglang/srt/speculative/other.py": "VALUE = 2\n",
    "sglang/srt/managers/scheduler.py": "",
}
CHILD = """
import os, sys, time
sys.path[:0] = [{folder!r}, {kernels!r}]
import sglang, sglang.srt.speculative.spec_info, sglang.srt.managers.scheduler
from ddtree import beacon, metrics
beacon.settings.update(algorithm="DDTREE", budget=16)
metrics.host.add("refused")
beacon.start()
print("ready", flush=True)
sys.stdin.readline()
import sglang.srt.speculative.other
print(beacon.control.budget, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def child(tmp_path: Path) -> Any:
    """A process with a small package and a beacon; ended by the end of its stdin."""
    for name, text in PACKAGE.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "run").mkdir()
    code = CHILD.format(folder=str(tmp_path / "tree"), kernels=str(KERNELS))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"DDTREE_RUN_DIR": str(tmp_path / "run"), "PYTHONPYCACHEPREFIX": str(tmp_path / "pyc")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.stdin.close()
    assert process.wait(timeout=10) == 0
    process.stdout.close()


def _read(path: Path, wanted: Any) -> dict[str, Any]:
    """Read a beacon until ``wanted`` holds, at most five seconds."""
    end = time.monotonic() + 5
    while True:
        if path.exists():
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if wanted(content):
                return content
        assert time.monotonic() < end, path
        time.sleep(0.1)


def test_beacon_tells_identity_files_and_counters(child: Any, tmp_path: Path) -> None:
    """Attestation compares these with the plan; a late import must appear, an unrelated module must not."""
    path = tmp_path / "run" / f"{child.pid}.json"
    first = _read(path, lambda content: content["files"])
    assert first["schema"] == "ddtree-beacon/1"
    assert first["pid"] == child.pid
    assert first["start_time"] == int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert first["settings"] == {"algorithm": "DDTREE", "budget": 16}
    assert first["counters"]["refused"] == 1
    modules = {item["module"]: item for item in first["files"]}
    assert set(modules) == {"sglang", "sglang.srt.speculative.spec_info"}
    item = modules["sglang.srt.speculative.spec_info"]
    assert item["sha256"] == beacon._sha256(tmp_path / "tree/sglang/srt/speculative/spec_info.py")
    assert item["bytecode"] == "timestamp-pyc"
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "None\n"
    _read(path, lambda content: "sglang.srt.speculative.other" in {item["module"] for item in content["files"]})
    assert not list((tmp_path / "run").glob("*.part"))


def test_control_file_is_read_and_a_bad_one_changes_nothing(child: Any, tmp_path: Path) -> None:
    """The budget may be lowered while serving; nonsense must be reported, not obeyed."""
    path, control = tmp_path / "run" / f"{child.pid}.json", tmp_path / "run" / "control.json"
    control.write_text('{"budget": 8}', "utf-8")
    _read(path, lambda content: content["control"] == {"budget": 8, "mode": "tree", "error": None})
    control.write_text('{"budget": "lots"}', "utf-8")
    bad = _read(path, lambda content: content["control"]["error"])
    assert bad["control"]["budget"] == 8
    control.write_text('{"mode": "chain"}', "utf-8")
    _read(path, lambda content: content["control"] == {"budget": None, "mode": "chain", "error": None})
    control.write_text('{"mode": "forest"}', "utf-8")
    bad = _read(path, lambda content: content["control"]["error"])
    assert bad["control"]["mode"] == "chain"
    control.unlink()
    _read(path, lambda content: content["control"] == {"budget": None, "mode": "tree", "error": None})


def test_file_goes_when_the_process_ends(child: Any, tmp_path: Path) -> None:
    """A file that stays would look like a process to a careless reader."""
    path = tmp_path / "run" / f"{child.pid}.json"
    _read(path, lambda content: True)
    child.stdin.write("\n\n")
    child.stdin.flush()
    child.wait(timeout=10)
    assert not path.exists()


@pytest.mark.parametrize("folder", ["", "/nonexistent/ddtree"])
def test_start_never_raises(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose run folder is missing must start all the same."""
    monkeypatch.setenv("DDTREE_RUN_DIR", folder)
    beacon.start()


def test_bytecode_modes(tmp_path: Path) -> None:
    """Unchecked bytecode runs whatever its source says: attestation must be able to see it."""
    import importlib.util
    import py_compile

    source = tmp_path / "mod.py"
    source.write_text("VALUE = 1\n", "utf-8")
    modes = {
        "timestamp-pyc": py_compile.PycInvalidationMode.TIMESTAMP,
        "checked-hash": py_compile.PycInvalidationMode.CHECKED_HASH,
        "unchecked-hash": py_compile.PycInvalidationMode.UNCHECKED_HASH,
    }
    for name, mode in modes.items():
        py_compile.compile(str(source), invalidation_mode=mode)
        spec = importlib.util.spec_from_file_location("mod", source)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        assert beacon._describe("mod", module, str(source))["bytecode"] == name
    py_compile.compile(str(source))
    source.write_text("VALUE = 22\n", "utf-8")
    assert beacon._describe("mod", module, str(source))["bytecode"] == "source"
