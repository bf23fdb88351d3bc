"""Several hosts, one document, and consent: what every command shares."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import click
import msgspec
import pytest

from ddtree_ops import cli
from ddtree_ops.errors import HostUnreachable, Interrupted, Refused, UsageError
from ddtree_ops.inventory import Host
from ddtree_ops.service.settings import ServiceSpec
from ddtree_ops.workflow import service, session
from tests.source import builders
from tests.test_cli import _options

HOSTS = tuple(Host(name=name) for name in ("h1", "h2", "h3"))


def documents(capsysbinary: pytest.CaptureFixture[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsysbinary.readouterr().out)
    return found


def one(error: BaseException | None = None) -> session.Callable[[Host], session.Outcome]:
    def run(host: Host) -> session.Outcome:
        if host.name == "h2" and error is not None:
            raise error
        return 0, {"host": host.name, "fine": True}

    return run


def test_unreachable_host_among_several_stands_in_the_document(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Its error was printed to stderr only: a program that reads the JSON saw one host less."""
    context = cli.Context(_options(json=True))
    code = session.each(context, "status", HOSTS, one(HostUnreachable("no route", where="h2")))
    assert code == 3
    parts = documents(capsysbinary)["hosts"]
    assert [part["host"] for part in parts] == ["h1", "h2", "h3"]
    assert parts[1]["error"]["code"] == "unreachable"


def test_bug_with_one_host_leaves_the_others_their_turn(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """An exception that is no DdtreeError ended the whole run, and what was done before was not reported."""
    context = cli.Context(_options(json=True))
    assert session.each(context, "status", HOSTS, one(ZeroDivisionError("ours"))) == 1
    assert [part["host"] for part in documents(capsysbinary)["hosts"]] == ["h1", "h2", "h3"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Interrupted("stopped")])
def test_interrupt_ends_the_round_and_reports_what_was_done(
    error: BaseException, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    context = cli.Context(_options(json=True))
    assert session.each(context, "deploy", HOSTS, one(error)) == 130
    assert [part["host"] for part in documents(capsysbinary)["hosts"]] == ["h1", "h2"]


def test_one_host_ends_in_one_error_document(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    context = cli.Context(_options(json=True))
    run = one(HostUnreachable("no route"))
    assert cli.guarded(lambda: session.each(context, "status", HOSTS[1:2], run), context) == 3
    assert documents(capsysbinary)["error"]["code"] == "unreachable"


def test_ctrl_c_at_the_question_is_130_and_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """click turns Ctrl-C at a prompt into its own Abort, which was reported as a bug of the tool."""

    def abort(*_: object, **__: object) -> bool:
        raise click.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", abort)
    with pytest.raises(Interrupted) as caught:
        session.consent(cli.Context(_options()), False, "Change it?")
    assert caught.value.exit_code == 130


def test_nobody_to_ask_is_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError):  # --json never asks, whoever is there
        session.consent(cli.Context(_options(json=True)), False, "Change it?")


def test_a_file_for_one_host_is_not_for_several() -> None:
    """`plan -o FILE` of several hosts wrote each plan over the one before."""
    with pytest.raises(UsageError, match="h1, h2, h3"):
        session.only(HOSTS, "plan -o")


def test_damaged_record_of_the_host_is_no_bug() -> None:
    """A deployment.json that another version wrote, or a hand, ended in "this is a bug" for every command."""

    class DamagedLink:
        """Answers facts with a record that is not one."""

        def call(self, verb: str, params: object, **_: object) -> dict[str, Any]:
            facts = msgspec.to_builtins(builders.host())
            return {**facts, "deployment": {"run_id": 3}}

    with pytest.raises(Refused, match="not understood") as caught:
        session.facts_of(DamagedLink(), HOSTS[0])  # type: ignore[arg-type]
    assert "/var/lib/ddtree-ops" in caught.value.where


def test_log_without_end_is_no_document() -> None:
    """`logs --json` printed plain lines to stdout; followed for ever it cannot be one document."""
    with pytest.raises(UsageError, match="one document"):
        service.logs(cli.Context(_options(json=True)), True, 10)


def test_log_as_one_document(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    class LogLink:
        """Answers ``logs`` with two lines as events."""

        def call(self, verb: str, params: object, *, on_event: session.Callable[[object], None], **_: object) -> object:
            on_event({"kind": "log", "lines": ["one [/]", "caf\udce9"]})
            return {"lines": 2}

    @contextlib.contextmanager
    def linked(*_: object) -> Iterator[LogLink]:
        yield LogLink()

    monkeypatch.setattr(service, "linked", linked)
    monkeypatch.setattr(service, "hosts_of", lambda _: (None, HOSTS[:1]))
    monkeypatch.setattr(service, "facts_of", lambda *_: None)
    monkeypatch.setattr(service, "deployed", lambda *_: None)
    monkeypatch.setattr(service, "spec_of", lambda _: ServiceSpec(interpreter="/p", target="/t"))
    assert service.logs(cli.Context(_options(json=True)), False, 10) == 0
    assert documents(capsysbinary)["hosts"] == [{"host": "h1", "lines": ["one [/]", "caf\\xe9"]}]
