"""Beacons, bytecode and disk against what was deployed; no server is needed for these."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import sys
import time
from pathlib import Path

from ddtree_ops.host import attest, supervisor


def test_bytecode_of_another_source_is_found(tmp_path: Path):
    """D7: same size and time, other content: Python loads the old bytecode, and hashing the source does not show it."""
    path = tmp_path / "module.py"
    path.write_text("X = 2\n")
    cached = importlib.util.cache_from_source(str(path))
    py_compile.compile(str(path), cached, doraise=True)
    assert attest.stale_bytecode(sys.executable, [str(path)]) == []
    status = path.stat()
    path.write_text("X = 3\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**10))
    assert attest.stale_bytecode(sys.executable, [str(path)]) == []  # another time: Python makes it again
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert attest.stale_bytecode(sys.executable, [str(path), str(tmp_path / "_build.json")]) == [str(path)]
    Path(cached).write_bytes(Path(cached).read_bytes()[:20])
    assert attest.stale_bytecode(sys.executable, [str(path)]) == [str(path)]


def test_only_living_processes_speak(tmp_path: Path):
    """A beacon of an earlier process with the same pid is not evidence; files that are no beacon are passed over."""
    mine = {"schema": attest.SCHEMA, "pid": os.getpid(), "start_time": supervisor.start_time(os.getpid())}
    (tmp_path / f"{os.getpid()}.json").write_text(json.dumps(mine))
    (tmp_path / "1.json").write_text(json.dumps({**mine, "pid": 1}))
    (tmp_path / "control.json").write_text("{}")
    (tmp_path / "77.json").write_text("half a do")
    (tmp_path / "78.json").write_text('{"schema": "other/1"}')
    assert sorted(attest.read_beacons(str(tmp_path))) == sorted({os.getpid(), 1})
    assert list(attest.live_beacons(str(tmp_path))) == [os.getpid()]


def test_drift_on_disk(tmp_path: Path):
    """Changed and removed files are told apart."""
    same, changed = tmp_path / "same.py", tmp_path / "changed.py"
    same.write_text("a")
    changed.write_text("b")
    files = {str(path): hashlib.sha256(b"a").hexdigest() for path in (same, changed, tmp_path / "gone.py")}
    found = attest.disk_findings(files)
    assert found == [f"{changed} was changed", f"{tmp_path / 'gone.py'} was removed"]


def test_helpers_of_python_and_torch_need_no_beacon():
    """The resource tracker imports nothing; this very test process is not the service's interpreter."""
    import subprocess

    code = "from multiprocessing.resource_tracker import main; import time; time.sleep(30)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        while b"resource_tracker" not in Path(f"/proc/{child.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        assert attest.imports_sglang(child.pid, sys.executable) == (False, "multiprocessing's resource tracker")
    finally:
        child.kill()
        child.wait()
    assert attest.imports_sglang(os.getpid(), sys.executable)[0]
    assert not attest.imports_sglang(os.getpid(), "/no/such/python")[0]
    assert attest.imports_sglang(child.pid, sys.executable) == (False, "gone")
