"""``baseline record`` through the host program: the decoder travels, records come back, nothing stays behind."""

from __future__ import annotations

import glob
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.baseline import send, traces
from ddtree_ops.errors import Refused, TransportError
from ddtree_ops.inventory import Host
from ddtree_ops.remote.connection import connect
from tests.baseline.command import run_cli
from tests.sglang_cpu.conftest import PAIR
from tests.sglang_cpu.servers import HERE as CPU_LAB
from tests.sglang_cpu.servers import Environment

PROMPTS = PAIR.parent / "prompts.jsonl"
MODELS = ("--target", PAIR / "target", "--drafter", PAIR / "draft")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have in /tmp is not ours to judge."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)


def _left() -> list[str]:
    return glob.glob(str(Path(os.environ["TMPDIR"]) / "ddtree-offline-*"))


@pytest.mark.sglang
def test_recording_on_a_host(cpu_environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command with transport local: the trace is whole, its control holds, the folder is gone."""
    monkeypatch.setenv("PYTHONPATH", str(CPU_LAB / "stubs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "trace.jsonl"
    done = run_cli(
        "baseline", "record", "--local", "--python", cpu_environment.python, *MODELS, "--prompts", PROMPTS, "--raw",
        "--count", "2", "--budget", "4,8", "--max-tokens", "24", "--dtype", "float32", "--device", "cpu", "-o", out,
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    body = json.loads(done.out)
    assert [one["control"]["verdict"] for one in body["prompts"]] == ["equal", "equal"]
    assert set(body["prompts"][0]["walks"]) == {"linear", "4", "8"}
    found = traces.load(out)
    assert (found.header.budget, len(found.requests)) == (8, 2)
    assert all(one.whole and len(one.answer.ids) == 24 for one in found.requests if one.answer)
    assert not _left()
    assert not out.with_name("trace.jsonl.part").exists()


def test_an_interpreter_without_torch_is_a_clear_refusal(tmp_path: Path) -> None:
    """And not a traceback of the host's; exit 4, nothing written under the name that was asked for."""
    out = tmp_path / "trace.jsonl"
    done = run_cli(
        "baseline", "record", "--local", "--python", sys.executable, *MODELS, "--prompts", PROMPTS, "--out", out
    )
    assert done.code == 4
    assert "lacks what the offline decoder needs" in done.err
    assert not out.exists()
    assert not _left()


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("--local", "--out", "x"), 2, "--local needs --python"),
        (("--local", "--python", "/none/python", *MODELS, "--out", "x"), 4, "no interpreter"),
        (("--local", "--python", sys.executable, "--target", "t", "--out", "x"), 2, "no drafter is named"),
        (("--local", "--python", sys.executable, "--budget", "0", "--out", "x"), 2, "not budgets"),
        (("--local", "--python", sys.executable, "--prompts", "/none", "--out", "x"), 2, "prompts cannot be read"),
    ],
)
def test_wrong_commands_are_named(words: tuple[Any, ...], code: int, what: str, tmp_path: Path) -> None:
    done = run_cli("baseline", "record", *[tmp_path / word if word == "x" else word for word in words])
    assert done.code == code, done.err
    assert what in done.err
    assert not (tmp_path / "x").exists()


def test_what_is_sent_is_all_that_the_decoder_imports(tmp_path: Path) -> None:
    """From another folder, with nothing of this project on the path: only torch may be missing."""
    for name, text in send.program().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    code = "import ddtree_ops.baseline.offline.record as r, ddtree_ops as d; print(d.__file__); r.parser()"
    ran = subprocess.run([sys.executable, "-s", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(tmp_path))


_SLOW = """
import os, sys, time
from ddtree_ops.baseline.offline import record
import argparse, threading
args = record.parser().parse_args()
threading.Thread(target=record._until_left, args=(args.tied,), daemon=True).start()
print('{"kind": "progress", "text": "pid %d", "done": 0, "total": 1}' % os.getpid(), flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize(("how", "error"), [("controller", KeyboardInterrupt), ("host program", TransportError)])
def test_nothing_stays_when_it_is_cut(how: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost controller ends the child at once; a killed host program's child ends itself and removes its folder."""
    program = send.program() | {"ddtree_ops/baseline/offline/__main__.py": _SLOW}
    monkeypatch.setattr(send, "program", lambda: program)
    seen: list[int] = []
    link = connect(Host(name="here", transport="local"))
    host_program = int(link.call("ping")["pid"])

    def cut(event: dict[str, Any]) -> None:
        seen.append(int(event["text"].split()[1]))
        assert _left()
        if how == "controller":
            raise KeyboardInterrupt
        os.kill(host_program, signal.SIGKILL)

    argv = ["--target", "t"]
    with pytest.raises(error), link:
        send.record(link, io.StringIO(), python=sys.executable, prompts="", argv=argv, env={}, on_event=cut)
    end = time.monotonic() + 30
    while time.monotonic() < end and (_left() or Path(f"/proc/{seen[0]}").exists()):
        time.sleep(0.1)
    assert not _left()
    assert not Path(f"/proc/{seen[0]}").exists()


def test_traces_are_fetched_older_part_first(tmp_path: Path) -> None:
    """Bounded to the newest bytes; a cut line at the beginning is dropped."""
    lines = [json.dumps({"n": number, "text": "x" * 50}) + "\n" for number in range(200)]
    (tmp_path / "t.1").write_text("".join(lines[:120]), "utf-8")
    (tmp_path / "t").write_text("".join(lines[120:]), "utf-8")
    whole, newest = io.StringIO(), io.StringIO()
    with connect(Host(name="here", transport="local")) as link:
        assert send.fetch_trace(link, str(tmp_path / "t"), whole)["skipped"] == 0
        send.fetch_trace(link, str(tmp_path / "t"), newest, most_bytes=1000)
        with pytest.raises(Refused, match="there is no trace"):
            send.fetch_trace(link, str(tmp_path / "none"), io.StringIO())
    assert whole.getvalue() == "".join(lines)
    assert "".join(lines).endswith(newest.getvalue())
    assert 900 <= len(newest.getvalue()) <= 1000
    assert newest.getvalue().startswith("{")
