"""``init``: what becomes of a running server's command line, and an inventory that keeps every other byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddtree_ops.errors import ConfigError, Refused, UsageError
from ddtree_ops.initialise import Entry, add_entry, entry_from
from ddtree_ops.inventory import Host, Inventory, load
from ddtree_ops.inventory_reader import read
from ddtree_ops.model import Facts
from tests.hosts.lab import TestHost
from tests.hosts.tool import ddtree_ops

HOST = Host(name="10.1.230.172", address="10.1.230.172", user="root")


def _facts(*servers: dict[str, Any], **more: Any) -> Facts:
    host = {
        "hostname": "pro6000.example.org", "user": "root", "euid": 0, "home": "/root", "os": "Debian", "kernel": "6",
        "arch": "x86_64", "boot_id": "b", "pid1": "systemd",
    }  # fmt: skip
    interpreter = {"path": "/root/ml-env/bin/python", "realpath": "/usr/bin/python3.11", "prefix": "/root/ml-env"}
    return msgspec.convert({"host": host, "interpreters": [interpreter], "servers": servers, **more}, Facts)


def _server(*flags: str, **more: Any) -> dict[str, Any]:
    args = ["/root/ml-env/bin/python", "-m", "sglang.launch_server", *flags]
    return {
        "pid": 7, "port": 30000, "interpreter": "/root/ml-env/bin/python", "cwd": "/", "user": "root", "args": args,
        **more,
    }  # fmt: skip


def _resolved(entry: Entry) -> Host:
    return Inventory(None, read(entry.text, "entry")).host()


def test_server_of_the_origin_story() -> None:
    server = _server(
        "--model-path", "/models/Qwen3 8B", "--port=31000", "--host", "0.0.0.0", "--tp-size", "2",
        "--trust-remote-code", "--json-model-override-args", '{"a": 1}',
        port=31000, unit="sglang.service", cwd="/srv/llm", environment={"CUDA_VISIBLE_DEVICES": "0,1", "SGLANG_X": "1"},
    )  # fmt: skip
    copies = [
        {"id": "checkout@/root/sglang", "kind": "checkout", "root": "/root/sglang/python/sglang",
         "realpath": "/root/sglang/python/sglang", "git": {"toplevel": "/root/sglang"}},
    ]  # fmt: skip
    entry = entry_from(HOST, _facts(server, copies=copies))
    host = _resolved(entry)
    assert (host.name, host.address, host.user) == ("pro6000", "10.1.230.172", "root")
    assert (host.environment, host.checkouts) == ("/root/ml-env", ("/root/sglang",))
    service = host.service
    assert (service.target_model, service.port, service.host) == ("/models/Qwen3 8B", 31000, "0.0.0.0")
    assert service.extra_flags == (
        "--tp-size", "2", "--trust-remote-code", "--json-model-override-args", '{"a": 1}',
    )  # fmt: skip
    assert (service.gpus, service.environment, service.working_directory) == ((0, 1), {"SGLANG_X": "1"}, "/srv/llm")
    assert "no DFlash drafter is known: set service.drafter" in entry.notes


def test_takeover_is_offered_never_granted() -> None:
    """An entry that lets a later deploy stop somebody's server must be the reader's own decision."""
    entry = entry_from(HOST, _facts(_server("--model-path", "/m", unit="sglang.service")))
    assert _resolved(entry).takeover == ""
    assert "    # takeover: sglang.service " in entry.text


def test_speculative_flags_of_another_algorithm_are_not_taken_over() -> None:
    """An EAGLE drafter given to DDTREE would load, and be nonsense."""
    flags = (
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-draft-model-path",
        "/e",
        "--speculative-num-steps",
        "3",
    )
    entry = entry_from(HOST, _facts(_server("--model-path", "/m", *flags)))
    host = _resolved(entry)
    assert host.service.drafter == ""
    assert host.service.extra_flags == ()
    assert "not taken over: --speculative-draft-model-path, --speculative-num-steps" in entry.notes


@pytest.mark.parametrize(("algorithm", "budget"), [("DFLASH", 32), ("DDTREE", 15)])
def test_drafter_of_dflash_is_taken_over(algorithm: str, budget: int) -> None:
    """DDTREE's verify width is the budget and one more; DFLASH's is its block size and says nothing about a budget."""
    flags = ("--speculative-algorithm", algorithm, "--speculative-draft-model-path", "/d")
    server = _server("--model-path", "/m", *flags, "--speculative-num-draft-tokens", "16")
    host = _resolved(entry_from(HOST, _facts(server)))
    assert (host.service.drafter, host.service.budget) == ("/d", budget)


def test_api_key_becomes_a_secret_by_name() -> None:
    entry = entry_from(HOST, _facts(_server("--model-path", "/m", "--api-key", "***")))
    assert _resolved(entry).service.secrets["SGLANG_DDTREE_API_KEY"].source == "env:SGLANG_DDTREE_API_KEY"
    assert "***" not in entry.text


def test_uuids_of_gpus_are_left_to_the_reader() -> None:
    entry = entry_from(HOST, _facts(_server("--model-path", "/m", environment={"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"})))
    assert _resolved(entry).service.gpus == ()
    assert any("GPU-1" in note for note in entry.notes)


def test_no_server_and_only_one_in_a_container() -> None:
    with pytest.raises(Refused, match="no SGLang server runs"):
        entry_from(HOST, _facts())
    with pytest.raises(Refused, match="inside a container"):
        entry_from(HOST, _facts(_server("--model-path", "/m", foreign_namespace=True)))


def test_of_several_servers_the_one_on_the_port() -> None:
    servers = (_server("--model-path", "/a", port=30000), _server("--model-path", "/b", port=30001, pid=8))
    assert _resolved(entry_from(HOST, _facts(*servers))).service.target_model == "/a"
    far = Inventory().host("10.1.230.172", {"service.port": 9})
    with pytest.raises(Refused, match="2 SGLang servers run") as caught:
        entry_from(far, _facts(*servers))
    assert caught.value.details["ports"] == [30000, 30001]


def test_host_without_systemd_is_served_by_the_process_runner() -> None:
    facts = _facts(_server("--model-path", "/m"))
    facts = msgspec.structs.replace(facts, host=msgspec.structs.replace(facts.host, pid1="tini"))
    assert _resolved(entry_from(HOST, facts)).init == "process"


# -- into a file --

ENTRY = entry_from(HOST, _facts(_server("--model-path", "/m")), "new")

BEFORE = """\
# my hosts
default_host: old   # keep

