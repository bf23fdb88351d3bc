"""The bench with real SGLang servers on the CPU: a gate that takes a deploy back, the three arms, auto budget.

Speed means nothing here, so the gates are on identity and accept length. One host for the module, in the file's order.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels.ddtree.tree import trace
from tests.hosts import layers
from tests.hosts.lab import TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = [pytest.mark.host, pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1200)]
STATE = "/var/lib/ddtree-ops"
UNIT = "sglang-ddtree.service"
BOOK = """
name: bench
auto: [4, 8, 16]
concurrency: 2
regime: [chat, code]
count: 2
max_tokens: 16
starts: 1
repeat: 1
warm_within: 0.95   # other tests share the machine
warm_most: 4
"""


@pytest.fixture(scope="module")
def host(cpu_layer: Path, lab: object, make_module_host: Callable[..., TestHost]) -> TestHost:
    """A host that can serve SGLang; nothing runs on it."""
    return make_module_host(layers.lab_layer(), cpu_layer, disk="5G")


def run(host: TestHost, folder: Path, *words: object, book: str = BOOK, gates: str = "") -> Said:
    """The command in a user's folder, with playbooks and perhaps gates of their own."""
    host.inventory(folder / "inventory.yaml", environment=layers.ENVIRONMENT, service=layers.cpu_service())
    packaged = Path(__file__).resolve().parents[2] / "playbooks"
    (folder / "playbooks").mkdir(exist_ok=True)
    for name in ("deploy.yaml", "rollback.yaml"):
        text = (packaged / name).read_text().replace("requests: 160", "requests: 0")  # other modules send them
        (folder / "playbooks" / name).write_text(text)
    (folder / "playbooks" / "bench.yaml").write_text(book)
    if gates:
        (folder / "gates.yaml").write_text("name: gates\n" + gates)
        words = (*words, "--gate", "gates.yaml")
    return ddtree_ops(*words, cwd=folder, timeout=1000)


ONE_ARM = BOOK.replace("concurrency: 2", "concurrency: 1").replace(
    "regime: [chat, code]", "regime: code\narms: [ddtree]"
)


def test_gate_that_fails_takes_the_deploy_back(host: TestHost, tmp_path: Path) -> None:
    """Exit 6, the gate in words and in JSON, nothing deployed, no unit left; figures are kept on this machine."""
    said = run(host, tmp_path, "deploy", "--yes", "--json", book=ONE_ARM, gates="min_accept_length: 50\n")
    assert said.code == 6, said.out[-3000:] + said.err[-3000:]
    error = said.json["error"]
    assert error["code"] == "gate_failed"
    assert "min_accept_length, code, concurrency 1, budget 16: wanted at least 50.00" in error["what"]
    assert error["details"]["gates"]["passed"] is False
    assert error["details"]["step"] == "gate"
    assert not host.exists(f"{STATE}/deployment.json")
    left = host.run("systemctl list-unit-files; ls /run/systemd/system; ls /run/ddtree-ops 2>/dev/null || true")
    assert "sglang-ddtree" not in left
    assert list(tmp_path.glob("bench-results/*-gate-*/gates.json"))


def test_gate_that_holds_lets_the_deploy_stay(host: TestHost, tmp_path: Path) -> None:
    """The service was stopped for the arms: afterwards it serves, proven and enabled."""
    said = run(host, tmp_path, "deploy", "--yes", "--json", book=ONE_ARM, gates="min_accept_length: 1.2\n")
    assert said.code == 0, said.out[-3000:] + said.err[-3000:]
    assert said.json["hosts"][0]["seen"]["gate"]["passed"] is True
    assert host.run(f"systemctl is-active {UNIT}; systemctl is-enabled {UNIT}").split() == ["active", "enabled"]
    assert run(host, tmp_path, "verify").code == 0


