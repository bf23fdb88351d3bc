"""Anchors on awkward sources: what is found, what is refused, and that formatting survives."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.errors import AnchorNotFound, PatchConflict
from ddtree_ops.patching import checks
from ddtree_ops.patching.anchors import Source, insert, place
from ddtree_ops.patching.recipe import Check, Edit


def edit(**overrides: object) -> Edit:
    """An edit that puts a guard before ``if self.is_dflash()`` of ``Algo.create``."""
    values: dict[str, object] = {
        "id": "guard",
        "why": "test",
        "file": "algo.py",
        "class_": "Algo",
        "function": "create",
        "statement": "if self.is_dflash(): ...",
        "position": "before",
        "insert": 'if self.name == "DDTREE":\n    return hook()\n',
        **overrides,
    }
    return Edit(**values)  # type: ignore[arg-type]


def apply(text: str | bytes, change: Edit) -> bytes:
    """The source with the edit made and checked."""
    source = Source("algo.py", textwrap.dedent(text).encode() if isinstance(text, str) else text)
    after = insert(source, [place(source, change)])
    checks.require(Source("algo.py", after), [change], "edit")
    return after


def refusal(text: str | bytes, change: Edit) -> AnchorNotFound:
    """The refusal for this source."""
    with pytest.raises(AnchorNotFound) as caught:
        apply(text, change)
    assert caught.value.exit_code == 4
    assert caught.value.details["anchor"] == change.id
    return caught.value


PLAIN = """\
class Algo:
    def create(self):
        x = 1

        if self.is_dflash():
            return x
        return None
