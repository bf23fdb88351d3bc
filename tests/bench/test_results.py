"""Result folders on disk: nothing that was measured is lost, what is damaged is named."""

from __future__ import annotations

import json

import pytest

from ddtree_ops.bench import results
from ddtree_ops.errors import ConfigError
from tests.bench.rows import MANIFEST, cell_rows, row


@pytest.fixture
def folder(tmp_path):
    return results.create(tmp_path / "r", MANIFEST)


def test_rows_come_back_as_they_were(folder):
    """Line by line, in order."""
    rows = cell_rows("ddtree", 1.5)
    for one in rows:
        folder.append(one)
    assert results.open_folder(folder.path).rows() == tuple(rows)


def test_a_torn_last_line_is_dropped_and_the_next_run_goes_on(folder):
    """A killed run leaves half a line: the rounds before it count, and the next line must not be glued to it."""
    folder.append(row())
    with (folder.path / "rows.jsonl").open("ab") as file:
        file.write(b'{"arm":"ddtree","regi')
    again = results.open_folder(folder.path)
    assert len(again.rows()) == 1
    again.append(row(round=1))
    assert again.torn == 21
    assert [one.round for one in again.rows()] == [0, 1]


def test_a_last_line_that_only_lacks_its_newline_is_kept(folder):
    """It is a whole round."""
    folder.append(row())
    path = folder.path / "rows.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    again = results.open_folder(folder.path)
    assert len(again.rows()) == 1
    again.append(row(round=1))
    assert (again.torn, len(again.rows())) == (0, 2)


def test_a_damaged_line_in_the_middle_is_named(folder):
    """Not skipped: file and line."""
    for index in range(3):
        folder.append(row(round=index))
    path = folder.path / "rows.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:40]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        folder.rows()
    assert caught.value.where == f"{path}:2"
    assert caught.value.next_step


def test_a_newer_schema_is_called_newer_not_damaged(folder):
    """Whatever else its files hold."""
    path = folder.path / "manifest.json"
    path.write_text(json.dumps({"schema_version": 9, "unknown": 1}))
    with pytest.raises(ConfigError, match="schema_version 9"):
        results.open_folder(folder.path)


def test_unknown_fields_are_ignored(folder):
    """A later version may add fields under the same schema_version."""
    path = folder.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "invented": [1]}))
    assert results.open_folder(folder.path).manifest == MANIFEST


@pytest.mark.parametrize("text", ["{", "[]", '{"created": 1}'])
def test_a_damaged_file_is_named(folder, text):
    """What, where, next; no traceback."""
    (folder.path / "summary.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        _ = folder.summary
    assert caught.value.where.endswith("summary.json")


def test_no_second_result_in_a_folder(folder, tmp_path):
    """It would mix two plans; the way to go on is named."""
    with pytest.raises(ConfigError) as caught:
        results.create(folder.path, MANIFEST)
    assert "--resume" in caught.value.next_step
    with pytest.raises(ConfigError, match=r"no manifest\.json"):
        results.open_folder(tmp_path)


def test_what_a_run_did_not_write_is_none(folder):
    """Identity needs the plain arm, auto its own run."""
    assert folder.identity is folder.auto is folder.gates is folder.summary is None
    assert folder.costs == ()
    assert set(folder.document()) == {"path", "manifest"}


def test_files_are_replaced_atomically_and_read_back(folder):
    """No temporary file stays."""
    for one in cell_rows("ddtree", 1.0):
        folder.append(one)
    summary = results.summarise(MANIFEST, folder.rows())
    folder.save("summary", summary)
    folder.save("costs", (results.Cost(batch=1, width=33, verify_us=900.0),))
    assert folder.summary == summary
    assert folder.costs[0].width == 33
    assert not [path.name for path in folder.path.iterdir() if path.name.startswith(".")]
    with pytest.raises(KeyError):
        folder.save("poem", {})