hosts:
  # the first
  old:
    address: a   # with a comment
    service:
      extra_flags:
        - --tp-size
        - "2"
    # a comment of old's

# trailing words
groups:
  g: {}
"""


def test_new_file(tmp_path: Path) -> None:
    path = tmp_path / "folder/inventory.yaml"
    add_entry(path, ENTRY)
    assert load(path).host().service.target_model == "/m"
    assert path.stat().st_mode & 0o777 == 0o644


def test_every_other_line_stays(tmp_path: Path) -> None:
    """A YAML library that loads and dumps would drop each comment of the file."""
    path = tmp_path / "inventory.yaml"
    path.write_text(BEFORE)
    path.chmod(0o600)
    add_entry(path, ENTRY)
    after = path.read_text()
    assert after.replace("\n" + "\n".join(ENTRY.body) + "\n", "", 1) == BEFORE
    assert after.index("a comment of old's") < after.index("  new:") < after.index("# trailing words")
    assert load(path).host("new").service.target_model == "/m"
    assert load(path).host().name == "old"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "hosts:\n",
        "hosts: {}  # none yet\n",
        "hosts:\n# a comment\ngroups:\n  g: {}\n",
        "groups:\n  g: {}\n",
        "hosts:\n    deep:\n        address: a",
        "hosts:\n  old: {address: a}\n",
        "hosts:\n  old:\n    service:\n      target_model: >-\n        /a\n\n\ngroups: {}\n",
    ],
)
def test_shapes_of_a_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    add_entry(path, ENTRY)
    assert load(path).host("new").service.target_model == "/m"
    for line in text.splitlines():
        assert line.partition("{}")[0].strip() in path.read_text()


def test_name_that_is_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts:\n  new: {}\n")
    with pytest.raises(UsageError, match="has a host new already"):
        add_entry(path, ENTRY)
    assert path.read_text() == "hosts:\n  new: {}\n"


def test_hosts_in_braces_are_left_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts: {old: {address: a}}\n")
    with pytest.raises(ConfigError, match="written in braces"):
        add_entry(path, ENTRY)
    assert path.read_text() == "hosts: {old: {address: a}}\n"


def test_file_with_mistakes_is_not_made_worse(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yaml"
    path.write_text("hosts:\n  old: {prot: 1}\n")
    with pytest.raises(ConfigError, match="unknown key"):
        add_entry(path, ENTRY)
    assert list(tmp_path.iterdir()) == [path]


# -- the real command against a real host --

UNIT = """\
[Service]
Environment=CUDA_VISIBLE_DEVICES=0,1 SGLANG_TEST=1 HF_TOKEN=hf_abcdefghijkl
WorkingDirectory=/srv
ExecStart=/root/ml-env/bin/python -m sglang.launch_server --model-path /models/t --port 31000 --tp-size 2 --api-key k1
"""
LISTENER = """\
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
time.sleep(3600)
"""


@pytest.mark.host
def test_init_from_a_server_that_runs_on_a_host(testhost: TestHost, tmp_path: Path) -> None:
    """From socket to process to unit, environment and arguments, and into a file; no secret on the way."""
    testhost.run("python3 -m venv --without-pip /root/ml-env")
    site = testhost.run("/root/ml-env/bin/python -c 'import site; print(site.getsitepackages()[0])'").strip()
    testhost.write(f"{site}/sglang/__init__.py", "")
    testhost.write(f"{site}/sglang/launch_server.py", LISTENER)
    testhost.write("/etc/systemd/system/sglang.service", UNIT)
    testhost.run("systemctl daemon-reload; systemctl start sglang")
    testhost.run("for i in $(seq 100); do ss -ltn | grep -q :31000 && exit 0; sleep 0.1; done; exit 1")
    inventory = testhost.inventory(tmp_path / "given.yaml")
    written = tmp_path / "written.yaml"
    with testhost.unchanged():
        said = ddtree_ops("init", "--inventory", inventory, "--name", "gpu", "-o", written, cwd=tmp_path)
    assert said.code == 0, said.text
    host = load(written).host()
    assert (host.name, host.address, host.environment) == ("gpu", testhost.address, "/root/ml-env")
    service = host.service
    assert (service.target_model, service.port, service.gpus) == ("/models/t", 31000, (0, 1))
    assert (service.extra_flags, service.working_directory) == (("--tp-size", "2"), "/srv")
    assert service.environment == {"SGLANG_TEST": "1"}
    assert list(service.secrets) == ["SGLANG_DDTREE_API_KEY"]
    for secret in ("k1", "hf_abcdefghijkl"):
        assert secret not in written.read_text() + said.text
    again = ddtree_ops("init", "--inventory", inventory, "--name", "gpu", "-o", written, cwd=tmp_path)
    assert (again.code, "has a host gpu already" in again.text) == (2, True)
