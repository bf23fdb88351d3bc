"""Units on a real systemd: what the process receives, what systemd says about the text, and the way back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ddtree_ops.errors import DdtreeError
from ddtree_ops.service.units import secrets_text

from .conftest import fake_spec, install

pytestmark = pytest.mark.host

NASTY_ARGS = (
    *("--quant-config", '{"a": 1, "b": "x\\ny", "c": "$HOME ${PATH} %n %% %3A"}'),
    *("--chat-template", '/models/Qwen%3A3 v2/it\'s "here".jinja'),
    *("--empty", ""),
    *("--semicolon", ";", "--spaces", "  a\tb  ", "--newline", "one\ntwo", "--unicode", "größe → 🌳"),
    *("--backslash", "\\d+\\", "--dollar", "$", "--dollars", "$$x", "--percent", "%", "--tilde", "~/x", "--glob", "*"),
    *("--control", "\x01\x7f", "--quote", "'", "--dquote", '"', "--hash", "# not a comment", "--at", "@x"),
    *("--minus", "-x"),
)
NASTY_ENV = {
    "A_FLAG": "--port 30000",
    "A_PERCENT": "100% %n %3A",
    "A_QUOTE": "he said \"x\" and 'y'",
    "A_DOLLAR": "$HOME ${PATH} $$",
    "A_BACKSLASH": "a\\b\\n\\",
    "A_TAB": "\ta b ",
    "A_UNICODE": "größe → 🌳",
    "A_EMPTY": "",
    "A_JSON": '{"a": [1, "2"]}',
    "CUDA_VISIBLE_DEVICES": "0,1",
}
NASTY_SECRETS = {
    "HF_TOKEN": "hf_canary'\"\\ $HOME `id` %n #x",
    "SGLANG_DDTREE_API_KEY": "canary-api-key",
    "WITH_BACKSLASH": "a\\nb\\",
    "SPACED": "  x  ",
}


def received(host: Any, path: str) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """argv and environment that the process on the host was really started with."""
    for _ in range(50):
        if host.exists(path) and host.read(path):
            break
    dumped = json.loads(host.read(path))
    argv = bytes.fromhex(dumped["argv"]).decode().split("\0")[:-1]
    pairs = (item.partition("=") for item in bytes.fromhex(dumped["environ"]).decode().split("\0") if item)
    return argv, {name: value for name, _, value in pairs}, dumped


def nasty_spec(**more: Any) -> Any:
    environment = {"FAKE_DUMP": "/run/dump.json", **NASTY_ENV}
    return fake_spec(
        target="/models/Qwen%3A3 v2/$x/",
        extra_args=NASTY_ARGS,
        environment=environment,
        secrets=tuple(NASTY_SECRETS),
        **more,
    )


def test_the_process_receives_exactly_what_was_asked_for(fake_host, session):
    """E5: %, spaces, quotes, JSON, $ and control characters in arguments, environment and secrets file."""
    spec = nasty_spec()
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec, secrets=secrets_text(NASTY_SECRETS)))
    host.do("service_start", service=spec.ref())
    argv, environment, dumped = received(fake_host, "/run/dump.json")
    assert argv == list(spec.argv())
    asked = {**spec.env(), **NASTY_SECRETS}
    assert {name: environment.get(name) for name in asked} == asked
    assert dumped["cwd"] == spec.run_dir
    assert dumped["cwd"] not in dumped["path"]
    assert "" not in dumped["path"]


def test_the_process_runner_hands_over_the_same(fake_host, session):
    """The same request through ``init: process``: one golden answer for both runners."""
    spec = nasty_spec(init="process", run_root="/var/lib/ddtree-ops/run")
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec, secrets=secrets_text(NASTY_SECRETS)))
    host.do("service_start", service=spec.ref())
    argv, environment, dumped = received(fake_host, "/run/dump.json")
    assert argv == list(spec.argv())
    asked = {**spec.env(), **NASTY_SECRETS}
    assert {name: environment.get(name) for name in asked} == asked
    assert dumped["cwd"] == spec.run_dir


def test_no_secret_is_readable_by_others(fake_host, session):
    """E6: the canaries are in one 0600 file and nowhere else: not in the unit, `systemctl show`, state or events."""
    spec = nasty_spec()
    host = session(fake_host)
    host.begin()
    host.do("unit_install", **install(spec, secrets=secrets_text(NASTY_SECRETS)))
    started = host.do("service_start", service=spec.ref())
    host.do("wait_ready", service=spec.ref(), start=started)
    host.call("logs", service=spec.ref(), lines=50)
    assert fake_host.run(["stat", "-c", "%a %U", spec.secrets_path]).split() == ["600", "root"]
    places = fake_host.run(
        "systemctl show sglang-ddtree; systemctl cat sglang-ddtree; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; "
        "find /var/lib/ddtree-ops /etc/systemd /run/ddtree-ops -type f ! -path '*/secrets/*' | xargs cat"
    )
    for canary in ("hf_canary", "canary-api-key"):
        assert canary not in places
        assert canary not in host.texts


def test_a_unit_that_systemd_complains_about_is_refused_and_nothing_is_written(fake_host, session):
    """E4: `systemd-analyze verify` exits 0 on an unknown key by default; the text is refused all the same."""
    spec = fake_spec()
    host = session(fake_host)
    host.begin()
    good = install(spec)
    for bad, word in (
        (good["text"].replace("RestartSec=", "RestartSeconds="), "RestartSeconds"),
        (good["text"].replace("[Service]", "[Service]\nStartLimitIntervalSec=5", 1), "StartLimitIntervalSec"),
        (good["text"].replace("/usr/bin/python3", "/no/such/python"), "/no/such/python"),
    ):
        with pytest.raises(DdtreeError) as caught:
            host.do("unit_install", **{**good, "text": bad})
        assert caught.value.reason == "unit_invalid"
        assert word in caught.value.what
    assert not fake_host.exists(spec.unit_path)
    assert host.do("unit_install", **good)["changed"]


def test_the_packaged_unit_is_clean_under_verify(fake_host):
    """The very command of the issue, on the unit as it lies on the host; and older service types are not a problem."""
    from ddtree_ops.service.units import service_unit

    for spec in (fake_spec(), nasty_spec(), fake_spec(user="root"), fake_spec(systemd_version=239)):
        fake_host.write(spec.unit_path, service_unit(spec).text)
        said = fake_host.run(f"systemd-analyze verify --recursive-errors=yes {spec.unit_path} 2>&1")
        assert said == ""


def test_install_twice_changes_nothing_and_abort_takes_all_back(fake_host, session):
    """Invariant 7 and 4 for the unit's files, with the folders that were made for them."""
    spec = fake_spec(secrets=("HF_TOKEN",))
    host = session(fake_host)
    listing = "cd /etc; find . ! -name . -printf '%p %y %m %u %l\\n' | sort; find . -type f -exec sha256sum {} +"
    before = fake_host.run(listing)
    host.begin()
    params = install(spec, secrets=secrets_text({"HF_TOKEN": "x"}))
    assert host.do("unit_install", **params)["changed"] == [spec.secrets_path, spec.unit_path]
    assert host.do("unit_install", **params)["changed"] == []
    host.do("service_enable", service=spec.ref())
    assert fake_host.run("systemctl is-enabled sglang-ddtree").strip() == "enabled"
    host.call("tx_abort", reason="test")
    assert fake_host.run(listing) == before
    assert fake_host.run("systemctl is-enabled sglang-ddtree", check=False).strip() in ("", "not-found")
    assert not fake_host.exists(spec.secrets_path)


