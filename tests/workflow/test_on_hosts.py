"""The commands together on real hosts, without a service: what only a real disk or a real network shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.lab import TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = pytest.mark.host
STATE = "/var/lib/ddtree-ops"
MAGIC = "/root/[/] [bold]odd :bug: place"


@pytest.fixture
def host(wheel_host: Callable[..., TestHost], tmp_path: Path) -> TestHost:
    made = wheel_host("0.5.20")
    made.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT, service={"port": 30000})
    return made


def deploy(folder: Path, *words: object) -> Said:
    return ddtree_ops("deploy", "--no-service", "--yes", *words, cwd=folder)


def own_playbook(folder: Path, *steps: str) -> Path:
    core = ("derive", "payload", "patch", "editable", "probe")
    lines = [f"  - step: {name}\n" for name in core] + [f"  - step: run\n{step}" for step in steps]
    path = folder / "own.yaml"
    path.write_text("name: deploy\nsteps:\n" + "".join(lines))
    return path


TOUCH = "    title: Leave a mark\n    argv: [touch, /root/mark]\n    undo: [rm, -f, /root/mark]\n"
FAIL = '    title: "Ask [/] somebody"\n    argv: [sh, -c, "echo no [/] luck >&2; exit 3"]\n'


def test_own_command_that_fails_undoes_the_deploy(host: TestHost, tmp_path: Path) -> None:
    """Exit 4 with the command's own words, brackets and all; the step before it is taken back by its own `undo`."""
    said = deploy(tmp_path, "--playbook", own_playbook(tmp_path, TOUCH, FAIL))
    assert said.code == 4, said.out + said.err
    assert "Ask [/] somebody: the playbook's command failed: exit status 3" in said.text
    assert "no [/] luck" in said.text
    assert "the host is as before" in said.text
    assert not host.exists("/root/mark")
    assert "nothing is deployed" in ddtree_ops("verify", cwd=tmp_path).text


def test_life_of_a_deployment(host: TestHost, tmp_path: Path) -> None:
    """Saved plan, consent, deploy with a command of one's own, the same again, other wishes, drift, purge too early,
    damaged patches, rollback, purge."""
    own = ("--playbook", own_playbook(tmp_path, TOUCH))
    plan = tmp_path / "plan.json"
    with host.unchanged():
        said = ddtree_ops("plan", "--no-service", *own, "-o", plan, "--detailed-exitcode", cwd=tmp_path)
        assert said.code == 10, said.err
        assert ddtree_ops("deploy", "--check", "--no-service", *own, "--plan", plan, cwd=tmp_path).code == 0
        other = deploy(tmp_path, "--plan", plan)  # without the playbook that was planned
        assert other.code == 5, other.err
        assert "steps" in other.text
    said = deploy(tmp_path, *own, "--plan", plan)
    assert said.code == 0, said.out + said.err
    assert "Leave a mark" in said.text
    assert host.exists("/root/mark")

    with host.unchanged():
        assert "nothing to do" in deploy(tmp_path, *own, "--plan", plan).text
        again = ddtree_ops("plan", "--no-service", "--json", cwd=tmp_path)
        assert (again.code, again.json["plans"][0]["noop"]) == (0, True)
        wishes = ddtree_ops("deploy", "--yes", cwd=tmp_path)
        assert (wishes.code, "without a service" in wishes.text) == (4, True), wishes.err
        assert "ddtree-ops rollback" in wishes.text
        early = ddtree_ops("purge", "--yes", cwd=tmp_path)
        assert (early.code, "rollback" in early.text) == (4, True), early.err
        for words in (("rollback",), ("rollback", "--json"), ("purge", "--json")):
            said = ddtree_ops(*words, cwd=tmp_path)
            assert (said.code, "--yes" in said.text) == (2, True), said.err

    edited = host.run(f"ls {STATE}/releases/*/python/src/sglang/srt/speculative/ddtree/limits.py").strip()
    host.run(f"cp -a {edited} /root/kept && echo '# drift' >> {edited}")
    drift = deploy(tmp_path)  # it said "nothing to do" to a tree that is not what was deployed
    assert (drift.code, "limits.py" in drift.text) == (10, True), drift.text
    host.run(f"rm {edited} && mv /root/kept {edited}")

    # `rollback` read every series of this machine before it looked at the host.
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "recipe.yaml").write_text("nonsense: [")
    assert deploy(tmp_path).code == 2
    back = ddtree_ops("rollback", "--yes", cwd=tmp_path)
    assert back.code == 0, back.err
    assert not host.exists("/root/mark")
    assert ddtree_ops("purge", "--yes", cwd=tmp_path).code == 0
    assert not host.exists(STATE)


