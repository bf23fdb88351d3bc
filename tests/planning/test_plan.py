"""The plan is a pure function of what was seen and asked for; each rule here is one small change to a good host."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ddtree_ops.inventory import Host, Secret, Service
from ddtree_ops.model import Disk, Facts, GitState, Gpu, InterruptedRun, Lock, ModelFolder, PortOwner, Verdict
from ddtree_ops.patching.payload import Payload
from ddtree_ops.patching.plan import FileChange, PatchPlan
from ddtree_ops.planning.build import Build, is_current, make_build
from ddtree_ops.planning.digest import facts_digest
from ddtree_ops.planning.layout import layout_for
from ddtree_ops.planning.plan import Prepared, make_plan
from ddtree_ops.planning.wanted import Wanted
from tests.source import builders

TARGET = ModelFolder(
    role="target",
    path="/models/t",
    exists=True,
    config={"hidden_size": 256, "num_hidden_layers": 6, "vocab_size": 1024},
    weights_bytes=8_000_000,
)
DRAFT = ModelFolder(
    role="draft",
    path="/models/d",
    exists=True,
    config={
        "architectures": ["DFlashDraftModel"],
        "hidden_size": 256,
        "vocab_size": 1024,
        "num_target_layers": 6,
        "block_size": 16,
        "dflash_config": {"target_layer_ids": [1, 3, 4], "block_size": 16, "mask_token_id": 3},
    },
)


def good_host(**changed: Any) -> Facts:
    base: dict[str, Any] = {
        "copies": (builders.copy("0.5.20"),),
        "interpreters": (builders.interpreter(builders.ENV, "inventory", has_pip=True),),
        "tools": {"git": "/usr/bin/git"},
        "disks": (Disk(path="/var/lib/ddtree-ops", free=10**10, total=10**11),),
        "models": (TARGET, DRAFT),
    }
    return builders.host(**{**base, **changed})


def inventory_host(**changed: Any) -> Host:
    service = Service(target_model="/models/t", drafter="/models/d", budget=16)
    return Host(**{"name": "h1", "address": "192.0.2.7", "service": service, **changed})


def verdict(**changed: Any) -> Verdict:
    base: dict[str, Any] = {
        "strategy": "derive",
        "sentence": "the wheel is real",
        "environment": f"{builders.ENV}/bin/python",
        "live": f"wheel@{builders.ENV}",
        "spec": "v2",
    }
    return Verdict(**{**base, **changed})


def build(facts: Facts) -> Build:
    after = b"patched\n"
    change = FileChange("srt/speculative/spec_info.py", "a" * 64, hashlib.sha256(after).hexdigest(), after, "recorded")
    patch = PatchPlan("sglang-0.5.20", "v2", "v2", (change,), (), "+one\n", {change.path: change.after_sha})
    return make_build(facts.copies[0], None, patch, Payload("srt/speculative/ddtree", {"__init__.py": b""}))


def plan(facts: Facts | None = None, host: Host | None = None, seen: Verdict | None = None, **wanted: Any) -> Prepared:
    facts = facts or good_host()
    wishes = Wanted(**{"budget": 16, **wanted})
    return make_plan(host or inventory_host(), facts, seen or verdict(), facts.copies[0], build(facts), wishes)


def failing(prepared: Prepared) -> dict[str, str]:
    return {check.name: check.text for check in prepared.plan.blocked}


def test_a_good_host_is_not_blocked() -> None:
    prepared = plan()
    assert failing(prepared) == {}
    assert [change.kind for change in prepared.plan.changes] == ["create", "create", "modify", "replace", "create"]
    assert prepared.plan.units[0].path == "/etc/systemd/system/sglang-ddtree.service"
    assert "--speculative-num-draft-tokens 17" in prepared.plan.units[0].text, "width = budget + 1"


@pytest.mark.parametrize(
    ("facts", "check", "words"),
    [
        ({"lock": Lock(run_id="r1", pid=1, who="ann@laptop", since=0.0)}, "lock", "ann@laptop"),
        (
            {"interrupted": InterruptedRun(run_id="r1", started=0.0, last_step="editable")},
            "interrupted run",
            "editable",
        ),
        ({"state_root_writable": False}, "state folder", "/var/lib/ddtree-ops"),
        ({"servers": (builders.server(),)}, "environment in use", "sglang.service"),
        ({"ports": (PortOwner(port=30000, pid=9, command="nginx"),)}, "port", "nginx"),
        ({"models": (TARGET,)}, "", ""),
    ],
    ids=["locked", "interrupted", "read-only-state", "environment-in-use", "port-held", "hub-model-not-judged"],
)
def test_each_obstacle_is_named(facts: dict[str, Any], check: str, words: str) -> None:
    found = failing(plan(good_host(**facts)))
    assert found == {} if not check else words in found[check]


def test_stale_lock_is_no_obstacle() -> None:
    assert failing(plan(good_host(lock=Lock(run_id="r", pid=1, who="", since=0.0, alive=False)))) == {}


def test_named_takeover_clears_port_and_environment() -> None:
    """The server that is to be replaced must not forbid its own replacement; another one still does."""
    taken = {"servers": (builders.server(),), "ports": (PortOwner(port=30000, pid=4242, unit="sglang.service"),)}
    assert failing(plan(good_host(**taken), takeover="sglang.service")) == {}
    second = (builders.server(), builders.server(pid=77, unit="other.service", port=30001))
    assert (
        "other.service"
        in failing(plan(good_host(**{**taken, "servers": second}), takeover="sglang.service"))["environment in use"]
    )


def test_unknown_takeover_is_a_mistake() -> None:
    assert "nobody.service" in failing(plan(takeover="nobody.service"))["takeover"]


def test_spec_v1_refuses_the_service_but_not_the_tree() -> None:
    assert "v2" in failing(plan(seen=verdict(spec="v1")))["worker"]
    assert failing(plan(seen=verdict(spec="v1"), service=False)) == {}


def test_init_must_fit_the_host() -> None:
    container = builders.altered(good_host().host, pid1="tini")
    assert "tini" in failing(plan(good_host(host=container)))["service manager"]
    assert failing(plan(good_host(host=container), inventory_host(init="process"))) == {}


def test_without_models_the_service_is_not_described() -> None:
    prepared = plan(host=inventory_host(service=Service()))
    assert prepared.spec is None
    assert prepared.plan.units == ()
    texts = [check.text for check in prepared.plan.blocked]
    assert texts == ["no target model is named", "no drafter is named"]


def test_environment_inside_a_repository_is_a_warning_only() -> None:
    inside = builders.interpreter(builders.ENV, "inventory", has_pip=True, enclosing_repository="/root/work")
    prepared = plan(good_host(interpreters=(inside,)))
    assert failing(prepared) == {}
    assert any("/root/work" in check.text for check in prepared.plan.checks if check.state == "warn")


def test_ninja_on_the_login_path_alone_is_a_warning() -> None:
    """A service died minutes into its start on a GPU host whose ninja lay in another environment."""
    gpu = (Gpu(index=0, name="NVIDIA H200"),)
    bare = builders.interpreter(builders.ENV, "inventory", has_pip=True, builds_kernels=False)

    def warned(host: Host, **facts: Any) -> bool:
        return any(check.name == "ninja" for check in plan(good_host(interpreters=(bare,), **facts), host).plan.checks)

    assert warned(inventory_host(), gpus=gpu)
    assert not warned(inventory_host())  # nothing is compiled for a CPU
    own = Service(target_model="/models/t", drafter="/models/d", environment={"PATH": "/opt/tools/bin"})
    assert not warned(inventory_host(service=own), gpus=gpu)


def test_too_little_disk_is_a_need_that_is_not_met() -> None:
    live = builders.altered(builders.copy("0.5.20"), size=90_000_000)
    tight = good_host(copies=(live,), disks=(Disk(path="/var/lib/ddtree-ops", free=10**7, total=10**9),))
    assert [need.enough for need in plan(tight).plan.needs] == [False]


def test_secrets_are_named_and_never_valued() -> None:
    """No value, no source of a value may reach a plan, which is printed and saved."""
    service = Service(
        target_model="/models/t",
        drafter="/models/d",
        secrets={"HF_TOKEN": Secret(name="HF_TOKEN", source="env:MY_TOKEN")},
    )
    prepared = plan(host=inventory_host(service=service))
    assert any(change.mode == 0o600 and "HF_TOKEN" in change.why for change in prepared.plan.changes)
    assert "MY_TOKEN" not in repr(prepared.plan)


def test_digest_ignores_what_moves_by_itself_and_sees_what_matters() -> None:
    facts = good_host()
    same = builders.altered(facts, memory_available=5, duration=9.0, disks=())
    assert facts_digest(same, verdict()) == facts_digest(facts, verdict())
    for moved in (
        builders.altered(facts, copies=(builders.altered(facts.copies[0], content_hash="0" * 64),)),
        builders.altered(facts, ports=(PortOwner(port=30000, unit="x.service"),)),
        builders.altered(facts, models=(TARGET, builders.altered(DRAFT, tokenizer_sha256="1" * 64))),
        builders.altered(facts, resolutions=builders.everywhere("/elsewhere/sglang")),
    ):
        assert facts_digest(moved, verdict()) != facts_digest(facts, verdict())


def test_build_id_follows_base_patch_and_payload() -> None:
    facts = good_host()
    one = build(facts)
    other = good_host(copies=(builders.altered(facts.copies[0], content_hash="0" * 64),))
    assert build(other).build_id != one.build_id
    assert build(facts).build_id == one.build_id
    assert one.release_id == f"0.5.20-{one.build_id[:12]}"
    assert one.build_json in one.payload_files.values()
    deployed = _deployment(one)
    assert is_current(deployed, one.payload)
    assert not is_current(deployed, Payload(one.payload.target, {"__init__.py": b"# changed\n"}))


def _deployment(built: Build) -> Any:
    from ddtree_ops.model import Deployment

    return Deployment(
        run_id="r",
        release_id=built.release_id,
        build_id=built.build_id,
        strategy="derive",
        environment="/e/bin/python",
        prefix="/e",
        tree="/t",
        package_dir="/t/sglang",
        base_hash=built.base_hash,
        patch_hash=built.patch_hash,
    )


def test_checkout_keeps_its_own_layout() -> None:
    """Our project file lies beside the checkout's own: its pyproject must not be overwritten."""
    live = builders.checkout("0.5.20", top="/src/sglang")
    layout = layout_for("checkout", live, "/var/lib/ddtree-ops", "r1")
    assert layout.package == "/var/lib/ddtree-ops/releases/r1/python/sglang"
    assert layout.project == "/var/lib/ddtree-ops/releases/r1/editable"
    derived = layout_for("derive", live, "/var/lib/ddtree-ops", "r1")
    assert derived.package == "/var/lib/ddtree-ops/releases/r1/python/src/sglang"