def test_somebody_elses_unit_of_that_name_is_refused(fake_host, session):
    """A unit that we did not write is never replaced."""
    spec = fake_spec()
    fake_host.write(spec.unit_path, "[Service]\nExecStart=/bin/true\n")
    host = session(fake_host)
    host.begin()
    with pytest.raises(DdtreeError) as caught:
        host.do("unit_install", **install(spec))
    assert (caught.value.reason, caught.value.exit_code) == ("unit_foreign", 4)
    assert "ExecStart=/bin/true" in fake_host.read(spec.unit_path)


def test_the_previous_unit_and_secrets_come_back_byte_for_byte(fake_host, session):
    """A second deploy that fails leaves the first one's unit and its secrets."""
    old = fake_spec(budget=8, secrets=("HF_TOKEN",))
    new = msgspec.structs.replace(old, budget=32)
    host = session(fake_host)
    host.begin("run-1")
    host.do("unit_install", **install(old, secrets=secrets_text({"HF_TOKEN": "first"})))
    host.call("tx_commit", deployment=None)
    before = (fake_host.read(old.unit_path), fake_host.read(old.secrets_path))
    host.begin("run-2")
    host.do("unit_install", **install(new, secrets=secrets_text({"HF_TOKEN": "second"})))
    assert fake_host.read(new.unit_path) != before[0]
    host.call("tx_abort", reason="test")
    assert (fake_host.read(old.unit_path), fake_host.read(old.secrets_path)) == before
    assert fake_host.run(["stat", "-c", "%a", old.secrets_path]).strip() == "600"


def test_a_secret_that_lies_on_the_host_never_travels(fake_host, session):
    """`host-file:` secrets are read there; one that is missing is named, and nothing is written."""
    spec = fake_spec(secrets=("HF_TOKEN", "OTHER"))
    host = session(fake_host)
    host.begin()
    params = install(spec, secrets=secrets_text({"OTHER": "x"}))
    with pytest.raises(DdtreeError) as caught:
        host.do("unit_install", **params, host_secrets={"HF_TOKEN": "/root/.hf-token"})
    assert caught.value.reason == "no_secret"
    assert not fake_host.exists(spec.secrets_path)
    fake_host.write("/root/.hf-token", 'hf_can"ary\n', "600")
    host.do("unit_install", **params, host_secrets={"HF_TOKEN": "/root/.hf-token"})
    assert fake_host.read(spec.secrets_path).endswith('OTHER="x"\nHF_TOKEN="hf_can\\"ary"\n')
    assert "ary" not in host.texts