def test_hosts_of_which_one_is_away(host: TestHost, tmp_path: Path) -> None:
    """One document with each of them; the one that answers is looked at all the same; the worst exit code."""
    text = json.loads((tmp_path / "inventory.yaml").read_text())
    text["hosts"]["away"] = {**next(iter(text["hosts"].values())), "address": "10.213.0.250"}
    (tmp_path / "inventory.yaml").write_text(json.dumps(text))
    names = list(text["hosts"])
    words = [word for name in names for word in ("-H", name)]
    said = ddtree_ops("status", *words, "--json", cwd=tmp_path)
    assert said.code == 3, said.err
    found = {part["host"]: part for part in said.json["hosts"]}
    assert list(found) == names
    assert "error" not in found[names[0]]
    assert found["away"]["error"]["exit_code"] == 3
    assert "Traceback" not in said.err


def test_names_that_are_markup_or_not_utf8(host: TestHost, tmp_path: Path) -> None:
    """A second copy in a folder whose name is rich markup, an emoji code and no UTF-8: every screen and document."""
    package = f"{layers.ENVIRONMENT}/lib/python3.11/site-packages/sglang"
    program = (
        f"import os, shutil; top = os.fsencode({MAGIC!r}) + b'\\xe9'; "
        f"shutil.copytree({package!r}.encode(), top + b'/python/sglang')"
    )
    host.run(["python3", "-c", program])
    host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT, checkouts=["/root"])
    shown = ddtree_ops("locate-source", cwd=tmp_path)
    assert (shown.code, "[bold]odd" in shown.text) == (0, True), shown.err
    found = ddtree_ops("locate-source", "--json", cwd=tmp_path)
    assert any(copy["root"].startswith(MAGIC + "\\xe9") for copy in found.json["hosts"][0]["copies"]), found.err
    planned = ddtree_ops("plan", "--no-service", "-o", "plan.json", "--json", cwd=tmp_path)
    assert planned.json["plans"][0]["facts_digest"], planned.err
    said = deploy(tmp_path, "--plan", "plan.json", "--json")
    assert said.code == 0, said.err
    assert said.json["hosts"][0]["outcome"] == "deployed"


def test_ordinary_account(host: TestHost, tmp_path: Path) -> None:
    """It may write neither the environment of root nor state in root's home: refused before any change. With sudo
    (`become: true`) the same account deploys and rolls back."""
    host.run(
        "install -d -o ops -m 700 /home/ops/.ssh; chmod 755 /root; "
        "install -o ops -m 600 /root/.ssh/authorized_keys /home/ops/.ssh/"
    )
    settings = {"environment": layers.ENVIRONMENT, "user": "ops", "init": "process", "state_root": "/root/state"}
    host.inventory(tmp_path / "inventory.yaml", **settings)
    with host.unchanged():
        said = deploy(tmp_path)
    assert said.code == 4, said.out + said.err
    assert "/root/state cannot be written" in said.text
    assert f"{layers.ENVIRONMENT} cannot be written by ops" in said.text
    assert "become: true" in said.text
    host.inventory(tmp_path / "inventory.yaml", **settings, become=True)
    assert deploy(tmp_path).code == 0
    assert host.run("stat -c %U /root/state/deployment.json").strip() == "root"
    assert ddtree_ops("rollback", "--yes", cwd=tmp_path).code == 0
