"""The case that this tool exists for, on real material.

/root/ml-env holds a recent SGLang wheel; /root/sglang is an older checkout with somebody's uncommitted edits, in which
the DFLASH worker does not exist. Whatever takes the checkout for a mirror of the installed package fails here, and
`pip install -e` over it would silently replace a good SGLang by an old one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.lab import TestHost
from tests.hosts.tool import ddtree_ops

pytestmark = pytest.mark.host
VERSION = "0.5.13.post1"
STATE = "/var/lib/ddtree-ops"
SITE = f"{layers.ENVIRONMENT}/lib/python3.11/site-packages/sglang"


def inventory(host: TestHost, folder: Path) -> Path:
    return host.inventory(
        folder / "inventory.yaml", environment=layers.ENVIRONMENT, checkouts=[layers.CHECKOUT], service={"port": 30000}
    )


def test_locate_source_tells_the_real_copy_from_the_checkout(origin_host: TestHost, tmp_path: Path) -> None:
    inventory(origin_host, tmp_path)
    with origin_host.unchanged():
        said = ddtree_ops("locate-source", "--json", cwd=tmp_path)
        shown = ddtree_ops("locate-source", cwd=tmp_path)
    assert said.code == shown.code == 0, said.err
    found = said.json["hosts"][0]
    copies = {copy["root"]: copy for copy in found["copies"]}
    wheel, checkout = copies[SITE], copies[f"{layers.CHECKOUT}/python/sglang"]
    assert found["verdict"]["live"] == wheel["id"]
    assert found["verdict"]["strategy"] == "derive"
    assert (wheel["version_claimed"], wheel["version_content"], wheel["dflash"]) == (VERSION, VERSION, "v1")
    assert (checkout["version_content"], checkout["dflash"]) == (layers.OLD, "none")
    assert sorted(checkout["git"]["dirty"]) == sorted(f"python/{path}" for path in layers.DIRTY)
    assert f"v{layers.OLD}" in checkout["git"]["tags"]
    pair = next(d for d in found["divergences"] if {d["a"], d["b"]} == {wheel["id"], checkout["id"]})
    assert min(pair["only_a"], pair["only_b"], pair["different"], pair["same"]) > 0
    for word in ("pip install -e", "older", "DFLASH", "eagle_worker_v2.py", "communicator.py"):
        assert word in shown.text


def test_plan_shows_the_whole_change_and_writes_nothing(origin_host: TestHost, tmp_path: Path) -> None:
    inventory(origin_host, tmp_path)
    with origin_host.unchanged():
        said = ddtree_ops("plan", "--no-service", "--diff", cwd=tmp_path)
    assert said.code == 0, said.err
    assert "spec_info.py" in said.text
    assert layers.CHECKOUT not in "".join(line for line in said.out.splitlines() if line.startswith(("+", "-")))


def test_deploy_refuses_the_old_worker_before_any_change(origin_host: TestHost, tmp_path: Path) -> None:
    """Spec v1 has no worker yet: the plan says so, and `deploy` stops there; only --no-service goes on."""
    inventory(origin_host, tmp_path)
    with origin_host.unchanged():
        said = ddtree_ops("deploy", "--yes", cwd=tmp_path)
    assert said.code == 4, said.err
    assert "v1" in said.text
    assert "--no-service" in said.text


def test_deploy_and_rollback_leave_the_checkout_alone(origin_host: TestHost, tmp_path: Path) -> None:
    """Tree, patch, editable install and import probe; a second deploy is a no-op; rollback takes back every byte."""
    inventory(origin_host, tmp_path)
    code = "import importlib as i; print(i.metadata.version('sglang'), i.util.find_spec('sglang').origin)"
    imported = [
        "sh",
        "-c",
        f'cd /; {layers.ENVIRONMENT}/bin/python -c "import importlib.metadata, importlib.util; {code}"',
    ]
    before, checkout = origin_host.differs(), origin_host.run(f"cd {layers.CHECKOUT}; git status --porcelain; git diff")

    said = ddtree_ops("deploy", "--no-service", "--yes", cwd=tmp_path)
    assert said.code == 0, said.out + said.err
    version, place = origin_host.run(imported).split()
    assert version == VERSION
    assert place.startswith(f"{STATE}/releases/")
    tree = place.split("/python/")[0]
    history = origin_host.run(f"git -C {tree} log --format=%s").splitlines()
    assert len(history) == 2, history
    assert origin_host.run(f"git -C {tree} status --porcelain") == ""
    assert origin_host.run(f"cd {layers.CHECKOUT}; git status --porcelain; git diff") == checkout
    assert not [path for path in origin_host.differs() if path.startswith(f"{layers.CHECKOUT}/python")]

    with origin_host.unchanged():
        again = ddtree_ops("deploy", "--no-service", "--yes", cwd=tmp_path)
    assert again.code == 0, again.err
    assert "nothing to do" in again.text

    back = ddtree_ops("rollback", "--yes", cwd=tmp_path)
    assert back.code == 0, back.out + back.err
    after = {p: s for p, s in origin_host.differs().items() if not p.startswith(STATE) and "__pycache__" not in p}
    assert after == {path: state for path, state in before.items() if "__pycache__" not in path}
    assert origin_host.run(imported).split() == [VERSION, f"{SITE}/__init__.py"]