def test_wheel_with_a_twin_checkout_borrows_the_twin() -> None:
    """The live copy is a wheel, and a clean checkout holds exactly its content: the tree comes from that commit."""
    twin = builders.checkout("0.5.20", top="/src/sglang")
    facts = good_host(copies=(builders.copy("0.5.20"), twin))
    prepared = plan(facts, seen=verdict(strategy="checkout"))
    assert prepared.source == twin
    assert prepared.live.kind == "wheel"
    assert prepared.layout.borrowed
    assert prepared.layout.package.endswith("/python/sglang")


def test_git_state_of_the_live_checkout_is_part_of_the_digest() -> None:
    live = builders.checkout("0.5.20", top="/src/sglang")
    facts = good_host(copies=(live,))
    seen = verdict(live=live.id, strategy="checkout")
    moved = builders.altered(live, git=GitState(toplevel="/src/sglang", head="b" * 40))
    assert facts_digest(builders.altered(facts, copies=(moved,)), seen) != facts_digest(facts, seen)


def test_environment_of_a_running_server_is_not_changed_without_a_service_either() -> None:
    """`deploy --no-service` replaced the package under a server that goes on importing from it."""
    prepared = plan(facts=good_host(servers=(builders.server(),)), service=False)
    assert "sglang.service runs from" in failing(prepared)["environment in use"]


def test_server_called_by_another_name_of_its_interpreter_is_seen() -> None:
    """The inventory says .../bin/python, the server was started as .../bin/python3: the same environment."""
    server = builders.server(interpreter=f"{builders.ENV}/bin/python3")
    assert "environment in use" in failing(plan(facts=good_host(servers=(server,))))


def test_server_of_no_unit_cannot_be_taken_over() -> None:
    """It was named as the cure for itself, and the deploy failed in the window: only a unit can be brought back."""
    server = builders.server(unit="", pid=77, processes=(77, 78))
    facts = good_host(servers=(server,), ports=(PortOwner(port=30000, pid=77, command="python"),))
    unnamed = plan(facts=facts)
    assert not any("--takeover" in check.next_step for check in unnamed.plan.blocked)
    named = plan(facts=facts, takeover="77")
    assert "belongs to no unit" in failing(named)["takeover"]
