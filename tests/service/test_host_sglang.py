"""A real SGLang on a real host: plain, then with the patched tree as DDTREE: ready, proof, baseline, smoke, budget.

The tree is made by the project's own patch code and laid beside the environment (PYTHONPATH); the deploy that makes and
installs it on the host has its own tests.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.bench import smoke
from ddtree_ops.errors import DdtreeError
from ddtree_ops.remote.connection import connect
from ddtree_ops.service.settings import ServiceSpec
from ddtree_ops.service.units import secrets_text
from tests.hosts.lab import TestHost
from tests.sglang_cpu.servers import make_patched_tree

from .conftest import Session, install, inventory_host

pytestmark = [pytest.mark.host, pytest.mark.sglang, pytest.mark.slow]

MODELS = Path(__file__).parents[1] / "models" / "pytiny"
TREE = "/opt/ddtree/tree"
BUILD = "d" * 64
KEY = "sk-canary-of-the-service"
CPU = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TRITON_INTERPRET": "1",
    "HF_HUB_OFFLINE": "1",
    "DDTREE_ALLOW_CPU": "1",
}
FLAGS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "2048"),
)


@pytest.fixture(scope="module")
def tree_layer(cpu_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer with the patched tree at /opt/ddtree/tree and the trained pair at /root/models/pytiny."""
    layer = tmp_path_factory.mktemp("layer")
    pristine = next((cpu_layer / "root/ml-env/lib").glob("python3.*/site-packages/sglang"))
    folder = make_patched_tree(pristine, layer / TREE.lstrip("/"))
    build = folder / "sglang/srt/speculative/ddtree/_build.json"
    build.write_text(json.dumps({"build_id": BUILD, "release_id": "test", "files": {}}))
    shutil.copytree(MODELS, layer / "root/models/pytiny")
    (layer / "root").chmod(0o700)
    return layer


@pytest.fixture(scope="module")
def host(tree_layer: Path, cpu_layer: Path, make_module_host: Callable[..., TestHost]) -> TestHost:
    """One host for the module: a start takes about 20 seconds."""
    return make_module_host(tree_layer, cpu_layer, disk="4G")


@pytest.fixture
def session(host: TestHost) -> Iterator[Session]:
    """A conversation that leaves no transaction and no server behind."""
    with connect(inventory_host(host)) as link:
        yield Session(link)


def spec(algorithm: Any = "DDTREE", **more: Any) -> ServiceSpec:
    """The service on the patched tree."""
    path = f"/root/lab/stubs:/root/lab/runtime:{TREE}"
    return ServiceSpec(
        interpreter="/root/ml-env/bin/python",
        target="/root/models/pytiny/target",
        drafter="/root/models/pytiny/draft",
        algorithm=algorithm,
        budget=16,
        port=31000,
        extra_args=FLAGS,
        environment={**CPU, "PYTHONPATH": path, **more.pop("environment", {})},
        release_id="0.5.20-test",
        build_id=BUILD,
        timeout_stop=30,
        **more,
    )


