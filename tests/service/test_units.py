"""The unit's text: a golden file, quoting, and templates that users change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.errors import ConfigError
from ddtree_ops.host.http import read_secrets
from ddtree_ops.resources import data_dir
from ddtree_ops.service.units import (
    environment_assignment,
    environment_file_value,
    exec_argument,
    executable,
    group_flags,
    path_value,
    secrets_text,
    service_unit,
)

from .test_settings import SPEC

GOLDEN = Path(__file__).parent / "golden_unit.service"


def test_the_unit_is_the_golden_one():
    """Any change of the unit is a change of this file, to be looked at."""
    unit = service_unit(SPEC)
    assert (unit.path, unit.mode) == ("/etc/systemd/system/sglang-ddtree.service", 0o644)
    assert unit.text == GOLDEN.read_text()


def test_quoting_as_systemd_reads_it():
    """Golden words; that systemd really reads them so is tested on a host."""
    assert exec_argument("/models/Qwen3-8B") == "/models/Qwen3-8B"
    assert exec_argument("/m/Qwen%3A3 v2/") == '"/m/Qwen%%3A3 v2/"'
    assert exec_argument('{"a": "$x"}') == '"{\\"a\\": \\"$$x\\"}"'
    assert exec_argument("a\\b\n") == '"a\\\\b\\n"'
    assert exec_argument("") == '""'
    assert exec_argument(";") == '";"'
    assert environment_assignment("A", "100% $x") == '"A=100%% $x"'
    assert path_value("/a b/%x") == "/a b/%%x"


@pytest.mark.parametrize("bad", ["a\0b", "\udc80"])
def test_what_a_unit_cannot_hold_is_refused(bad):
    """Zero bytes and bytes that are not UTF-8."""
    with pytest.raises(ConfigError):
        exec_argument(bad)


@pytest.mark.parametrize("bad", ["python", "/opt/$x/python"])
def test_an_interpreter_that_systemd_cannot_start_is_refused(bad):
    """The first word must be absolute, and `$` is read differently in it."""
    with pytest.raises(ConfigError):
        executable(bad)


@pytest.mark.parametrize("bad", ["relative", "/a\nb", "/a ", "/a\\"])
def test_a_path_that_takes_the_line_is_checked(bad):
    """There is no quoting for these settings."""
    with pytest.raises(ConfigError):
        path_value(bad)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=30))
def test_the_host_reads_the_secrets_file_back(tmp_path_factory, value):
    """The host program takes the API key from the same file that systemd reads."""
    path = tmp_path_factory.mktemp("s") / "env"
    path.write_text(secrets_text({"KEY": value, "OTHER": "x"}), encoding="utf-8")
    assert read_secrets(str(path)) == {"KEY": value, "OTHER": "x"}


def test_secrets_are_escaped_for_an_environment_file():
    """In double quotes only these four are special."""
    assert environment_file_value('a"b\\c$d`e\nf%n') == '"a\\"b\\\\c\\$d\\`e\nf%n"'


def test_a_template_that_names_something_unknown_is_an_error(tmp_path):
    """StrictUndefined: a typo is not an empty string in a unit."""
    shutil.copytree(data_dir("templates"), tmp_path / "t")
    template = tmp_path / "t/sglang-ddtree.service.j2"
    template.write_text(template.read_text().replace("spec.timeout_stop", "spec.stop_timeout"))
    with pytest.raises(ConfigError) as caught:
        service_unit(SPEC, tmp_path / "t")
    assert "stop_timeout" in caught.value.what
    assert str(template) in caught.value.where


def test_a_template_cannot_reach_the_program(tmp_path):
    """Sandboxed: a playbook from elsewhere does not run code on the controller."""
    shutil.copytree(data_dir("templates"), tmp_path / "t")
    template = tmp_path / "t/sglang-ddtree.service.j2"
    template.write_text("{{ spec.__class__.__mro__ }}")
    with pytest.raises(ConfigError):
        service_unit(SPEC, tmp_path / "t")


def test_the_process_unit_holds_the_same_service():
    """`init: process`: the same argument vector and environment, as JSON."""
    import msgspec

    spec = msgspec.structs.replace(SPEC, init="process", run_root="/var/lib/ddtree-ops/run")
    unit = service_unit(spec)
    document = json.loads(unit.text)
    assert unit.path == "/var/lib/ddtree-ops/services/sglang-ddtree.json"
    assert document["argv"] == list(spec.argv())
    assert document["environment"] == spec.env()
    assert document["run_dir"] == "/var/lib/ddtree-ops/run/sglang-ddtree"


def test_one_line_per_flag():
    """Readable diffs of units."""
    assert group_flags(("-m", "x", "--a", "1", "2", "--b", "--c", "3")) == [
        ["-m", "x"],
        ["--a", "1", "2"],
        ["--b"],
        ["--c", "3"],
    ]


def test_both_ends_write_an_environment_file_alike():
    """Secrets that lie on the host are written there, by the same rules."""
    from ddtree_ops.host.http import environment_line

    value = 'a"b\\c$d`e\nf%n'
    assert environment_line("KEY", value) == f"KEY={environment_file_value(value)}\n"
