"""The main job on a real host with a real server: take over, serve DDTREE, prove it, measure it, take it back.

One host for the module; its tests build on each other and run in the order of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.lab import TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = [pytest.mark.host, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]
STATE = "/var/lib/ddtree-ops"
PORT = 30000
OLD_UNIT = "sglang.service"
CANARY = "canary-6f1d0e7a"


@pytest.fixture(scope="module")
def host(cpu_layer: Path, lab: object, make_module_host: Callable[..., TestHost]) -> TestHost:
    """A host on which the operator's own unit serves the target without speculation, enabled."""
    found = make_module_host(layers.lab_layer(), cpu_layer, disk="5G")
    service = layers.cpu_service(PORT)
    flags = " ".join(service["extra_flags"])
    environment = " ".join(f"{key}={value}" for key, value in service["environment"].items())
    found.write(
        f"/etc/systemd/system/{OLD_UNIT}",
        "[Unit]\nDescription=the operator's own server\n[Service]\nType=exec\nWorkingDirectory=/root\n"
        f"Environment={environment}\n"
        f"ExecStart={layers.ENVIRONMENT}/bin/python -m sglang.launch_server --model-path {service['target_model']} "
        f"--port {PORT} {flags}\nKillMode=mixed\nTimeoutStopSec=30\n[Install]\nWantedBy=multi-user.target\n",
    )
    found.run(f"systemctl daemon-reload; systemctl enable --now {OLD_UNIT}")
    wait_for_health(found)
    return found


def wait_for_health(host: TestHost, seconds: int = 240) -> None:
    """Until the server answers; the host has no curl, its python asks."""
    ask = f"import urllib.request as u; u.urlopen('http://127.0.0.1:{PORT}/health', timeout=10)"
    host.run(f'for i in $(seq {seconds}); do python3 -I -c "{ask}" 2>/dev/null && exit 0; sleep 1; done; exit 1')


def inventory(host: TestHost, folder: Path, **service: object) -> Path:
    """The host with its service; ``service`` overrides single settings."""
    found = {**layers.cpu_service(PORT), **service}
    return host.inventory(folder / "inventory.yaml", environment=layers.ENVIRONMENT, service=found)


def run(folder: Path, *words: object) -> Said:
    return ddtree_ops(*words, cwd=folder, timeout=1200)


def active(host: TestHost, unit: str) -> tuple[str, str]:
    """``systemctl is-active`` and ``is-enabled``."""
    state = host.run(f"systemctl is-active {unit} || true; systemctl is-enabled {unit} || true").split()
    return state[0], state[1] if len(state) > 1 else ""


def test_a_running_server_is_not_touched_unasked(host: TestHost, tmp_path: Path) -> None:
    inventory(host, tmp_path)
    before = without_bytecode(host)  # the server itself goes on writing its caches
    said = run(tmp_path, "deploy", "--yes")
    assert said.code == 4, said.err
    assert f"--takeover {OLD_UNIT}" in said.text
    beneath = run(
        tmp_path, "deploy", "--yes", "--no-service"
    )  # it imports more as it goes on: not under a server either
    assert beneath.code == 4, beneath.err
    assert f"stop {OLD_UNIT} first" in beneath.text
    assert without_bytecode(host) == before
    assert active(host, OLD_UNIT) == ("active", "enabled")


def test_service_that_dies_is_rolled_back_and_the_old_one_serves_again(host: TestHost, tmp_path: Path) -> None:
    """A flag that SGLang does not know: exit 6, the log shown, every byte back, the operator's unit up and enabled."""
    broken = [*layers.cpu_service()["extra_flags"], "--no-such-flag"]
    inventory(host, tmp_path, extra_flags=broken)
    before = without_bytecode(host)
    said = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT)
    assert said.code == 6, said.out + said.err
    assert "no-such-flag" in said.text
    assert "Traceback (most recent call last)" not in said.err.splitlines()[:3]
    wait_for_health(host)
    assert active(host, OLD_UNIT) == ("active", "enabled")
    assert without_bytecode(host) == before


