"""The inventory: which value wins and from where, and every mistake named with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops import inventory as inventories
from ddtree_ops.errors import ConfigError, UsageError
from ddtree_ops.inventory import Inventory, Secret, load, shown
from ddtree_ops.inventory_reader import read
from ddtree_ops.inventory_schema import HOST_FIELDS, Field
from ddtree_ops.resources import example_inventory

LAYERS = """\
defaults:
  user: from-defaults
  service:
    budget: 8
    port: 1000
    environment: {A: defaults, B: defaults}
groups:
  one:
    service: {port: 2000, budget: 9}
  two:
    service: {port: 3000, environment: {B: two}}
hosts:
  gpu:
    address: 192.0.2.7
    groups: [one, two]
    service:
      target_model: /models/t
      environment:
        C: host
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No inventory, variable or home of the machine has a say in these tests."""
    import os

    for name in [name for name in os.environ if name.startswith("DDTREE_OPS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def _inventory(text: str) -> Inventory:
    return Inventory(Path("inv.yaml"), read(text, "inv.yaml"))


def _mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, "inv.yaml")
    assert caught.value.exit_code == 2
    return list(caught.value.details.get("mistakes", [f"{caught.value.where}: {caught.value}"]))


# -- which value wins --


def test_order_of_precedence_and_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = _inventory(LAYERS)
    host = inventory.host()
    assert (host.name, host.address, host.user) == ("gpu", "192.0.2.7", "from-defaults")
    assert (host.service.port, host.origins["service.port"]) == (3000, "inv.yaml:11")  # the later group wins
    assert (host.service.budget, host.origins["service.budget"]) == (9, "inv.yaml:9")
    assert host.service.environment == {"A": "defaults", "B": "two", "C": "host"}  # maps are merged name by name
    assert host.origins["service.environment.C"] == "inv.yaml:19"

    monkeypatch.setenv("DDTREE_OPS_SERVICE_PORT", "4000")
    host = inventory.host()
    assert (host.service.port, host.origins["service.port"]) == (4000, "$DDTREE_OPS_SERVICE_PORT")

    host = inventory.host(None, {"service.port": 5000, "service.budget": None})
    assert (host.service.port, host.origins["service.port"]) == (5000, "command line")
    assert host.service.budget == 9


def test_what_nobody_sets_is_packaged() -> None:
    rows = {key: (value, origin) for key, value, origin in shown(_inventory(LAYERS).host())}
    assert rows["transport"] == ("ssh", "packaged")
    assert rows["service.environment.B"] == ("two", "inv.yaml:11")
    assert rows["service.unit"] == ("sglang-ddtree.service", "packaged")


def test_every_key_of_the_schema_is_a_field_of_the_values() -> None:
    """A key that is accepted and then dropped would be the worst kind of typo."""
    for key, _, _ in shown(Inventory().host("local")):
        assert key
    fields = {f"{head}.{inner}" for head in ("ssh", "service") for inner in HOST_FIELDS[head]}  # type: ignore[union-attr]
    fields |= {key for key, found in HOST_FIELDS.items() if isinstance(found, Field)}
    assert fields == set(inventories._KEYS)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("service.gpus", "[0, 2]", (0, 2)),
        ("become", "true", True),
        ("environment", "/opt/env", "/opt/env"),
        ("service.environment", "{A: 1}", {"A": "1"}),
        ("ssh.connect_timeout", "2.5", 2.5),
        ("user", "1234", "1234"),
    ],
)
def test_variables_are_typed(monkeypatch: pytest.MonkeyPatch, key: str, text: str, value: Any) -> None:
    monkeypatch.setenv("DDTREE_OPS_" + key.upper().replace(".", "_"), text)
    found: Any = Inventory().host("gpu7")
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDTREE_OPS_SERVICE_PORT", "http")
    with pytest.raises(ConfigError, match="must be a port from 1 to 65535, not 'http'") as caught:
        Inventory().host("gpu7")
    assert caught.value.where == "$DDTREE_OPS_SERVICE_PORT"


def test_command_line_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="systemd or process"):
        Inventory().host("gpu7", {"init": "upstart"})


# -- which host --


def test_single_host_is_the_default() -> None:
    assert _inventory("hosts: {only: {address: a}}").host().name == "only"


def test_several_hosts_need_a_default() -> None:
    text = "hosts: {one: {address: a}, two: {address: b}}"
    with pytest.raises(UsageError, match="one, two") as caught:
        _inventory(text).host()
    assert caught.value.exit_code == 2
    assert _inventory(text + "\ndefault_host: two").host().name == "two"


def test_no_host_at_all_says_where_it_looked() -> None:
    with pytest.raises(UsageError, match="no host is named") as caught:
        load().host()
    assert "inventory.yaml" in caught.value.where


def test_address_of_a_host_is_the_host() -> None:
    assert _inventory(LAYERS).host("192.0.2.7").name == "gpu"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu9.example.org", ("gpu9.example.org", None, "from-defaults")),
        ("ops@gpu9:2222", ("gpu9", 2222, "ops")),
        ("[fd00::7]:2222", ("fd00::7", 2222, "from-defaults")),
        ("fd00::7", ("fd00::7", None, "from-defaults")),
    ],
)
def test_any_address_is_a_host_made_of_the_defaults(name: str, expected: tuple[str, int | None, str]) -> None:
    host = _inventory(LAYERS).host(name)
    assert (host.address, host.port, host.user) == expected
    assert host.service.budget == 8


def test_local_is_this_machine() -> None:
    host = Inventory().host("local")
    assert (host.transport, host.address) == ("local", "")


def test_nonsense_is_no_address() -> None:
    with pytest.raises(UsageError, match="neither a host of the inventory"):
        _inventory(LAYERS).host("a b/c")


def test_group_stands_for_its_hosts() -> None:
    text = "groups: {g: {}}\nhosts: {a: {groups: [g]}, b: {}, c: {groups: [g]}}"
    assert [host.name for host in _inventory(text).select(["g", "a", "b"])] == ["a", "c", "b"]


def test_host_without_an_address_is_reached_by_its_name() -> None:
    assert _inventory("hosts: {gpu7: {}}").host().address == "gpu7"


# -- where the file is --


def test_places_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = tmp_path / "xdg/ddtree-ops/inventory.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("hosts: {user: {}}")
    if inventories.user_inventory() == user:  # on macOS the folder is another one
        assert load().host().name == "user"
    (tmp_path / "inventory.yaml").write_text("hosts: {here: {}}")
    assert load().host().name == "here"
    other = tmp_path / "other.yaml"
    other.write_text("hosts: {variable: {}}")
    monkeypatch.setenv("DDTREE_OPS_INVENTORY", str(other))
    assert load().host().name == "variable"
    given = tmp_path / "given.yaml"
    given.write_text("hosts: {given: {}}")
    assert load(given).host().name == "given"


def test_named_file_that_is_missing_is_no_empty_inventory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_example_inventory() -> None:
    host = load(example_inventory()).host()
    assert (host.name, host.address, host.user) == ("pro6000", "10.1.230.172", "root")
    assert (host.environment, host.checkouts) == ("/root/ml-env", ("/root/sglang",))
    assert host.service.budget == 32


def test_example_of_the_documentation_is_valid() -> None:
    """A documented example that the reader cannot use is worse than none."""
    text = (Path(inventories.__file__).parents[1] / "docs/inventory.md").read_text()
    blocks = [part.partition("```")[0] for part in text.split("```yaml\n")[1:]]
    assert blocks
    for block in blocks:
        read(block, "docs/inventory.md")
    for key, found in HOST_FIELDS.items():
        for name in [key] if isinstance(found, Field) else found:
            assert f"`{name}`" in text, f"docs/inventory.md does not explain {key}.{name}"


# -- mistakes --


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host: {}", "inv.yaml:1: host: unknown key (did you mean hosts?); allowed: default_host, defaults,"),
        ("hosts:\n  a:\n    adress: x", "inv.yaml:3: hosts.a.adress: unknown key (did you mean address?); allowed: "),
        ("hosts:\n  a:\n    service:\n      budgets: 1", "inv.yaml:4: hosts.a.service.budgets: unknown key"),
        ("hosts:\n  a: {}\n  b: {}\n  a: {}", "inv.yaml:4: hosts.a: duplicate host name, first on line 2"),
        ("hosts:\n  a:\n    user: x\n    user: y", "inv.yaml:4: hosts.a.user: duplicate key, first on line 3"),
        ("hosts: {a: {port: '22'}}", "inv.yaml:1: hosts.a.port: must be a port from 1 to 65535, not '22'"),
        ("hosts: {a: {port: 70000}}", "must be a port from 1 to 65535, not '70000'"),
        ("hosts: {a: {port: true}}", "must be a port from 1 to 65535, not 'true'"),
        ("hosts: {a: {become: maybe}}", "hosts.a.become: must be true or false, not 'maybe'"),
        ("hosts: {a: {transport: sssh}}", "must be ssh or local (did you mean ssh?), not 'sssh'"),
        ("hosts: {a: {environment: ml-env}}", "an absolute path on the host, not 'ml-env'"),
        ("hosts: {a: {checkouts: /root/sglang}}", "must be a list of absolute paths on the host, not '/root/sglang'"),
        ("hosts: {a: {checkouts: [sglang]}}", "hosts.a.checkouts[0]: must be an absolute path"),
        ("hosts: {a: {groups: [x]}}", "inv.yaml:1: hosts.a.groups: no group 'x'; groups: none"),
        ("hosts: {a: 3}", "hosts.a: must be a mapping of address, port"),
        ("hosts: [a]", "hosts: must be a mapping of names"),
        ("- a", "must be a mapping of default_host"),
        ("hosts: {'a b': {}}", "hosts.a b: a name has letters, digits"),
        ("hosts: {a: {}}\ngroups: {a: {}}", "groups.a: a host has the same name"),
        ("hosts: {ab: {}}\ndefault_host: abb", "default_host: no host 'abb' (did you mean ab?); hosts: ab"),
        ("hosts: {a: {service: {unit: sglang}}}", "a unit name that ends with .service, not 'sglang'"),
        ("hosts: {a: {service: {gpus: [0, -1]}}}", "hosts.a.service.gpus[1]: must be a whole number from 0"),
        ("hosts: {a: {service: {extra_flags: --tp 2}}}", "must be a list of words for sglang.launch_server"),
        ("hosts: {a: {service: {extra_flags: [--port, 1]}}}", "--port has a key of its own: service.port"),
        ("hosts: {a: {service: {extra_flags: [--api-key=x]}}}", "readable by everybody on the host"),
        ("hosts: {a: {service: {environment: {A: yes}}}}", "must be text; quote it, not 'yes'"),
        ("hosts: {a: {service: {environment: {A-B: x}}}}", "is no name of an environment variable"),
        ("x: &x {user: a}\nhosts: {a: {<<: *x}}", "merge keys are not supported"),
        ("hosts:\n  a: {user: [", "inv.yaml:2: inv.yaml is not YAML"),
        ("hosts: {a: {user: \"x\\ny\"}}", "hosts.a.user: must be"),
    ],
)  # fmt: skip
def test_mistake_is_named_with_line_key_and_what_is_allowed(text: str, expected: str) -> None:
    assert any(expected in mistake for mistake in _mistakes(text)), _mistakes(text)


def test_all_mistakes_of_a_file_at_once() -> None:
    found = _mistakes("hosts:\n  a: {prot: 1}\n  b: {user: [x]}\ndefaults: {service: {port: x}}")
    assert [mistake.split(": ")[0] for mistake in found] == ["inv.yaml:2", "inv.yaml:3", "inv.yaml:4"]


@pytest.mark.parametrize(
    "line", ["HF_TOKEN: abc", "MY_PASSWORD: x", "X: hf_abcdefghijkl", "OPENAI_API_KEY: q1", "AWS_SECRET_ACCESS_KEY: q1"]
)
def test_literal_secret_is_refused_and_not_repeated(line: str) -> None:
    """An inventory is committed; a token in it is public, and one in the error message lands in a CI log."""
    (mistake,) = _mistakes(f"hosts: {{a: {{service: {{environment: {{{line}}}}}}}}}")
    assert "looks like a secret" in mistake
    assert f"env:{line.partition(':')[0]}" in mistake
    assert line.partition(": ")[2] not in mistake.replace(line.partition(":")[0], "")


def test_secret_is_given_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (mistake,) = _mistakes("hosts: {a: {service: {secrets: {HF_TOKEN: hunter2}}}}")
    assert "hunter2" not in mistake
    (tmp_path / "token").write_text("of a file\n")
    text = f"hosts: {{a: {{service: {{secrets: {{A: 'env:MY_A', B: 'file:{tmp_path}/token', C: 'env:NONE'}}}}}}}}"
    host = _inventory(text).host()
    monkeypatch.setenv("MY_A", "of the environment")
    assert host.service.secrets["A"].read() == "of the environment"
    assert host.service.secrets["B"].read() == "of a file"
    assert "of the environment" not in repr(host)
    assert ("service.secrets.A", "env:MY_A", "inv.yaml:1") in shown(host)
    with pytest.raises(ConfigError, match="secret C is not set"):
        host.service.secrets["C"].read()
    with pytest.raises(ConfigError, match="lies on the host"):
        Secret(name="D", source="host-file:/x").read()


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([*HOST_FIELDS, *HOST_FIELDS["service"], "hosts", "groups", "a"]), inner, max_size=4,
    ), max_leaves=20,
))  # fmt: skip
def test_any_yaml_is_read_or_refused_never_a_traceback(document: Any) -> None:
    import yaml

    with contextlib.suppress(ConfigError):
        read(yaml.safe_dump(document), "x")