"""


def test_inserts_before_with_the_anchors_indentation() -> None:
    assert apply(PLAIN, edit()).decode() == PLAIN.replace(
        "        if self.is", '        if self.name == "DDTREE":\n            return hook()\n        if self.is'
    )


def test_missing_statement_says_how_far_it_went() -> None:
    error = refusal(PLAIN.replace("is_dflash", "is_flash"), edit())
    assert error.why == "function Algo.create exists, statement `if self.is_dflash(): ...` does not"
    assert error.where == "algo.py:Algo.create `if self.is_dflash(): ...`"


def test_missing_function_and_class() -> None:
    assert refusal(PLAIN.replace("create", "make"), edit()).why == "Algo exists, function create does not"
    assert refusal(PLAIN.replace("Algo", "Algorithm"), edit()).why == "class Algo does not"


def test_same_text_in_another_class_is_not_hit() -> None:
    """A patch by context lands in the first place that looks alike; an anchor does not (field case B3)."""
    decoy = PLAIN.replace("Algo", "Decoy")
    after = apply(decoy + "\n\n" + PLAIN, edit()).decode()
    assert after.startswith(decoy)
    assert after.count("DDTREE") == 1


def test_duplicate_statement_is_ambiguous() -> None:
    twice = PLAIN.replace(
        "        return None", "        if self.is_dflash():\n            return 2\n        return None"
    )
    assert refusal(twice, edit()).why == "function Algo.create has it 2 times (lines 5, 7)"


def test_duplicate_function_is_ambiguous() -> None:
    again = PLAIN + "\n    def create(self):\n        pass\n"
    assert "function create is defined 2 times (lines 2, 9)" in refusal(again, edit()).why


def test_elif_cannot_take_an_insertion() -> None:
    """Inserting before an ``elif`` would be a syntax error; the tree calls it an ``if``."""
    chain = PLAIN.replace("        if self.is", "        if x:\n            pass\n        elif self.is")
    assert "is an elif (line 7)" in refusal(chain, edit()).why


def test_several_statements_in_a_line() -> None:
    assert (
        "line 2 holds something else before"
        in refusal("class A:\n    a = 1; b = 2\n", edit(class_="A", function="", statement="b = 2", insert="c = 3")).why
    )
    assert (
        "line 2 holds something else after"
        in refusal(
            "class A:\n    a = 1; b = 2\n",
            edit(class_="A", function="", statement="a = 1", position="after", insert="c = 3"),
        ).why
    )


def test_one_line_body() -> None:
    change = edit(statement="", position="into", insert="pass")
    assert (
        "its body stands on the header's line (2)"
        in refusal("class Algo:\n    def create(self): return 1\n", change).why
    )


def test_not_python_names_the_line() -> None:
    with pytest.raises(AnchorNotFound, match="is not valid Python") as caught:
        apply("class Algo:\n    def create(self:\n", edit())
    assert caught.value.where == "algo.py:2"


def test_into_goes_behind_header_and_docstring() -> None:
    change = edit(statement="", position="into", insert="a = 1", blank="after")
    head = 'class Algo:\n    def create(\n        self,  # comment: with colon\n    ) -> "x":\n'
    bare = head + "        # note\n        return 1\n"
    assert apply(bare, change).decode() == bare.replace("        # note", "        a = 1\n\n        # note")
    documented = bare.replace("        # note", '        """Doc\n        string."""\n        # note')
    assert apply(documented, change).decode() == documented.replace("        # note", "        a = 1\n\n        # note")


def test_into_counts_lines_as_python_does() -> None:
    """A lone carriage return ends a line for Python, not for ``readline``; and warnings in host files are not ours."""
    change = edit(statement="", position="into", insert="a = 1")
    head = b"A = 1\rB = '\\d'\n"
    assert b"def create(self):\n        a = 1\n        x = 1\n" in apply(head + PLAIN.encode(), change)


def test_comments_stay_with_their_statement() -> None:
    commented = PLAIN.replace("        if self.is", "        # why\n        # so\n        if self.is")
    assert (
        "            return hook()\n        # why\n        # so\n        if self.is"
        in apply(commented, edit()).decode()
    )


def test_decorated_definition() -> None:
    text = "class Algo:\n    @property\n    def size(self):\n        return 1\n"
    change = edit(function="", statement="def size(self): ...", insert="x = 1")
    assert apply(text, change).decode() == text.replace("    @property", "    x = 1\n    @property")


def test_nested_function_and_alternatives() -> None:
    inner = "        def inner():\n            spec = None\n            return spec\n"
    text = "class Algo:\n    def outer(self):\n" + inner + "        return inner\n"
    change = edit(function=("gone", "outer.inner"), statement="spec = None", insert="a = 1")
    assert "            a = 1\n            spec = None\n" in apply(text, change).decode()


def test_crlf_file_stays_crlf_throughout() -> None:
    after = apply(PLAIN.replace("\n", "\r\n").encode(), edit())
    assert after.count(b"\r\n") == after.count(b"\n") == PLAIN.count("\n") + 2


def test_tabs() -> None:
    after = apply(PLAIN.replace("    ", "\t").encode(), edit())
    assert b'\t\tif self.name == "DDTREE":\n\t\t\treturn hook()\n\t\tif self.is' in after


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("# -*- coding: latin-1 -*-\nNAME = 'é'\n", "latin-1"),
        ("\ufeffNAME = 'ü'\n", "utf-8"),
        ("N = 'a\u2028b\x0cé'\n", "utf-8"),
        ("A = 1\rB = 2\n", "utf-8"),
    ],
    ids=["latin-1", "byte order mark", "line separators that are none", "lone carriage return"],
)
def test_other_bytes_do_not_shift_lines(head: str, encoding: str) -> None:
    """``str.splitlines`` would count U+2028 and form feeds as lines and insert too late."""
    data = head.encode(encoding) + PLAIN.encode()
    after = apply(data, edit())
    assert after.startswith(head.encode(encoding))
    assert b"return hook()\n        if self.is_dflash" in after


def test_no_final_newline_is_kept() -> None:
    change = edit(
        class_="", function="", statement="__all__ = ...", position="after", blank="before", insert="import os"
    )
    assert apply(b'__all__ = ["a"]', change) == b'__all__ = ["a"]\n\nimport os'


def test_a_return_before_the_anchor_is_noticed() -> None:
    """Text can merge cleanly and still be dead code."""
    dead = PLAIN.replace("        x = 1\n", "        return 7\n")
    change = edit(check=(Check(statement='if self.name == "DDTREE": ...', before="if self.is_dflash(): ..."),))
    with pytest.raises(PatchConflict) as caught:
        apply(dead, change)
    assert caught.value.why == "in Algo.create: line 3 leaves the block before it"


def test_check_order() -> None:
    change = edit(
        position="after", check=(Check(statement='if self.name == "DDTREE": ...', before="if self.is_dflash(): ..."),)
    )
    with pytest.raises(PatchConflict) as caught:
        apply(PLAIN, change)
    assert "is not before `if self.is_dflash(): ...`" in caught.value.why


def test_edit_in_the_wrong_function_does_not_hold() -> None:
    """What a fuzzy hunk does: right text, wrong function."""
    guarded = apply(PLAIN, edit()).decode()
    wrong = PLAIN + "\n" + guarded.partition("\n")[2].replace("create", "other")
    source = Source("algo.py", wrong.encode())
    assert checks.problem(source, edit()) == "Algo.create has the inserted statements 0 times"


def test_edit_away_from_its_anchor_or_made_twice_does_not_hold() -> None:
    """What a merge does when the anchored statement moved, or when the patch was applied a second time."""
    guard = '        if self.name == "DDTREE":\n            return hook()\n'
    away = PLAIN.replace("        x = 1\n", guard + "        x = 1\n")
    assert "are not before their anchor (line 3)" in checks.problem(Source("algo.py", away.encode()), edit())
    twice = apply(PLAIN, edit()).decode().replace(guard, guard + guard)
    assert "has the inserted statements 2 times" in checks.problem(Source("algo.py", twice.encode()), edit())


LINES = st.sampled_from(
    ["x = 1", "if x:\n    y = 2\nelse:\n    y = 3", "# comment", "", "def f():\n    return 1", "s = '''a\nb'''"]
)


@settings(max_examples=60, deadline=None)
@given(before=st.lists(LINES, max_size=5), after=st.lists(LINES, max_size=5), newline=st.sampled_from(["\n", "\r\n"]))
def test_every_old_line_survives_in_order(before: list[str], after: list[str], newline: str) -> None:
    body = "\n".join([*before, "if self.is_dflash():", "    pass", *after])
    text = "class Algo:\n    def create(self):\n" + textwrap.indent(body, "        ") + "\n"
    source = Source("algo.py", text.replace("\n", newline).encode())
    done = insert(source, [placed := place(source, edit())])
    assert done.replace(b"".join(placed.lines), b"", 1) == source.data
    ast.parse(done)
    assert not checks.problem(Source("algo.py", done), edit())