def test_playbook_may_leave_a_broken_service_in_place(host: TestHost, tmp_path: Path) -> None:
    """``on_failure: leave`` ends with exit 9 and everything installed; rollback then takes it back."""
    broken = [*layers.cpu_service()["extra_flags"], "--no-such-flag"]
    inventory(host, tmp_path, extra_flags=broken)
    (tmp_path / "playbooks").mkdir()
    packaged = Path(__file__).resolve().parents[2] / "playbooks"
    for name in ("deploy.yaml", "rollback.yaml", "bench.yaml"):
        text = (packaged / name).read_text().replace("on_failure: rollback", "on_failure: leave")
        (tmp_path / "playbooks" / name).write_text(text)
    before = without_bytecode(host)
    said = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT)
    assert said.code == 9, said.out + said.err
    assert run(tmp_path, "status").code == 9
    assert "sglang" in host.run(f"ls {layers.ENVIRONMENT}/lib/python3.11/site-packages | grep -i editable; true")
    back = run(tmp_path, "rollback", "--yes")
    assert back.code == 0, back.out + back.err
    wait_for_health(host)
    assert active(host, OLD_UNIT) == ("active", "enabled")
    assert without_bytecode(host) == before


def test_saved_plan_is_refused_when_the_host_moved(host: TestHost, tmp_path: Path) -> None:
    inventory(host, tmp_path)
    saved = tmp_path / "plan.json"
    assert run(tmp_path, "plan", "--takeover", OLD_UNIT, "-o", saved).code == 0
    moved = f"{layers.ENVIRONMENT}/lib/python3.11/site-packages/sglang/srt/managers/scheduler.py"
    host.run(f"cp -a {moved} /root/kept && echo '# an edit' >> {moved}")
    try:
        said = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT, "--plan", saved)
    finally:
        host.run(f"rm {moved} && mv /root/kept {moved}")
    assert said.code == 5, said.err
    assert active(host, OLD_UNIT)[0] == "active"


def test_takeover_serves_ddtree_and_proves_it(host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deploy itself, with an API key; identity of every answer against the old server's, or a near tie."""
    monkeypatch.setenv("DDTREE_TEST_KEY", CANARY)
    inventory(host, tmp_path, secrets={"SGLANG_DDTREE_API_KEY": "env:DDTREE_TEST_KEY"})
    said = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT, "--json", "-vvv")
    assert said.code == 0, said.out[-3000:] + said.err[-3000:]
    report = said.json["hosts"][0]
    smoke = report["seen"]["smoke"]
    assert smoke["verdict"] == "ok"
    assert smoke["figures"]["tokens_per_verify_step"] > 1.5
    assert smoke["identity"]["counts"]["differs"] == 0
    assert smoke["identity"]["counts"]["equal"] > 0
    assert smoke["counters"]["non_first_accepted"] > 0, "branches beside the first rank must really be accepted"
    assert len(report["seen"]["identity"]["processes"]) >= 3
    assert active(host, "sglang-ddtree.service") == ("active", "enabled")
    assert active(host, OLD_UNIT) == ("inactive", "disabled")
    assert CANARY not in said.out + said.err


def test_secret_is_nowhere_but_in_its_file(host: TestHost, tmp_path: Path) -> None:
    assert host.run(f"stat -c %a {STATE}/secrets/sglang-ddtree.env").strip() == "600"
    places = "/etc /var/log /run/ddtree-ops /run/systemd /run/log /tmp"
    found = host.run(f"grep -rlF {CANARY} {places} {STATE} 2>/dev/null || true").split()
    assert found == [f"{STATE}/secrets/sglang-ddtree.env"]
    assert CANARY not in host.run("journalctl -o cat --no-pager; systemctl show sglang-ddtree; ps -eo args")


