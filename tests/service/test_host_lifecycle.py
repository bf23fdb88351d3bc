"""Start, readiness, death, stop, takeover and the way back, on real systemd and with the process runner."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ddtree_ops.errors import DdtreeError, Unhealthy
from ddtree_ops.service.units import secrets_text

from .conftest import fake_spec, install, inventory_host

pytestmark = pytest.mark.host

OLD = """[Unit]
Description=the operator's own
[Service]
Type=exec
Environment=PYTHONPATH=/opt/fake FAKE_MODE=serve
ExecStart=/usr/bin/python3 -m sglang.launch_server --port 31000
[Install]
WantedBy=multi-user.target
"""


def runner(kind: str) -> dict[str, Any]:
    return {"init": "process", "run_root": "/var/lib/ddtree-ops/run"} if kind == "process" else {}


def up(host: Any, spec: Any, **more: Any) -> dict[str, Any]:
    """Install, start and wait; the result of ``service_start``."""
    host.do("unit_install", **install(spec, **more))
    started = host.do("service_start", service=spec.ref(), first=True)
    host.do("wait_ready", service=spec.ref(), start=started, timeout=30)
    return started


def pids_of(test_host: Any) -> set[str]:
    """Processes of the stand-in on the host, found independently of the tool."""
    return set(test_host.run("pgrep -f '[s]glang.launch_server|[t]ime.sleep' || true").split())


@pytest.mark.parametrize("kind", ["systemd", "process"])
def test_start_ready_stop(fake_host, session, kind):
    """The plain way, on both runners: progress is told, all processes are known, and a stop leaves none of them."""
    spec = fake_spec("slow", **runner(kind))
    host = session(fake_host)
    host.begin()
    up(host, spec)
    texts = [event.get("text") for event in host.events if event.get("kind") == "progress"]
    assert "loading weights" in texts or "ready" in texts
    assert any(event.get("health") == "503" for event in host.events)
    state = host.call("service_status", service=spec.ref())
    assert state["state"]["active"] == "active"
    assert len(state["processes"]) == 2
    assert state["health"]["ok"]
    assert state["listeners"][0]["pids"] == [state["state"]["main_pid"]]
    host.do("service_stop", service=spec.ref())
    assert pids_of(fake_host) == set()
    assert host.call("service_status", service=spec.ref())["state"]["active"] == "inactive"


@pytest.mark.parametrize("kind", ["systemd", "process"])
def test_a_service_that_dies_at_start_says_why_and_does_not_loop(fake_host, session, kind):
    """E4 and the issue's case: the last distinct error is in the message, and there was exactly one start."""
    spec = fake_spec("die", **runner(kind))
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    started = host.do("service_start", service=spec.ref(), first=True)
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=30)
    assert caught.value.reason == "service_died"
    assert isinstance(caught.value, Unhealthy)
    assert "RuntimeError: no kernel image for this GPU" in caught.value.what
    assert any("no kernel image" in line for line in caught.value.details["log"])
    time.sleep(1.5)
    state = host.call("service_status", service=spec.ref())["state"]
    assert (state["active"], state["restarts"], state["pids"]) == ("failed", 0, [])
    host.call("tx_abort", reason="died")
    assert host.call("service_status", service=spec.ref())["state"]["load"] == "not-found"


def test_a_death_after_the_port_opened_is_noticed(fake_host, session):
    """A launcher killed while it warms up is a death with its signal, not an endless wait."""
    spec = fake_spec("die-later", environment={"FAKE_MODE": "die-later"})
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    started = host.do("service_start", service=spec.ref(), first=True)
    time.sleep(2)
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=30)
    assert caught.value.reason == "service_died"
    assert "signal 9" in caught.value.what


def test_silence_and_total_limits(fake_host, session):
    """E1: a limit is `still loading` with the last sign of life, not a kill; the service is left for a look."""
    spec = fake_spec("mute")
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    started = host.do("service_start", service=spec.ref(), first=True)
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=60, silence=3)
    assert caught.value.reason == "not_ready"
    assert "no sign of life" in caught.value.what
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=2, silence=60)
    assert "not ready after" in caught.value.what
    assert host.call("service_status", service=spec.ref())["state"]["active"] == "active"


