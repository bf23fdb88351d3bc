"""How a bench treats a host: order of the arms, the user's service back whatever happens, resuming, what is INVALID.

Real hosts, the real command, and a server that answers at once (``fake_arms``) in place of SGLang.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.service.settings import ServiceSpec
from ddtree_ops.service.units import service_unit
from tests.hosts.lab import TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = [pytest.mark.host, pytest.mark.timeout(300)]
FAKE = Path(__file__).parent / "fake_arms" / "launch_server.py"
STATE = "/var/lib/ddtree-ops"
LOG = "/root/starts.jsonl"
UNIT = "sglang-ddtree.service"
SHORT = ("--count", "2", "--max-tokens", "24", "--concurrency", "1", "--starts", "1", "--repeat", "1")


class Bed:
    """A host on which "SGLang" is deployed, and a folder of the user."""

    def __init__(self, host: TestHost, folder: Path) -> None:
        self.host = host
        self.folder = folder

    def deploy(self, *, init: str = "systemd", **environment: str) -> None:
        """What a deploy leaves behind, with the stand-in as the server."""
        host = self.host
        spec = ServiceSpec(
            interpreter="/usr/bin/python3",
            target="/root/models/target",
            drafter="/root/models/draft",
            init=init,  # type: ignore[arg-type]
            budget=16,
            environment={"PYTHONPATH": "/opt/arms", "FAKE_LOG": LOG, **environment},
            release_id="0.5.20-test",
            build_id="b" * 64,
            timeout_stop=5,
        )
        host.write("/opt/arms/sglang/__init__.py", "")
        host.write("/opt/arms/sglang/launch_server.py", FAKE.read_text())
        for name in ("target", "draft"):
            host.write(f"/root/models/{name}/config.json", json.dumps({"name": name}))
        unit = service_unit(spec)
        host.write(unit.path, unit.text)
        deployment = {
            "run_id": "run-1", "release_id": spec.release_id, "build_id": spec.build_id, "strategy": "derive",
            "environment": spec.interpreter, "prefix": "/usr", "tree": "", "package_dir": "", "unit": spec.unit,
            "port": spec.port, "settings": msgspec.to_builtins(spec),
        }  # fmt: skip
        host.write(f"{STATE}/deployment.json", json.dumps(deployment))
        host.inventory(self.folder / "inventory.yaml", init=init, service={"readiness_timeout": 60})
        if init == "systemd":
            host.run(f"systemctl daemon-reload; systemctl enable --now {UNIT}")
        else:
            assert ddtree_ops("start", "--yes", cwd=self.folder).code == 0

    def bench(self, *words: object) -> Said:
        """The command with a short plan."""
        return ddtree_ops("bench", "--yes", "--warm-within", "0.5", *words, cwd=self.folder)

    def started(self, *words: object) -> subprocess.Popen[str]:
        """The same, not waited for."""
        command = [sys.executable, "-m", "ddtree_ops", "bench", "--yes", "--warm-within", "0.5", *map(str, words)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def rows(self, folder: str = "out") -> list[dict[str, Any]]:
        """The measured rounds that are kept."""
        path = self.folder / folder / "rows.jsonl"
        text = path.read_text() if path.exists() else ""
        return [row for row in map(json.loads, text.splitlines()) if row["kind"] == "measured"]

    def await_rows(self, count: int) -> None:
        """Until so many rounds are on disk."""
        deadline = time.monotonic() + 60
        while len(self.rows()) < count:
            assert time.monotonic() < deadline, "no rounds came"
            time.sleep(0.05)

    def algorithms(self) -> list[str]:
        """The algorithm of each start on the host, oldest first."""
        flag = "--speculative-algorithm"
        return [argv[argv.index(flag) + 1] if flag in argv else "AR" for argv in self.starts()]

    def starts(self) -> list[list[str]]:
        """The flags of each start on the host, oldest first."""
        return [json.loads(line) for line in self.host.read(LOG).splitlines()]

    def assert_as_before(self) -> None:
        """The service runs; no arm is left, neither a unit nor a process nor a folder."""
        found = self.host.run(f"systemctl is-active {UNIT}; systemctl is-enabled {UNIT}", check=False).split()
        assert found == ["active", "enabled"]
        assert self.host.run("systemctl list-units --all --plain --no-legend '*bench*'").strip() == ""
        assert self.host.run("ls /run/systemd/system /run/ddtree-ops | grep bench || true").strip() == ""
        assert self.host.run("pgrep -f '[s]glang.launch_server' | wc -l").strip() == "1"


@pytest.fixture
def bed(testhost: TestHost, tmp_path: Path) -> Bed:
    return Bed(testhost, tmp_path)


def test_arms_run_in_abba_order_and_the_service_is_back(bed: Bed) -> None:
    """Two starts each, A B C C B A; the same scheduling limits for all; budgets interleaved within one server."""
    bed.deploy()
    said = bed.bench("--budget", "8,16", *SHORT[:-4], "--starts", "2", "--repeat", "1", "--out", "out", "--json")
    assert said.code == 0, said.out[-2000:] + said.err[-3000:]
    assert bed.algorithms() == ["DDTREE", "AR", "DFLASH", "DDTREE", "DDTREE", "DFLASH", "AR", "DDTREE"]
    bed.assert_as_before()
    plain = bed.starts()[1]
    assert plain[plain.index("--max-running-requests") + 1] == "48", "plain decoding had other scheduling limits"
    assert plain[plain.index("--host") + 1] == "127.0.0.1"
    assert plain[plain.index("--port") + 1] != "30000", "an arm must not answer for the user's service"
    document = said.json["hosts"][0]
    cells = {(cell["arm"], cell["budget"], cell["regime"]): cell for cell in document["summary"]["cells"]}
    assert len(cells) == 12
    lengths = [cells["ddtree", budget, "chat"]["tokens_per_verify"]["median"] for budget in (8, 16)]
    assert lengths == [3.0, 4.0]
    assert document["identity"]["verdict"] == "ok"
    assert document["identity"]["floor"] is not None
    order = [row["budget"] for row in bed.rows() if row["arm"] == "ddtree"]
    assert order[:4] == [8, 16, 16, 8], "budgets are not interleaved"
    acceptance = {cell["budget"]: cell for cell in document["acceptance"]["cells"] if cell["regime"] == "chat"}
    widths = {width for width, steps in acceptance[8]["steps_by_width"].items() if steps}
    assert widths == {"9"}, "counters of another budget's round were taken in"
    assert not said.err.strip(), "--json is silent"
    runs = json.loads(bed.host.run(f"tail -n 1 -q {STATE}/journal/*.jsonl"))
    assert runs["kind"] == "undone"


def test_ctrl_c_in_the_middle_of_an_arm_brings_the_service_back(bed: Bed) -> None:
    """Exit 130; what was measured is kept; `--resume` measures the rest and nothing twice."""
    bed.deploy(FAKE_STEP_S="0.02")
    run = bed.started(*SHORT, "--out", "out")
    with run:
        bed.await_rows(1)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 130, out + err
    assert "--resume out" in " ".join(err.split())
    assert "Traceback" not in err
    bed.assert_as_before()
    kept = bed.rows()
    assert 1 <= len(kept) < 9
    other = bed.bench("--resume", "out", "--max-tokens", "25")
    assert other.code == 2, other.err
    assert "max_tokens: 24 there, 25 now" in other.text
    again = bed.bench("--resume", "out", "--json")
    assert again.code == 0, again.out[-2000:] + again.err
    assert [row for row in bed.rows() if row in kept] == kept
    places = [(r["arm"], r["start"], r["round"], r["regime"]) for r in bed.rows() if not r.get("cut")]
    assert len(places) == len(set(places)) == 9, "a finished round was measured again"
    bed.assert_as_before()
    starts = len(bed.starts())
    assert ddtree_ops("bench", "--resume", "out", cwd=bed.folder).code == 0, "nothing is left: no consent is needed"
    assert len(bed.starts()) == starts


def test_cut_connection_brings_the_service_back_and_can_be_resumed(bed: Bed) -> None:
    """The session dies in the middle of a round: the host restores the service by itself."""
    bed.deploy(FAKE_STEP_S="0.02")
    run = bed.started(*SHORT, "--out", "out")
    with run:
        bed.await_rows(2)
        bed.host.run("sshd=$(cat /run/sshd.pid); for p in $(pgrep -P $sshd); do for c in $(pgrep -P $p) $p; do "
                     "case $(cat /proc/$c/comm) in sshd) kill -9 $c;; esac; done; done")  # fmt: skip
        out, err = run.communicate(timeout=120)
    assert run.returncode == 3, out + err
    assert "--resume out" in " ".join(err.split())
    bed.host.run("for i in $(seq 300); do pgrep -f '^python3 -I' >/dev/null || exit 0; sleep 0.1; done; exit 1")
    bed.assert_as_before()
    again = bed.bench("--resume", "out")
    assert again.code == 0, again.out[-2000:] + again.err[-2000:]
    bed.assert_as_before()


def test_power_cut_in_the_middle_is_recovered(bed: Bed) -> None:
    """After the boot no arm is there; `recover` ends the run that the journal still holds."""
    bed.deploy(FAKE_STEP_S="0.02")
    bed.host.run(f"systemctl disable {UNIT}")
    run = bed.started(*SHORT, "--out", "out")
    with run:
        bed.await_rows(1)
        bed.host.run("sync")
        bed.host.power("kill")
        run.send_signal(signal.SIGKILL)
    bed.host.power("on")
    refused = bed.bench("--resume", "out")
    assert refused.code == 5, refused.err
    assert "recover" in refused.text
    back = ddtree_ops("recover", "--yes", cwd=bed.folder)
    assert back.code == 0, back.out + back.err
    assert bed.host.run(f"systemctl is-active {UNIT}").strip() == "active"
    assert bed.host.run("ls /run/systemd/system | grep bench || true").strip() == ""


def test_other_arguments_than_speculation_make_it_invalid(bed: Bed) -> None:
    """Plain decoding under another scheduling policy: INVALID, named, exit 8; not a number that looks comparable."""
    bed.deploy(FAKE_ODD="schedule_policy")
    said = bed.bench("--arms", "ar,ddtree", *SHORT, "--out", "out", "--json")
    assert said.code == 8, said.err
    failure = said.json["hosts"][0]["failure"]
    assert failure["code"] == "invalid"
    assert "schedule_policy odd instead of fcfs" in failure["what"]
    assert all(cell["speedup_vs_ar"] is None for cell in said.json["hosts"][0]["summary"]["cells"])
    bed.assert_as_before()
    (bed.folder / "playbooks").mkdir()
    (bed.folder / "playbooks" / "bench.yaml").write_text("name: bench\nmay_differ: [schedule_policy]\n")
    allowed = bed.bench("--arms", "ar,ddtree", *SHORT, "--out", "out2", "--json")
    assert allowed.code == 0, allowed.out[-2000:]
    notes = [note for cell in allowed.json["hosts"][0]["summary"]["cells"] for note in cell["notes"]]
    assert any("schedule_policy odd instead of fcfs" in note for note in notes), notes


SMI = """#!/bin/sh
case "$*" in
*memory.used*) echo "GPU-0000, $(cat /root/used)";;
*) exit 9;;
esac
"""


def test_gpu_memory_that_does_not_come_back_ends_the_bench(bed: Bed) -> None:
    """Figures are told, the service is back: the next arm would have measured less cache than the first."""
    bed.deploy(FAKE_STEP_S="0.01")
    bed.host.write("/root/used", "400\n")
    bed.host.write("/usr/local/bin/nvidia-smi", SMI, "755")
    (bed.folder / "playbooks").mkdir()
    (bed.folder / "playbooks" / "bench.yaml").write_text("name: bench\ngpu_timeout: 3\n")
    run = bed.started("--arms", "ar,ddtree", *SHORT, "--out", "out")
    with run:
        bed.await_rows(1)
        bed.host.write("/root/used", "9000\n")
        out, err = run.communicate(timeout=120)
    assert run.returncode == 8, out + err
    text = " ".join(err.split())
    assert "9000 MiB, baseline 400 MiB" in text
    bed.assert_as_before()


def test_process_runner(bed: Bed) -> None:
    """`init: process`: the same, with files of ours in place of units; none of them is left."""
    bed.deploy(init="process")
    said = bed.bench("--arms", "ar,ddtree", *SHORT, "--out", "out", "--json")
    assert said.code == 0, said.out[-2000:] + said.err[-2000:]
    assert bed.host.run(f"ls {STATE}/services /run/ddtree-ops | grep bench || true").strip() == ""
    assert ddtree_ops("status", cwd=bed.folder).code == 0
    assert bed.host.run("pgrep -f '[s]glang.launch_server' | wc -l").strip() == "1"


def test_mistakes_are_told_before_anything_starts(bed: Bed) -> None:
    """Unknown keys and values of gates, arms, budgets: exit 2 with the place; the service never stopped."""
    bed.deploy()
    gates = bed.folder / "gates.yaml"
    cases: list[tuple[str, tuple[object, ...], str]] = [
        ("min_speed: 2\n", ("--gate", gates), "min_speed"),
        ("min_speedup: {poetry: 2}\n", ("--gate", gates), "poetry"),
        ("not_below_dflash: true\n", ("--gate", gates, "--arms", "ar,ddtree"), "dflash"),
        ("identity: true\nbudget: 9\n", ("--gate", gates), "budget 9 is not measured"),
        ("", ("--gate", gates), "no gate"),
        ("identity: true\n", ("--budget", "many"), "--budget many"),
        ("identity: true\n", ("--arms", "ar,vllm"), "arms"),
    ]
    for text, words, expected in cases:
        gates.write_text("name: gates\n" + text)
        said = bed.bench(*words, *SHORT, "--out", "never")
        assert said.code == 2, (text, words, said.err)
        assert expected in said.text, (expected, said.text)
        assert "Traceback" not in said.err
    no_consent = ddtree_ops("bench", *SHORT, cwd=bed.folder)
    assert no_consent.code == 2
    assert "--yes" in no_consent.text
    assert bed.algorithms() == ["DDTREE"]
    assert sorted(path.name for path in bed.folder.iterdir()) == ["gates.yaml", "inventory.yaml"]


def test_gate_of_a_bench(bed: Bed) -> None:
    """A gate that holds is exit 0 and in gates.json; one that fails is exit 8, in words; nothing is rolled back."""
    bed.deploy()
    gates = bed.folder / "gates.yaml"
    gates.write_text("name: gates\nidentity: true\nmin_accept_length: 1.5\nmin_speedup: {all: 0.01}\n")
    good = bed.bench("--budget", "16", "--gate", gates, *SHORT, "--out", "good", "--json")
    assert good.code == 0, good.out[-2000:] + good.err[-2000:]
    found = json.loads((bed.folder / "good" / "gates.json").read_text())
    assert found["passed"] is True
    assert {gate["name"] for gate in found["gates"]} == {"identity", "min_accept_length", "min_speedup"}
    gates.write_text("name: gates\nmin_accept_length: {all: 1.5, math: 40}\n")
    bad = bed.bench("--budget", "16", "--gate", gates, *SHORT, "--out", "bad")
    assert bad.code == 8, bad.err
    assert "1 of 3 gates failed: min_accept_length, math, concurrency 1, budget 16: wanted at least 40.00" in bad.text
    bed.assert_as_before()
