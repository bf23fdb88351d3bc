"""Wishes against playbook and host: what contradicts itself is said before anything happens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.errors import ConfigError, HostLocked, PlanStale, Refused, UsageError
from ddtree_ops.model import Deployment, InterruptedRun, Lock, Plan, Verdict
from ddtree_ops.planning.wanted import Wanted
from ddtree_ops.resources import data_dir
from ddtree_ops.workflow import playbook, prepare
from ddtree_ops.workflow.deploy import unit_name
from ddtree_ops.workflow.session import Patches, Survey
from tests.planning import test_plan

PACKAGED = playbook.load("deploy")


def wanted_for(book: playbook.Playbook = PACKAGED, **options: Any) -> tuple[Wanted, playbook.Playbook]:
    given = {"service": True, "takeover": "", "baseline": False, **options}
    return prepare.wanted_for(test_plan.inventory_host(), book, **given)


@pytest.mark.parametrize("option", [{"takeover": "sglang.service"}, {"baseline": True}])
def test_no_service_contradicts_what_needs_one(option: dict[str, Any]) -> None:
    """`--no-service --takeover UNIT` dropped the takeover silently and changed the environment under the server."""
    with pytest.raises(UsageError, match="needs the service"):
        wanted_for(service=False, **option)


def test_takeover_needs_its_step() -> None:
    """A playbook without it let the old server run, while the plan said that it stops."""
    with pytest.raises(ConfigError, match="needs the step takeover"):
        wanted_for(PACKAGED.without("takeover"), takeover="sglang.service")


def test_takeover_and_baseline_go_together() -> None:
    _, steps = wanted_for(takeover="sglang.service", baseline=True)
    names = [step.kind.name for step in steps.steps]
    assert names.index("takeover") < names.index("editable") < names.index("baseline") < names.index("start")


def test_playbook_without_a_unit_has_no_service() -> None:
    """Its plan showed a unit that no step would write, and status then called the service unhealthy for ever."""
    wanted, steps = wanted_for(PACKAGED.without(*prepare.SERVICE_STEPS))
    assert not wanted.service
    assert [step.kind.name for step in steps.steps] == ["derive", "payload", "patch", "editable", "probe"]


def test_inventory_decides_how_long_readiness_may_take() -> None:
    """The packaged playbook named 1800 s itself, so `readiness_timeout` never counted."""
    ready = next(step for step in PACKAGED.steps if step.kind.name == "ready")
    assert "timeout" not in ready.params


@pytest.mark.parametrize(("given", "name"), [("sglang", "sglang.service"), ("a.service", "a.service"), ("12", "12")])
def test_takeover_takes_short_unit_names(given: str, name: str) -> None:
    assert unit_name(given) == name


# -- what is deployed --

SURVEYED = Deployment(
    run_id="r1",
    release_id="0.5.20-x",
    build_id="b" * 64,
    strategy="derive",
    environment=f"{test_plan.builders.ENV}/bin/python",
    prefix=test_plan.builders.ENV,
    tree="/t",
    package_dir="/t/sglang",
    unit="sglang-ddtree.service",
)


def survey(deployment: Deployment = SURVEYED, **facts: Any) -> Survey:
    patches = Patches.load(None)
    found = test_plan.good_host(deployment=deployment, **facts)
    return Survey(
        host=test_plan.inventory_host(), facts=found, verdict=test_plan.verdict(), patches=patches, series=None
    )


def test_left_unhealthy_is_never_nothing_to_do() -> None:
    """After `on_failure: leave` (exit 9) a second deploy said "nothing to do" and exit 0."""
    found = survey(msgspec.structs.replace(SURVEYED, healthy=False))
    assert not prepare.is_deployed(found, Wanted(budget=16))
    with pytest.raises(Refused, match="service was not well") as caught:
        prepare.refuse_if_another_is_deployed(found, Wanted(budget=16))
    assert "rollback" in caught.value.next_step


def test_other_budget_is_refused_with_both_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "is_current", lambda *_: True)
    spec = prepare._spec_wanted(survey(), SURVEYED, Wanted(budget=32))
    deployment = msgspec.structs.replace(SURVEYED, settings=msgspec.to_builtins(spec))
    with pytest.raises(Refused, match="budget 32 there, 16 wanted") as caught:
        prepare.refuse_if_another_is_deployed(survey(deployment), Wanted(budget=16))
    assert caught.value.next_step.startswith("ddtree-ops rollback")


def test_service_wanted_where_none_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no drafter in the inventory this ended in "DDTREE needs a drafter" instead of what is deployed."""
    monkeypatch.setattr(prepare, "is_current", lambda *_: True)
    found = survey(msgspec.structs.replace(SURVEYED, unit=""))
    found = with_service(found, drafter="")
    assert not prepare.is_deployed(found, Wanted(budget=16))
    with pytest.raises(Refused, match="deployed without a service"):
        prepare.refuse_if_another_is_deployed(found, Wanted(budget=16))