@pytest.mark.parametrize("kind", ["systemd", "process"])
def test_a_stop_takes_the_orphans_and_nobody_else(fake_host, session, kind):
    """E2, E3: a child in its own session dies with the service; processes that only look like it live."""
    spec = fake_spec("orphan", **runner(kind))
    fake_host.run("systemd-run -q --unit=decoy bash -c 'exec -a sglang::decoy sleep 600'; sleep 0.2")
    decoy = fake_host.run("pgrep sleep").split()
    host = session(fake_host)
    host.begin()
    up(host, spec)
    assert len(host.call("service_status", service=spec.ref())["processes"]) == 2
    host.do("service_stop", service=spec.ref())
    assert pids_of(fake_host) == set()
    assert fake_host.run("pgrep sleep").split() == decoy


def test_the_process_runner_outlives_the_session(fake_host, session):
    """C8: the ssh session's end, and even a kill of the supervisor, leave a service that is still found and stopped."""
    spec = fake_spec("orphan", **runner("process"))
    first = session(fake_host)
    first.begin()
    up(first, spec)
    first.call("tx_commit", deployment=None)
    first.link.close()
    second = session(fake_host)
    state = second.call("service_status", service=spec.ref())
    assert state["health"]["ok"]
    assert state["state"]["enabled"] == "static"
    supervisor = fake_host.run("pgrep -f services/[s]upervisor.py").split()
    fake_host.run(["kill", "-9", *supervisor])
    time.sleep(0.5)
    state = second.call("service_status", service=spec.ref())["state"]
    assert (state["active"], len(state["pids"])) == ("failed", 1)  # the orphan's session is not known without it
    second.call("service_control", service=spec.ref(), action="stop")
    assert second.call("service_status", service=spec.ref())["state"]["pids"] == []


def test_the_process_runner_restarts_within_limits(fake_host, session):
    """A failure after a good start is restarted, as `Restart=on-failure` would."""
    spec = fake_spec("serve", **runner("process"))
    host = session(fake_host)
    host.begin()
    up(host, spec)
    assert host.do("service_enable", service=spec.ref())["enabled"] == "static"
    host.call("tx_commit", deployment=None)
    main = host.call("service_status", service=spec.ref())["state"]["main_pid"]
    fake_host.run(["kill", "-9", str(main)])
    time.sleep(1)
    assert host.call("service_status", service=spec.ref())["state"]["active"] == "activating"
    time.sleep(11)
    state = host.call("service_status", service=spec.ref())["state"]
    assert (state["active"], state["restarts"]) == ("active", 1)
    host.call("service_control", service=spec.ref(), action="stop")


def test_restarts_are_off_until_the_service_is_settled(fake_host, session):
    """The first start may not loop; afterwards systemd restarts it, and nothing of the switch is left."""
    spec = fake_spec("serve")
    host = session(fake_host)
    host.begin()
    up(host, spec)
    drop_in = "/run/systemd/system/sglang-ddtree.service.d"
    assert fake_host.exists(drop_in)
    assert "Restart=no" in fake_host.run("systemctl show -p Restart sglang-ddtree")
    assert host.do("service_enable", service=spec.ref())["restart_was_off"]
    assert not fake_host.exists(drop_in)
    assert "Restart=on-failure" in fake_host.run("systemctl show -p Restart sglang-ddtree")


def test_takeover_and_the_way_back(fake_host, session):
    """The old unit is stopped and disabled in the window; an abort starts and enables it again, links and all."""
    fake_host.write("/etc/systemd/system/old.service", OLD)
    fake_host.run("systemctl daemon-reload; systemctl enable --now old 2>/dev/null")
    links = "find /etc/systemd/system -type l -printf '%p %l\\n' | sort"
    before = fake_host.run(links)
    old = {"unit": "old.service", "init": "systemd", "address": "127.0.0.1", "port": 31000}
    spec = fake_spec()
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    with pytest.raises(DdtreeError) as caught:
        host.do("service_start", service=spec.ref())
    assert caught.value.reason == "port_in_use"
    assert "sglang.launch_server --port 31000" in caught.value.where
    stopped = host.do("service_stop", service=old, disable=True)
    assert stopped["stopped"]
    assert stopped["before"]["enabled"] == "enabled"
    assert fake_host.run("systemctl is-enabled old || true").strip() == "disabled"
    started = host.do("service_start", service=spec.ref(), first=True)
    host.do("wait_ready", service=spec.ref(), start=started, timeout=20)
    host.do("service_enable", service=spec.ref())
    host.call("tx_abort", reason="test")
    assert fake_host.run("systemctl is-active old").strip() == "active"
    assert fake_host.run("systemctl is-enabled old").strip() == "enabled"
    assert fake_host.run(links) == before