def test_three_arms_and_three_budgets(host: TestHost, tmp_path: Path) -> None:
    """Every cell is there and valid, answers are those of plain decoding, wider trees accept more, gates hold."""
    gates = "identity: true\nmin_accept_length: {all: 1.2}\nbudget: 16\n"
    said = run(host, tmp_path, "bench", "--yes", "--budget", "4,8,16", "--trace", "--out", "out", "--json", gates=gates)
    assert said.code == 0, said.out[-3000:] + said.err[-3000:]
    found = said.json["hosts"][0]
    assert found["gates"]["passed"] is True
    cells = {(c["arm"], c["budget"], c["regime"], c["concurrency"]): c for c in found["summary"]["cells"]}
    assert len(cells) == 5 * 2
    assert all(cell["valid"] for cell in cells.values()), [cell["why"] for cell in cells.values()]
    assert found["identity"]["verdict"] == "ok"
    assert found["identity"]["floor"]["concurrency"] == 2
    assert {(pair["arm"], pair["budget"]) for pair in found["identity"]["pairs"]} == {
        ("dflash", None), ("ddtree", 4), ("ddtree", 8), ("ddtree", 16),
    }  # fmt: skip
    lengths = {b: _length(cells, b) for b in (4, 16)}
    assert lengths[16] >= lengths[4]
    assert cells["ar", None, "code", 2]["tokens_per_verify"] is None
    arguments = found["manifest"]["conditions"]["effective_args"]
    assert arguments["ar"]["max_running_requests"] == arguments["ddtree"]["max_running_requests"]
    assert arguments["ar"]["speculative_algorithm"] is None
    counted = [cell for cell in found["acceptance"]["cells"] if cell["budget"] == 8]
    assert all(sum(cell["accept_length"]) > 0 for cell in counted)
    lines = (tmp_path / "out" / "traces" / "ddtree-start1.jsonl").read_text().splitlines()
    assert list(trace.read_rounds(lines)), "no round was traced"
    for name in ("report.md", "report.html", "rows.jsonl", "costs.json" if found.get("costs") else "summary.json"):
        assert (tmp_path / "out" / name).stat().st_size > 0
    assert host.run(f"systemctl is-active {UNIT}").strip() == "active"
    assert run(host, tmp_path, "verify").code == 0


def _length(cells: dict[tuple[object, ...], dict[str, object]], budget: int) -> float:
    found = [cell["tokens_per_verify"] for key, cell in cells.items() if key[:2] == ("ddtree", budget)]
    return sum(one["median"] for one in found) / len(found)  # type: ignore[index,misc]


def test_auto_budget_predicts_measures_and_recommends(host: TestHost, tmp_path: Path) -> None:
    """The accept length predicted from one wide recording is near the one that is then measured."""
    said = run(host, tmp_path, "bench", "--yes", "--budget", "auto", "--out", "out", "--json", book=ONE_ARM)
    assert said.code == 0, said.out[-3000:] + said.err[-3000:]
    auto = said.json["hosts"][0]["auto"]
    assert set(auto["recommended"]) == {"1", "all"}
    assert {one["budget"] for one in auto["predictions"]} == {4, 8, 16}
    measured = [one for one in auto["predictions"] if one["measured_tok_per_s"]]
    assert {one["budget"] for one in measured} >= {auto["recommended"]["all"]}
    assert len(measured) == 2, "the best two are measured"
    for one in measured:
        assert one["tokens_per_verify"] == pytest.approx(one["measured_tokens_per_verify"], rel=0.4)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["plan"]["budgets"] == sorted(
        one["budget"] for one in measured
    )
    assert host.run(f"systemctl is-active {UNIT}").strip() == "active"


def test_short_form_against_the_service(host: TestHost, tmp_path: Path) -> None:
    """`--against-service` stops nothing and needs no consent."""
    started = host.run(f"systemctl show {UNIT} -p MainPID --value")
    said = run(host, tmp_path, "bench", "--against-service", "--budget", "8", "--count", "3", "--json")
    assert said.code == 0, said.out[-2000:] + said.err
    found = said.json["hosts"][0]
    assert found["conditions"]["budget"] == 8
    assert found["figures"]["tokens_per_verify_step"] > 1
    assert host.run(f"systemctl show {UNIT} -p MainPID --value") == started
