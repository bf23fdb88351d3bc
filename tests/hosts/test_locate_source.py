"""`locate-source` on real hosts: the origin story and the bad hosts, with nothing on the host changed by looking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import badhosts, layers
from tests.hosts.badhosts import Case
from tests.hosts.lab import Lab, TestHost
from tests.hosts.tool import ddtree_ops

pytestmark = pytest.mark.host
MakeHost = Callable[..., TestHost]


def test_origin_story_is_located(origin_host: TestHost, tmp_path: Path) -> None:
    """The wheel is live; the checkout is older, dirty, without DFLASH; derive; what pip install -e would have done."""
    inventory = origin_host.inventory(
        tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT, checkouts=[layers.CHECKOUT]
    )
    with origin_host.unchanged():
        said = ddtree_ops("locate-source", "--json", "-i", inventory, cwd=tmp_path)
        told = ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path)
    assert said.code == told.code == 0, said.err
    (host,) = said.json["hosts"]
    verdict = host["verdict"]
    assert (verdict["strategy"], verdict["spec"], verdict["refusal"]) == ("derive", "v1", None)
    assert verdict["live"] == f"wheel@{layers.ENVIRONMENT}"
    assert verdict["series"] == "sglang-0.5.13.post1"
    copies = {copy["id"]: copy for copy in host["copies"]}
    wheel, old = copies[verdict["live"]], copies[f"checkout@{layers.CHECKOUT}"]
    assert (wheel["version_content"], wheel["dflash"], wheel["record"]["modified"]) == ("0.5.13.post1", "v1", [])
    assert (old["version_content"], old["version_claimed"], old["dflash"]) == (layers.OLD, layers.OLD, "none")
    assert sorted(old["git"]["dirty"]) == sorted(f"python/{path}" for path in layers.DIRTY)
    assert old["git"]["tags"] == [f"v{layers.OLD}"]
    (compared,) = host["divergences"]
    assert min(compared["only_a"], compared["only_b"], compared["different"], compared["same"]) > 0
    for words in (
        f"The service imports SGLang 0.5.13.post1, the wheel in {layers.ENVIRONMENT}",
        f"`pip install -e` over {layers.CHECKOUT} would have replaced 0.5.13.post1 by the older {layers.OLD}",
        "removed DFLASH",
        "uncommitted edits",
    ):
        assert words in told.text
    assert "Traceback" not in told.text


@pytest.mark.parametrize("case", [case for case in badhosts.CASES if not case.located], ids=lambda case: case.name)
def test_bad_host_gets_no_verdict(case: Case, lab: Lab, make_host: MakeHost, tmp_path: Path) -> None:
    """Exit 4, the words that name the fault, where it was looked and what to do; JSON says the same by code."""
    host = case.build(lab, make_host)
    inventory = host.inventory(tmp_path / "inventory.yaml", **case.settings)
    with host.unchanged():
        told = ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path)
        said = ddtree_ops("locate-source", "--json", "-i", inventory, cwd=tmp_path)
    assert told.code == said.code == 4, told.err
    for word in (*case.words, "Refused:", "looked at", "next"):
        assert word in told.text, f"{word!r} is not in:\n{told.out}\n{told.err}"
    refusal = said.json["hosts"][0]["verdict"]["refusal"]
    assert refusal["looked_at"]
    assert refusal["next_step"]


def test_environment_inside_a_repository_is_located(wheel_host: Callable[..., TestHost], tmp_path: Path) -> None:
    """Case B1: a repository around the environment is named, not refused, and not touched (not even its index)."""
    host = wheel_host("0.5.20")
    host.run("cd /root; git init -q .; printf ml-env > .gitignore; git add .gitignore; touch .gitignore")
    inventory = host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    with host.unchanged():
        told = ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path)
    assert told.code == 0, told.err
    assert f"{layers.ENVIRONMENT} lies in the git work tree of /root" in told.text
    assert "sglang-0.5.20" in told.text