def test_a_lost_controller_brings_the_old_unit_back(fake_host, session):
    """Invariant 6: the connection is cut in the window; the host itself starts the old unit again."""
    fake_host.write("/etc/systemd/system/old.service", OLD)
    fake_host.run("systemctl daemon-reload; systemctl enable --now old 2>/dev/null")
    old = {"unit": "old.service", "init": "systemd", "address": "127.0.0.1", "port": 31000}
    spec = fake_spec("mute")
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    host.do("service_stop", service=old, disable=True)
    host.do("service_start", service=spec.ref(), first=True)
    host.link.close()
    for _ in range(100):
        if fake_host.run("systemctl is-active old || true").strip() == "active":
            break
        time.sleep(0.3)
    assert fake_host.run("systemctl is-active old").strip() == "active"
    assert fake_host.run("systemctl is-enabled old").strip() == "enabled"
    assert not fake_host.exists(spec.unit_path)


def test_the_old_server_does_not_count_as_ready(fake_host, session):
    """E8: somebody else's healthy /health on the port is not our readiness."""
    spec = fake_spec("mute")
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec))
    started = host.do("service_start", service=spec.ref(), first=True)
    fake_host.write("/etc/systemd/system/old.service", OLD)
    fake_host.run("systemctl daemon-reload; systemctl start old; sleep 0.5")
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=3)
    assert caught.value.reason == "not_ready"
    assert any("not ours" in str(event.get("health")) for event in host.events)


def test_api_key_is_used_and_a_wrong_one_is_named(fake_host, session):
    """The key goes into the header; a server that refuses it is `unauthorized`, not `not ready`."""
    spec = fake_spec(secrets=("SGLANG_DDTREE_API_KEY",))
    host = session(fake_host)
    host.begin()
    started = up(host, spec, secrets=secrets_text({"SGLANG_DDTREE_API_KEY": "right-key"}))
    fake_host.write(spec.secrets_path, secrets_text({"SGLANG_DDTREE_API_KEY": "wrong-key"}), "600")
    with pytest.raises(DdtreeError) as caught:
        host.do("wait_ready", service=spec.ref(), start=started, timeout=5)
    assert caught.value.reason == "unauthorized"
    assert "right-key" not in host.texts + repr(caught.value.as_dict())


def test_control_and_logs(fake_host, session):
    """start, stop, restart and logs as verbs, outside of a transaction."""
    spec = fake_spec()
    host = session(fake_host)
    host.begin()
    up(host, spec)
    host.call("tx_commit", deployment=None)
    before = host.call("service_status", service=spec.ref())["state"]["main_pid"]
    result = host.call("service_control", service=spec.ref(), action="restart")
    host.call("wait_ready", service=spec.ref(), start=result["start"], timeout=20)
    after = host.call("service_status", service=spec.ref())["state"]["main_pid"]
    assert after != before
    host.events.clear()
    host.call("logs", service=spec.ref(), lines=3)
    lines = [line for event in host.events for line in event.get("lines", [])]
    assert len(lines) == 3
    assert "The server is fired up and ready to roll!" in lines
    host.call("service_control", service=spec.ref(), action="stop")
    assert host.call("service_status", service=spec.ref())["state"]["active"] == "inactive"


def test_process_runner_without_root(light_host, tmp_path):
    """The rootless way: an ordinary account, a state folder of its own, no systemd anywhere."""
    from ddtree_ops.remote.connection import connect

    from .conftest import FAKE, Session

    package = tmp_path / "fake" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(FAKE.read_text())
    state_root = str(tmp_path / "state")
    spec = fake_spec(
        init="process",
        run_root=f"{state_root}/run",
        state_root=state_root,
        port=31777,
        environment={"PYTHONPATH": str(tmp_path / "fake")},
    )
    with connect(inventory_host(light_host)) as link:
        host = Session(link)
        host.begin(state_root=state_root, scope={})
        up(host, spec)
        assert len(host.call("service_status", service=spec.ref())["processes"]) == 2
        host.call("tx_abort", reason="test")
        assert not (tmp_path / "state/services/sglang-ddtree.json").exists()
