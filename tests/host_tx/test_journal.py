"""The journal survives what a crash leaves, and notices what somebody changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_ops.host import journal
from ddtree_ops.host.protocol import HostError


def _filled(tmp_path: Path) -> Path:
    path = tmp_path / "journal" / "r.jsonl"
    log = journal.Journal.create(str(path))
    log.append("begin", who="me")
    log.append("will", op="a", undo="x", data={}, text="first")
    log.append("will", op="a", undo="y", data={}, text="second")
    return path


def test_pending_undo_is_newest_first_and_skips_what_was_undone(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    log = journal.Journal.open(str(path))
    assert [record["undo"] for record in journal.pending(log.records)] == ["y", "x"]
    log.append("undid", will=2)
    assert [record["undo"] for record in journal.pending(journal.read(str(path)))] == ["x"]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_dropped_and_the_chain_goes_on(tmp_path: Path, cut: int) -> None:
    path = _filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    log = journal.Journal.open(str(path))
    assert [record["kind"] for record in log.records] == ["begin", "will"]
    log.append("undoing", reason="crash")
    assert journal.state_of(journal.read(str(path))) == "undoing"


def test_a_changed_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"first"', b'"forge"'))
    with pytest.raises(HostError) as caught:
        journal.read(str(path))
    assert caught.value.code == "journal_damaged"
    assert "line 3" in caught.value.message


def test_a_journal_without_begin_is_a_run_that_never_was(tmp_path: Path) -> None:
    path = tmp_path / "journal" / "r.jsonl"
    journal.Journal.create(str(path))
    assert journal.unfinished(str(tmp_path)) is None


def test_run_ids_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "", ".hidden", "x\n"):
        with pytest.raises(HostError):
            journal.path_of(str(tmp_path), name)