def test_second_deploy_changes_nothing(host: TestHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_TEST_KEY", CANARY)
    inventory(host, tmp_path, secrets={"SGLANG_DDTREE_API_KEY": "env:DDTREE_TEST_KEY"})
    said = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT)
    assert said.code == 0, said.err
    assert "nothing to do" in said.text
    other = run(tmp_path, "deploy", "--yes", "--takeover", OLD_UNIT, "--budget", "11")
    assert other.code == 4, other.err
    assert "budget" in other.text
    assert "11 wanted" in other.text
    assert "ddtree-ops rollback" in other.text


def test_day_to_day_commands(host: TestHost, tmp_path: Path) -> None:
    inventory(host, tmp_path)
    status = run(tmp_path, "status")
    assert status.code == 0, status.err
    assert "answers" in status.text
    assert run(tmp_path, "verify").code == 0
    logs = run(tmp_path, "logs", "-n", "400")
    assert logs.code == 0
    assert "DDTREE" in logs.out


def test_bench_at_a_smaller_budget(host: TestHost, tmp_path: Path) -> None:
    """A budget below the captured one needs no restart; one above it is refused with what to do."""
    inventory(host, tmp_path)
    short = ("bench", "--against-service", "--count", "3", "--max-tokens", "24")
    said = run(tmp_path, *short, "--budget", "8", "--json")
    assert said.code == 0, said.out[-2000:] + said.err
    found = said.json["hosts"][0]
    assert found["conditions"]["budget"] == 8
    assert found["figures"]["tokens_per_verify_step"] > 1
    assert found["identity"]["counts"]["differs"] == 0
    assert "tokens_per_verify_step" in found["definitions"]
    above = run(tmp_path, *short, "--budget", "64")
    assert above.code == 4
    assert re.search(r"budget: 64", above.text)


def test_drift_is_found(host: TestHost, tmp_path: Path) -> None:
    """A changed file of the payload: verify names it, exit 10; rollback refuses to lose the edit without --force."""
    inventory(host, tmp_path)
    package = json.loads(host.run(f"cat {STATE}/deployment.json"))["package_dir"]
    edited = f"{package}/srt/speculative/ddtree/limits.py"
    host.run(f"cp -a {edited} /root/kept && echo '# drift' >> {edited}")
    said = run(tmp_path, "verify", "--json")
    host.run(f"rm {edited} && mv /root/kept {edited}")
    assert said.code == 10
    assert any("limits.py" in line for line in said.json["hosts"][0]["findings"])


def test_restart_and_stop(host: TestHost, tmp_path: Path) -> None:
    inventory(host, tmp_path)
    again = run(tmp_path, "restart", "--yes")
    assert again.code == 0, again.err
    assert run(tmp_path, "verify").code == 0
    assert run(tmp_path, "stop", "--yes").code == 0
    assert run(tmp_path, "status").code == 9
    assert run(tmp_path, "start", "--yes").code == 0


def test_rollback_brings_back_bytes_and_server(host: TestHost, tmp_path: Path) -> None:
    """The proven root hash is the one before the deploy; the old unit serves and is enabled again; purge is all."""
    inventory(host, tmp_path)
    recorded = json.loads(host.run(f"cat {STATE}/deployment.json"))["root_before"]
    said = run(tmp_path, "rollback", "--yes", "--json")
    assert said.code == 0, said.out + said.err
    assert said.json["hosts"][0]["root"] == recorded
    wait_for_health(host)
    assert active(host, OLD_UNIT) == ("active", "enabled")
    assert host.run("systemctl list-unit-files | grep -c sglang-ddtree || true").strip() == "0"
    assert run(tmp_path, "purge", "--yes").code == 0
    assert not host.exists(STATE)


def without_bytecode(host: TestHost) -> dict[str, object]:
    """What differs from the host's layers, less Python's own bytecode, our state folder and the journal's noise."""
    skipped = (STATE, "/var/", "/tmp/", "/run/", "/dev/", "/root/.cache", "/root/.triton")
    found = host.differs()
    return {p: s for p, s in found.items() if "__pycache__" not in p and not p.startswith(skipped)}
