"""Bad input on real hosts: the tool says what is wrong and what to do, and the host stays as it was, mtimes too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import badhosts, layers
from tests.hosts.badhosts import Case
from tests.hosts.lab import Lab, TestHost
from tests.hosts.tool import Said, ddtree_ops

pytestmark = pytest.mark.host
MakeHost = Callable[..., TestHost]


def refused(said: Said, case_words: tuple[str, ...], exit_code: int) -> None:
    assert said.code == exit_code, f"exit {said.code}\n{said.out}\n{said.err}"
    for word in case_words:
        assert word in said.text, f"{word!r} is not in:\n{said.out}\n{said.err}"
    assert "Traceback" not in said.text
    assert " next" in said.text, f"no next step:\n{said.out}\n{said.err}"


@pytest.mark.parametrize("case", badhosts.CASES, ids=lambda case: case.name)
def test_bad_host_is_refused_and_unchanged(case: Case, lab: Lab, make_host: MakeHost, tmp_path: Path) -> None:
    """locate-source, plan and deploy --yes against each bad host."""
    host = case.build(lab, make_host)
    inventory = host.inventory(tmp_path / "inventory.yaml", **case.settings)
    service = () if "target_model" in case.settings.get("service", {}) else ("--no-service",)
    with host.unchanged():
        located = ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path)
        if case.located:
            assert located.code == 0, located.err
        else:
            refused(located, case.words, case.exit_code)
        refused(ddtree_ops("plan", "-i", inventory, *service, cwd=tmp_path), case.words, case.exit_code)
        refused(ddtree_ops("deploy", "--yes", "-i", inventory, *service, cwd=tmp_path), case.words, case.exit_code)


def test_no_consent_no_change(origin_host: TestHost, tmp_path: Path) -> None:
    """No terminal and no --yes is a usage error, found before anything is touched; --json alone never mutates."""
    inventory = origin_host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    with origin_host.unchanged():
        for extra in ((), ("--json",)):
            said = ddtree_ops("deploy", "--no-service", "-i", inventory, *extra, cwd=tmp_path)
            assert said.code == 2, said.err
            assert "--yes" in said.text


def test_damaged_patch_is_refused(lab: Lab, wheel_host: Callable[..., TestHost], tmp_path: Path) -> None:
    """A byte of a user's own series was changed after it was recorded: refused by hash, whatever still applies."""
    host = wheel_host("0.5.20")
    root = Path(__file__).parents[2]
    shutil.copytree(root / "patches", tmp_path / "patches")
    broken = badhosts.broken_layer_file(tmp_path / "patches" / "sglang-0.5.20")
    inventory = host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    with host.unchanged():
        refused(ddtree_ops("deploy", "--yes", "--no-service", "-i", inventory, cwd=tmp_path), (broken.name,), 4)


def test_environment_inside_a_repository_leaves_it_alone(wheel_host: Callable[..., TestHost], tmp_path: Path) -> None:
    """`git apply` below a repository's top silently does nothing: nothing may depend on it, or touch the repository."""
    host = wheel_host("0.5.20")
    host.run("cd /root; git init -q .; printf ml-env > .gitignore; git add .gitignore")
    host.run("cd /root; git -c user.name=o -c user.email=o@example.invalid commit -qm dotfiles")
    inventory = host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT)
    with host.unchanged():
        said = ddtree_ops("plan", "--no-service", "-i", inventory, cwd=tmp_path)
        assert said.code == 0, said.err
        assert "/root" in said.text
        assert "work tree" in said.text


# -- the way in --


def test_no_route(testhost: TestHost, tmp_path: Path) -> None:
    """Nobody has that address; and a network that leads nowhere. Both end quickly, with exit 3."""
    for address in ("10.213.0.250", "192.0.2.1"):
        testhost.address, real = address, testhost.address
        inventory = testhost.inventory(tmp_path / "inventory.yaml")
        testhost.address = real
        refused(ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path, timeout=60), (address,), 3)


def test_wrong_client_key(testhost: TestHost, tmp_path: Path, light_host: object) -> None:
    """The host does not accept the key: authentication, not a traceback."""
    stranger = light_host.make_key("stranger")  # type: ignore[attr-defined]
    testhost.key, real = str(stranger), testhost.key
    inventory = testhost.inventory(tmp_path / "inventory.yaml")
    testhost.key = real
    with testhost.unchanged():
        refused(
            ddtree_ops("deploy", "--yes", "-i", inventory, cwd=tmp_path), ("accepted none of the keys", "stranger"), 3
        )


def test_unknown_and_changed_host_keys(testhost: TestHost, tmp_path: Path) -> None:
    """Unknown, changed and right are three outcomes; none is ever accepted silently."""
    known = tmp_path / "known_hosts"
    inventory = testhost.inventory(
        tmp_path / "inventory.yaml", ssh={"identity_files": [testhost.key], "known_hosts": [str(known)], "agent": False}
    )
    with testhost.unchanged():
        known.write_text("")
        refused(ddtree_ops("deploy", "--yes", "-i", inventory, cwd=tmp_path), ("SHA256:", "not known"), 3)
        assert known.read_text() == "", "an unknown key was written down without being asked"
        other = Path(testhost.key + ".pub").read_text().split()[:2]
        known.write_text(f"{testhost.address} {' '.join(other)}\n")
        refused(ddtree_ops("deploy", "--yes", "-i", inventory, cwd=tmp_path), ("changed",), 3)
    known.write_text(Path(testhost.known_hosts).read_text())
    assert ddtree_ops("locate-source", "-i", inventory, cwd=tmp_path).code == 4, "the right key: no SGLang, but in"
