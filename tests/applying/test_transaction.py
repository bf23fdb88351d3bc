"""The controller's end of a transaction, over a real link to the real host program on this machine."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.applying import journal, rollback
from ddtree_ops.applying.transaction import Transaction, new_run_id
from ddtree_ops.errors import DdtreeError, HostLocked, Interrupted, PlanStale, Refused, TransportError
from ddtree_ops.inventory import Host
from ddtree_ops.remote.channel import Link
from ddtree_ops.remote.connection import connect
from tests.host_tx.material import VERSION, Driver, Environment, digest


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment with the small SGLang."""
    return Environment(tmp_path / "env").install()


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to this machine."""
    with _connect() as made:
        yield made


def _connect() -> Link:
    return connect(Host(name="here", transport="local", python=sys.executable))


def _transaction(link: Link, environment: Environment, tmp_path: Path, **more: Any) -> Transaction:
    scope = {"environment": str(environment.prefix)}
    return Transaction(link, state_root=str(tmp_path / "state"), message="a test", scope=scope, **more)


def _deploy(tx: Transaction, environment: Environment) -> dict[str, Any]:
    tree = tx.do("derive_tree", {"release_id": f"{VERSION}-x", "package_dir": str(environment.package)})
    text = "x = 1\n"
    files = [{"path": "ours.py", "text": text, "sha256": digest(text), "before": ""}]
    tx.do("write_files", {"root": tree["package_dir"], "files": files})
    tx.do("install_editable", {"python": str(environment.python), "tree": tree["tree"], "installer": "self"})
    return tree


def _root(environment: Environment, tmp_path: Path) -> str:
    return Driver(tmp_path / "state", {"environment": str(environment.prefix)}).root()


def test_commit_then_rollback_then_purge(link: Link, environment: Environment, tmp_path: Path) -> None:
    before = _root(environment, tmp_path)
    with _transaction(link, environment, tmp_path, tool_version="1") as tx:
        assert tx.before["root"] == before
        tree = _deploy(tx, environment)
        tx.commit({"release_id": f"{VERSION}-x", "tree": tree["tree"]})
    assert not tx.is_open
    state = str(tmp_path / "state")
    known = rollback.deployment(link, state, tx.run_id)
    assert known["deployment"]["run_id"] == tx.run_id
    assert [record["kind"] for record in known["records"]][-1] == "committed"
    changed = rollback.root_hash(link, tx.scope, state, against={"run_id": tx.run_id, "when": "before"})
    assert changed["different"] > 0
    result = rollback.rollback(link, state)
    assert (result["root"], _root(environment, tmp_path)) == (before, before)
    assert rollback.rollback(link, state) == {"nothing": True}
    assert rollback.purge(link, state)["left"] == []
    kinds = [line["kind"] for line in journal.read(tx.run_id)]
    assert kinds == ["begin", "done", "done", "done", "committed", "rollback"]


def test_leaving_without_commit_undoes(link: Link, environment: Environment, tmp_path: Path) -> None:
    before = _root(environment, tmp_path)
    tx = _transaction(link, environment, tmp_path)

    def work() -> None:
        with tx:
            _deploy(tx, environment)
            assert not environment.package.exists()
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        work()
    assert tx.undone is not None
    assert tx.undone["root"] == before == _root(environment, tmp_path)
    assert journal.read(tx.run_id)[-1]["kind"] == "undone"


def test_errors_of_operations_keep_their_exit_codes(link: Link, environment: Environment, tmp_path: Path) -> None:
    with _transaction(link, environment, tmp_path) as tx:
        with pytest.raises(PlanStale) as caught:
            tx.do("write_files", {"root": str(environment.package), "files": [_stale()]})
        assert caught.value.exit_code == 5
        with pytest.raises(DdtreeError) as bug:
            tx.do("no_such_operation")
        assert bug.value.exit_code == 1


def _stale() -> dict[str, str]:
    return {"path": "__init__.py", "text": "x", "sha256": digest("x"), "before": "0" * 64}


def test_a_second_controller_is_told_who_works_there(link: Link, environment: Environment, tmp_path: Path) -> None:
    with _transaction(link, environment, tmp_path, who="ann@laptop"), _connect() as other:
        with pytest.raises(HostLocked) as caught:
            _transaction(other, environment, tmp_path).begin()
        assert caught.value.exit_code == 5
        assert "ann@laptop" in caught.value.what


def test_what_cannot_be_written_is_refused_first(link: Link, environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        _transaction(link, environment, tmp_path, need_bytes=1 << 60).begin()
    assert caught.value.reason == "no_space"
    assert not (tmp_path / "state").exists()


def test_a_killed_helper_is_recovered_by_the_next_run(environment: Environment, tmp_path: Path) -> None:
    before = _root(environment, tmp_path)
    with _connect() as link:
        tx = _transaction(link, environment, tmp_path)
        tx.begin()
        _deploy(tx, environment)
        os.kill(link.hello["pid"], signal.SIGKILL)
        with pytest.raises(TransportError):
            tx.do("derive_tree", {})
        tx._guard.remove()
    with _connect() as link:
        with pytest.raises(PlanStale) as caught:
            _transaction(link, environment, tmp_path).begin()
        assert caught.value.reason == "interrupted"
        assert "recover" in caught.value.next_step
        result = rollback.recover(link, str(tmp_path / "state"))
        assert (result["run"]["run_id"], result["root"]) == (tx.run_id, before)
        assert rollback.recover(link, str(tmp_path / "state")) == {"nothing": True}


def test_closing_the_link_undoes(environment: Environment, tmp_path: Path) -> None:
    before = _root(environment, tmp_path)
    with _connect() as link:
        tx = _transaction(link, environment, tmp_path)
        tx.begin()
        _deploy(tx, environment)
        tx._guard.remove()
    assert _root(environment, tmp_path) == before


def test_ctrl_c_once_finishes_the_step_and_unwinds(link: Link, environment: Environment, tmp_path: Path) -> None:
    told: list[str] = []
    tx = _transaction(link, environment, tmp_path, tell=told.append)

    def work() -> None:
        with tx:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            assert told == ["Stopping after this step; everything is then undone. Ctrl-C again stops at once."]
            _deploy(tx, environment)

    with pytest.raises(Interrupted) as caught:
        work()
    assert caught.value.exit_code == 130
    assert tx.undone is not None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_twice_stops_at_once_and_says_how_to_go_on(environment: Environment, tmp_path: Path) -> None:
    before = _root(environment, tmp_path)
    started = time.monotonic()
    with _connect() as link:
        tx = _transaction(link, environment, tmp_path, tell=lambda text: None)
        tx.begin()
        _deploy(tx, environment)
        killer = threading.Thread(target=_two_signals)
        killer.start()
        with pytest.raises(Interrupted) as caught:
            tx.do("run_command", {"argv": ["/bin/sleep", "60"]})
        killer.join()
    assert time.monotonic() - started < 40
    assert "ddtree-ops recover --host here --yes" in caught.value.next_step
    assert _root(environment, tmp_path) == before


def _two_signals() -> None:
    for _ in range(2):
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)


def test_the_local_journal_is_private_and_holds_no_parameters(
    link: Link, environment: Environment, tmp_path: Path
) -> None:
    text = "TOKEN=hunter2\n"
    with _transaction(link, environment, tmp_path) as tx:
        files = [{"path": "secret.env", "text": text, "sha256": digest(text)}]
        tx.do("write_files", {"root": str(environment.prefix), "files": files})
        tx.commit()
    path = journal.folder() / f"{tx.run_id}.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "hunter2" not in path.read_text()
    assert all(json.loads(line)["host"] == "here" for line in path.read_text().splitlines())


def test_a_full_disk_here_costs_the_record_not_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(journal, "folder", lambda: Path("/proc/no/such/place"))
    record = journal.LocalJournal("here", "r")
    record.write("begin")
    assert "/proc/no/such/place" in record.trouble
    assert journal.read("r") == []


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(50)]
    assert len(set(ids)) == 50
    assert ids == sorted(ids, key=lambda name: name.split("-")[0])
