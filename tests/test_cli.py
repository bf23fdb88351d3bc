"""The command line keeps its manners: quick help, no traceback, exit codes as documented."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from ddtree_ops import cli, errors

COMMANDS = (
    "init locate-source plan deploy bench status verify logs start stop restart rollback recover purge patch config"
)


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ddtree_ops", *args],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_help_lists_every_command_in_order_of_use() -> None:
    result = CliRunner().invoke(cli.cli, ["--help"])
    listed = [line.split()[0] for line in result.output.split("Commands:")[1].splitlines() if line.startswith("  ")]
    once = list(dict.fromkeys(listed))  # `bench`, `bench diff`, `bench report`
    assert once[: len(COMMANDS.split())] == COMMANDS.split()


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    code = "import sys, ddtree_ops.cli; print(sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    heavy = {"paramiko", "fabric", "rich", "git", "jinja2", "yaml", "msgspec", "cryptography"}
    assert not heavy & set(json.loads(loaded.replace("'", '"')))
    best = min(_timed() for _ in range(5))
    assert best < 0.3, f"--help took {best:.2f} s at best of five"


def _timed() -> float:
    start = time.monotonic()
    assert run("--help").returncode == 0
    return time.monotonic() - start


@pytest.mark.parametrize("command", [["deploy", "--bugdet", "8"], ["nonsense"], ["deploy", "--budget", "0"]])
def test_wrong_usage_is_exit_2_without_a_traceback(command: list[str]) -> None:
    result = run(*command)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_a_bug_is_exit_1_with_the_traceback_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    context = cli.Context(_options())

    def broken() -> int:
        raise ZeroDivisionError("division by zero")

    assert cli.guarded(broken, context) == 1
    shown = capsys.readouterr().err
    assert "this is a bug in ddtree-ops: ZeroDivisionError" in shown
    assert "Traceback" not in shown
    assert "ddtree-ops-" in shown


def test_json_errors_are_one_document_on_stdout(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    context = cli.Context(_options(json=True))

    def refused() -> int:
        raise errors.Refused("no SGLang here", where="h1", next_step="name its environment", code="no_sglang")

    assert cli.guarded(refused, context) == 4
    document = json.loads(capsysbinary.readouterr().out)
    assert document["schema_version"] == 1
    assert document["error"] == {
        "code": "no_sglang",
        "exit_code": 4,
        "what": "no SGLang here",
        "where": "h1",
        "why": "",
        "next": "name its environment",
        "details": {},
    }


def _options(**changes: object) -> dict[str, object]:
    base = {"host": (), "inventory": None, "ssh_config": None, "accept_new_host_key": None}
    return {**base, "json": False, "quiet": False, "verbose": 0, "no_color": True, **changes}


def test_worst_exit_code_of_several_hosts_follows_the_documented_order() -> None:
    assert errors.worst([0, 10, 4, 3]) == 4
    assert errors.worst([0, 0]) == 0
    assert errors.worst([6, 7, 1]) == 7
    assert errors.worst([]) == 0


def test_every_error_class_has_a_documented_exit_code() -> None:
    def below(kind: type[errors.DdtreeError]) -> list[type[errors.DdtreeError]]:
        return [kind, *(deeper for child in kind.__subclasses__() for deeper in below(child))]

    assert {kind.exit_code for kind in below(errors.DdtreeError)} <= set(errors.SEVERITY)
    for kind in below(errors.DdtreeError):
        assert kind.__name__ in str(errors.__doc__), f"{kind.__name__} is missing in the tree drawn in errors.py"
