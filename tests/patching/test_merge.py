"""Line diff and three-way merge, against their definitions and against ``git merge-file``."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.errors import PatchConflict
from ddtree_ops.patching.linediff import Change, _slide_down, diff
from ddtree_ops.patching.merge import enclosing, merge_file, merge_lines
from ddtree_ops.patching.text import split_lines

Lines = list[bytes]
REPEATING = st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\n"]), max_size=14)


@st.composite
def edited(draw: st.DrawFn, base: Sequence[bytes], tag: str) -> Lines:
    """The base after up to three insertions, removals or replacements with lines of its own."""
    out = list(base)
    for number in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(out)))
        removed = draw(st.integers(0, 2))
        new = [f"{tag}{number}{i}\n".encode() for i in range(draw(st.integers(0, 2)))]
        out[start : start + removed] = new
    return out


@st.composite
def distinct_triples(draw: st.DrawFn) -> tuple[Lines, Lines, Lines]:
    """Base, ours, theirs without repeated lines; sometimes both sides make the same edits."""
    base = [f"l{i}\n".encode() for i in range(draw(st.integers(0, 12)))]
    ours = draw(edited(base, "o"))
    same = draw(st.booleans())
    return base, ours, draw(edited(ours if same else base, "t"))


@st.composite
def repeating_triples(draw: st.DrawFn) -> tuple[Lines, Lines, Lines]:
    base = draw(REPEATING)
    return base, draw(edited(base, "o")), draw(edited(base, "t"))


def patched(a: Sequence[bytes], b: Sequence[bytes]) -> Lines:
    """``a`` with the changes of ``diff(a, b)`` made."""
    out: Lines = []
    position = 0
    for change in diff(a, b):
        out += [*a[position : change.a0], *b[change.b0 : change.b1]]
        position = change.a1
    return out + list(a[position:])


@given(REPEATING, REPEATING)
def test_diff_turns_one_into_the_other(a: Lines, b: Lines) -> None:
    assert patched(a, b) == b
    changes = diff(a, b)
    assert all(x.a1 < y.a0 and x.b1 < y.b0 for x, y in itertools.pairwise(changes))
    assert all(change.a1 > change.a0 or change.b1 > change.b0 for change in changes)


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_diff_is_shortest(a: list[str], b: list[str]) -> None:
    """Against the textbook recurrence of the longest common subsequence."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    changes = diff([x.encode() for x in a], [y.encode() for y in b])
    cost = sum(c.a1 - c.a0 + c.b1 - c.b0 for c in changes)
    assert cost == len(a) + len(b) - 2 * table[-1][-1]


def test_sliding_keeps_a_common_line_before_the_next_change() -> None:
    """Two changes that touch would be one region: a merge would then see more conflicts than there are."""
    a, b = [b"b", b"a", b"c"], [b"b", b"a", b"a", b"d"]
    changes = [Change(1, 1, 1, 2), Change(2, 3, 3, 4)]
    assert _slide_down(a, b, list(changes)) == changes
    a, b = [b"b", b"a", b"x", b"c"], [b"b", b"a", b"a", b"x", b"d"]
    assert _slide_down(a, b, [Change(1, 1, 1, 2), Change(3, 4, 4, 5)])[0] == Change(2, 2, 2, 3)


def test_very_different_files_do_not_need_quadratic_memory() -> None:
    a = [b"a%d\n" % i for i in range(4000)]
    b = [b"b%d\n" % i for i in range(4000)]
    assert patched(a, [*b, a[-1]]) == [*b, a[-1]]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merge-file")


def git_merge(desk: Path, base: Lines, ours: Lines, theirs: Lines) -> tuple[bool, bytes]:
    """What ``git merge-file`` says: clean, and its text."""
    for name, lines in (("base", base), ("ours", ours), ("theirs", theirs)):
        (desk / name).write_bytes(b"".join(lines))
    done = subprocess.run(["git", "merge-file", "-p", "-q", "ours", "base", "theirs"], cwd=desk, capture_output=True)
    assert 0 <= done.returncode < 128, done.stderr
    return done.returncode == 0, done.stdout


@settings(max_examples=150, deadline=None)
@given(triple=distinct_triples())
def test_agrees_with_git_merge_file(desk: Path, triple: tuple[Lines, Lines, Lines]) -> None:
    """Without repeated lines there is one right answer: the same conflicts and the same bytes as git."""
    merged = merge_lines(*triple)
    clean, text = git_merge(desk, *triple)
    assert (not merged.conflicts) == clean
    if clean:
        assert merged.data == text


@given(repeating_triples())
def test_merge_laws(triple: tuple[Lines, Lines, Lines]) -> None:
    base, ours, theirs = triple
    assert merge_lines(base, base, theirs).data == b"".join(theirs)
    assert merge_lines(base, ours, base).data == b"".join(ours)
    assert merge_lines(base, ours, ours).data == b"".join(ours)
    one, other = merge_lines(base, ours, theirs), merge_lines(base, theirs, ours)
    assert len(one.conflicts) == len(other.conflicts)
    if not one.conflicts:
        assert one.data == other.data
        added = {line for line in [*ours, *theirs] if line[:1] in b"ot"}
        assert added <= set(one.lines)  # nobody's own line is lost


BASE = b"def f():\n    a = 1\n    b = 2\n    c = 3\n\n\ndef g():\n    return 1\n"


def test_far_apart_edits_merge() -> None:
    ours = BASE.replace(b"return 1", b"return 2")
    theirs = BASE.replace(b"    a = 1\n", b"    a = 1\n    n = 0\n")
    assert merge_file("x.py", BASE, ours, theirs) == theirs.replace(b"return 1", b"return 2")


def test_conflict_names_line_function_and_all_three_sides() -> None:
    ours = b"import os\n\n" + BASE.replace(b"    b = 2\n", b"    b = 20\n")
    theirs = BASE.replace(b"    b = 2\n", b"    n = 0\n    b = 2\n")
    with pytest.raises(PatchConflict) as caught:
        merge_file("x.py", BASE, ours, theirs)
    error = caught.value
    assert error.exit_code == 4
    assert error.where == "x.py:5 in f"
    assert split_lines(ours)[4] == b"    b = 20\n"
    assert {key: error.details[key] for key in ("base", "ours", "theirs")} == {
        "base": "    b = 2",
        "ours": "    b = 20",
        "theirs": "    n = 0\n    b = 2",
    }


def test_crlf_host_file_stays_crlf() -> None:
    ours = BASE.replace(b"return 1", b"return 2").replace(b"\n", b"\r\n")
    theirs = BASE.replace(b"    a = 1\n", b"    a = 1\n    n = 0\n")
    expected = theirs.replace(b"return 1", b"return 2").replace(b"\n", b"\r\n")
    assert merge_file("x.py", BASE, ours, theirs) == expected


def test_mixed_endings_are_refused() -> None:
    ours = BASE.replace(b"return 1\n", b"return 2\r\n")
    with pytest.raises(PatchConflict, match="mixes line endings"):
        merge_file("x.py", BASE, ours, BASE + b"x = 1\n")


def test_enclosing_scope() -> None:
    text = b"x = 1\nclass A:\n    def f(self):\n        if x:\n            return 1\n\n    y = 2\n"
    assert [enclosing(text, line) for line in (1, 2, 5, 7)] == ["<module>", "A", "A.f", "A"]
    assert enclosing(b"def (", 1) == "<unparsable>"