def with_service(found: Survey, **service: Any) -> Survey:
    host = msgspec.structs.replace(found.host, service=msgspec.structs.replace(found.host.service, **service))
    return dataclasses.replace(found, host=host)


def test_locked_host_is_exit_5_whatever_is_deployed() -> None:
    lock = Lock(run_id="r2", pid=1, who="ann@laptop", since=0.0, message="rollback")
    with pytest.raises(HostLocked):
        prepare.refuse_if_another_is_deployed(survey(lock=lock), Wanted(budget=16))
    prepared = test_plan.plan(facts=test_plan.good_host(lock=lock))
    with pytest.raises(HostLocked) as caught:  # it was exit 4 when the look found it, 5 when the transaction did
        prepare.refuse_if_blocked(prepared.plan)
    assert caught.value.exit_code == 5


def test_interrupted_run_is_exit_5_whoever_finds_it() -> None:
    """The look said 4, the transaction and the ways back said 5."""
    run = InterruptedRun(run_id="r1", started=0.0, last_step="editable")
    with pytest.raises(PlanStale) as caught:
        prepare.refuse_if_blocked(test_plan.plan(facts=test_plan.good_host(interrupted=run)).plan)
    assert (caught.value.reason, caught.value.next_step) == ("interrupted", "ddtree-ops recover")
    with pytest.raises(PlanStale, match="r1 has no end"):
        prepare.refuse_if_another_is_deployed(survey(interrupted=run), Wanted(budget=16))


# -- a saved plan --


def plan(**changed: Any) -> Plan:
    verdict = Verdict(strategy="derive", sentence="s")
    base = {"host": "h1", "address": "a", "created": 1.0, "facts_digest": "d", "build_id": "b", "verdict": verdict}
    return Plan(**{**base, **changed})


def saved(folder: Path, **changed: Any) -> Path:
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan(**changed)))
    return path


def test_saved_plan_holds(tmp_path: Path) -> None:
    prepare.hold_to(saved(tmp_path), plan(created=2.0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"facts_digest": "x"}, "no longer what the plan was made for"),
        ({"settings": {"budget": 8}}, "not the deploy that was planned"),
        ({"stops": ("a.service",)}, "not the deploy that was planned"),
        ({"commands": (("systemctl", "stop", "b"),)}, "not the deploy that was planned"),
    ],
)
def test_stale_plan_says_whether_host_or_wishes_moved(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Another --budget or --takeover than when it was saved was told as "the host moved", or not noticed."""
    with pytest.raises(PlanStale, match=words):
        prepare.hold_to(saved(tmp_path), plan(**changed))


def test_saved_plan_that_was_carried_out_is_nothing_to_do(tmp_path: Path) -> None:
    """A second `deploy --plan FILE` must be a no-op like any second run, not a stale plan."""
    prepare.hold_to(saved(tmp_path), plan(noop=True, facts_digest="after"))
    with pytest.raises(PlanStale):
        prepare.hold_to(saved(tmp_path), plan(noop=True, build_id="another"))


@pytest.mark.parametrize("content", [b"{}", b"\xff\xfe", b"[1"])
def test_file_that_is_no_plan(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        prepare.hold_to(path, plan())


def test_packaged_playbooks_are_all_read() -> None:
    """A packaged playbook that no command reads would be a promise that nobody keeps."""
    assert {path.stem for path in data_dir("playbooks").glob("*.yaml")} == set(playbook.NAMES)