def files_of(layer: Path) -> dict[str, str]:
    """Absolute path on the host -> SHA-256 of the payload."""
    folder = layer / TREE.lstrip("/") / "sglang/srt/speculative/ddtree"
    return {
        "/" + str(path.relative_to(layer)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.py"))
    }


def start(session: Session, wanted: ServiceSpec, **more: Any) -> dict[str, Any]:
    """Install, start, wait; what ``wait_ready`` found, and when it started by the host's clock."""
    session.do("unit_install", **install(wanted, **more))
    started = session.do("service_start", service=wanted.ref(), first=True)
    ready = session.do("wait_ready", service=wanted.ref(), start=started, timeout=180)
    print(json.dumps({key: ready[key] for key in ("seconds", "phases")}))
    return {**ready, "started": started["started"]}


def proof(wanted: ServiceSpec, layer: Path, **more: Any) -> dict[str, Any]:
    """Parameters of ``attest`` for this service."""
    return {
        "service": wanted.ref(),
        "algorithm": wanted.algorithm,
        "build_id": BUILD,
        "interpreter": wanted.interpreter,
        "package_dir": f"{TREE}/sglang",
        "files": files_of(layer),
        **more,
    }


def test_plain_then_ddtree(session: Session, host: TestHost, tree_layer: Path) -> None:
    """The window by hand: baseline without speculation, DDTREE, proof, smoke bench against that baseline, budget."""
    session.begin()
    plain = spec("NONE")
    ready = start(session, plain)
    names = [one["phase"] for one in ready["phases"]]
    assert "loading weights" in names or "weights loaded" in names
    baseline = session.do(
        "greedy_record", service=plain.ref(), **smoke.greedy_request(regime="code", prompts=3, max_tokens=24)
    )
    assert baseline["gaps"]
    assert all(len(one["top"]) == len(one["ids"]) for one in baseline["answers"])
    raw = session.do("smoke", **smoke.request(plain.ref(), prompts=1, regime="code", max_tokens=8))
    report = smoke.evaluate(raw, baseline)
    assert report["verdict"] == "INVALID"
    assert "speculation inactive" in report["reasons"][0]
    session.do("service_stop", service=plain.ref())

    wanted = spec(secrets=("SGLANG_DDTREE_API_KEY",))
    ready = start(session, wanted, secrets=secrets_text({"SGLANG_DDTREE_API_KEY": KEY}))
    found = session.do("identity", **proof(wanted, tree_layer, applied_at=ready["started"]))
    assert found["ok"]
    assert found["algorithm"] == "DDTREE"
    assert found["build_id"] == BUILD
    assert len(found["processes"]) >= 3
    assert found["listener_pid"] == found["main_pid"]
    assert any(path.endswith("worker_v2.py") for path in found["imported"])
    assert found["settings"]["budget"] == 16

    asked = smoke.request(wanted.ref(), regime="code", prompts=3, max_tokens=24, proof=proof(wanted, tree_layer))
    raw = session.do("smoke", budget=16, **asked)
    print("\n".join(event["text"] for event in session.events if event.get("step") == "smoke"), raw["warmup"])
    report = smoke.evaluate(raw, baseline)
    print(json.dumps({key: report[key] for key in ("verdict", "reasons", "figures", "counters")}, indent=1))
    print(report["identity"]["counts"], raw["seconds"])
    assert report["verdict"] == "ok", report["reasons"]
    assert report["figures"]["tokens_per_verify_step"] > 1.2
    assert report["identity"]["counts"]["equal"] + report["identity"]["counts"]["near_tie"] == 3
    assert report["counters"]["verify_steps"] > 0

    few = smoke.request(wanted.ref(), regime="code", prompts=1, max_tokens=12)
    lower = session.do("smoke", budget=4, **few)
    assert (lower["budget"], lower["captured_budget"]) == (4, 16)
    nodes = [smoke.evaluate(one)["counters"] for one in (lower, raw)]
    assert nodes[0]["nodes_built"] / nodes[0]["verify_steps"] <= 4 < nodes[1]["nodes_built"] / nodes[1]["verify_steps"]
    with pytest.raises(DdtreeError) as caught:
        session.do("smoke", budget=32, **few)
    assert caught.value.reason == "budget_above_captured"

    wrong = session.call("attest", **proof(wanted, tree_layer, build_id="e" * 64))
    assert any("runs build" in text for text in wrong["findings"])
    wrong = session.call("attest", **proof(wanted, tree_layer, applied_at=ready["started"] + 3600))
    assert any("before the change" in text for text in wrong["findings"])
    wrong = session.call("attest", **proof(wanted, tree_layer, package_dir="/root/ml-env/lib/x/sglang"))
    assert any("outside of" in text for text in wrong["findings"])
    changed = next(path for path in files_of(tree_layer) if path.endswith("hook.py"))
    host.run(["sh", "-c", 'echo "# drift" >> "$1"', "sh", changed])
    wrong = session.call("attest", **proof(wanted, tree_layer))
    assert f"{changed} was changed" in wrong["findings"]

    assert host.run("journalctl -u sglang-ddtree --no-pager | grep -c 'fired up'").strip() == "2"
    everything = host.run(
        "journalctl --no-pager; systemctl show sglang-ddtree; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    )
    assert (KEY in everything, KEY in session.texts) == (False, False)
    session.call("tx_abort", reason="end of the test")
    assert not host.exists(wanted.unit_path)


def test_a_stock_sglang_is_not_taken_for_ours(session: Session, host: TestHost, tree_layer: Path) -> None:
    """E8 and A8: healthy, the right port, the right unit, but the environment's own tree: every process is named."""
    session.begin("run-stock")
    wanted = spec("NONE", environment={"PYTHONPATH": "/root/lab/stubs:/root/lab/runtime"})
    start(session, wanted)
    found = session.call("attest", **proof(wanted, tree_layer, files={}))
    assert not found["ok"]
    silent = [text for text in found["findings"] if "does not run this build" in text]
    assert len(silent) >= 3
    assert found["exempt"]  # multiprocessing's resource tracker imports nothing of SGLang
    session.call("tx_abort", reason="end of the test")
