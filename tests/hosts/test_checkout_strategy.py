"""Strategy ``checkout`` end to end: the environment already runs a git checkout, with the operator's edits in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.hosts.lab import TestHost
from tests.hosts.tool import ddtree_ops

pytestmark = pytest.mark.host
TOP = "/root/src/sglang"
STATE = "/var/lib/ddtree-ops"
SITE = f"{layers.ENVIRONMENT}/lib/python3.11/site-packages"
SPEC_INFO = f"{TOP}/python/sglang/srt/speculative/spec_info.py"

#: The installed wheel becomes a checkout with a .pth and the metadata of an editable install, as pip leaves it.
CLONE = f"""
mkdir -p {TOP}/python && cp -a {SITE}/sglang {TOP}/python/ && find {TOP} -name __pycache__ -prune -exec rm -rf {{}} +
cd {TOP} && printf '__pycache__/\\n*.so\\n' > .gitignore
git init -q -b main && git add -A
git -c user.name=op -c user.email=op@example.invalid commit -q -m "SGLang 0.5.20" && git tag v0.5.20
"""
RECIPE = f"""{CLONE}
rm -rf {SITE}/sglang && cd {SITE}
echo {TOP}/python > __editable__.sglang-0.5.20.pth
cd sglang-0.5.20.dist-info
printf '{{"dir_info": {{"editable": true}}, "url": "file://{TOP}/python"}}' > direct_url.json
grep '^sglang-0.5.20.dist-info/' RECORD | grep -v REQUESTED > kept && mv kept RECORD  # an installer's leftover stays
printf '__editable__.sglang-0.5.20.pth,,\\nsglang-0.5.20.dist-info/direct_url.json,,\\n' >> RECORD
"""


@pytest.fixture
def checkout_host(wheel_host: Callable[..., TestHost]) -> TestHost:
    """0.5.20 as a checkout in /root/src/sglang, installed editable into /root/ml-env."""
    host = wheel_host("0.5.20")
    host.run(RECIPE)
    return host


def inventory(host: TestHost, folder: Path) -> None:
    host.inventory(folder / "inventory.yaml", environment=layers.ENVIRONMENT)


def test_local_edits_are_carried_over_and_the_checkout_is_untouched(checkout_host: TestHost, tmp_path: Path) -> None:
    """An edit in a file that the patch touches merges; history is theirs, their edits, ours; rollback takes it back."""
    host = checkout_host
    host.run(f"echo '# the operator was here' >> {SPEC_INFO}; echo x > {TOP}/python/sglang/mine.py")
    inventory(host, tmp_path)
    located = ddtree_ops("locate-source", "--json", cwd=tmp_path)
    verdict = located.json["hosts"][0]["verdict"]
    assert verdict["strategy"] == "checkout", verdict
    before = host.run(f"find {TOP} -not -name '*.pyc' -printf '%p %s %T@ %m\\n' | sort")
    said = ddtree_ops("deploy", "--no-service", "--yes", cwd=tmp_path)
    assert said.code == 0, said.out + said.err
    assert "merged with local edits" in said.text
    assert host.run(f"find {TOP} -not -name '*.pyc' -printf '%p %s %T@ %m\\n' | sort") == before
    tree = host.run(f"ls -d {STATE}/releases/*").strip()
    history = host.run(f"git -C {tree} log --format=%s").splitlines()
    assert history[-1] == "SGLang 0.5.20"
    assert len(history) == 3
    patched = host.run(f"cat {tree}/python/sglang/srt/speculative/spec_info.py")
    assert "DDTREE = auto()" in patched
    assert patched.rstrip().endswith("# the operator was here")
    assert host.exists(f"{tree}/python/sglang/mine.py")
    back = ddtree_ops("rollback", "--yes", "-v", cwd=tmp_path)
    assert back.code == 0, back.err
    assert host.run(f"cat {SITE}/__editable__.sglang-0.5.20.pth").strip() == f"{TOP}/python"


def test_an_edit_where_the_patch_goes_is_refused_with_all_three_sides(checkout_host: TestHost, tmp_path: Path) -> None:
    host = checkout_host
    host.run(f"sed -i 's/^    NGRAM = auto()$/    NGRAM = auto()\\n    MINE = auto()/' {SPEC_INFO}")
    inventory(host, tmp_path)
    with host.unchanged():
        said = ddtree_ops("deploy", "--no-service", "--yes", "--json", cwd=tmp_path)
    assert said.code == 4, said.err
    details = said.json["error"]["details"]
    assert said.json["error"]["code"] == "patch_conflict"
    assert details["file"] == "srt/speculative/spec_info.py"
    assert "MINE" in details["ours"]
    assert "MINE" not in details["base"]
    assert "DDTREE" in details["theirs"]
    assert details["line"] > 0


def test_a_wheel_with_a_clean_twin_checkout_borrows_its_commit(
    wheel_host: Callable[..., TestHost], tmp_path: Path
) -> None:
    """The environment imports a wheel; a clean checkout holds exactly its content: history begins with their commit."""
    host = wheel_host("0.5.20")
    host.run(CLONE)
    host.inventory(tmp_path / "inventory.yaml", environment=layers.ENVIRONMENT, checkouts=[TOP])
    said = ddtree_ops("deploy", "--no-service", "--yes", cwd=tmp_path)
    assert said.code == 0, said.out + said.err
    tree = host.run(f"ls -d {STATE}/releases/*").strip()
    history = host.run(f"git -C {tree} log --format=%s").splitlines()
    assert (history[-1], len(history)) == ("SGLang 0.5.20", 2)
    assert host.run(f"git -C {TOP} status --porcelain") == ""
    back = ddtree_ops("rollback", "--yes", cwd=tmp_path)
    assert back.code == 0, back.err
    assert host.exists(f"{SITE}/sglang/__init__.py")
