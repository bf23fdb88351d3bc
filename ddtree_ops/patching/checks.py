"""What must hold after an edit: the inserted statements stand where the anchor said, and reach what they should."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from ..errors import AnchorNotFound, PatchConflict
from . import match
from .anchors import Source, find_scope
from .recipe import Check, Edit


def problem(source: Source, edit: Edit) -> str:
    """Why the edit does not hold in this file; empty when it holds.

    Holds means: in the anchor's class and function, and only once, the inserted statements follow each other, directly
    beside the anchored statement, and every ``check`` of the edit is true.
    """
    try:
        scope, name = find_scope(source, edit)
    except AnchorNotFound as absent:
        return absent.why
    inserted = ast.parse(textwrap.dedent(edit.insert)).body
    found = match.sequences(scope, inserted)
    if len(found) != 1:
        return f"{name} has the inserted statements {len(found)} times"
    if not _beside(found[0], len(inserted), edit):
        return f"in {name} the inserted statements are not {edit.position} their anchor (line {found[0].node.lineno})"
    for check in edit.check:
        failed = _failed(scope, check)
        if failed:
            return f"in {name}: {failed}"
    return ""


def holds(source: Source, edits: Sequence[Edit]) -> bool:
    """Whether every edit holds in this file."""
    return not any(problem(source, edit) for edit in edits)


def require(source: Source, edits: Sequence[Edit], origin: str) -> None:
    """Raise unless every edit holds; ``origin`` says what made the content (merge, recipe, recorded patch).

    Raises:
        PatchConflict: the edit that does not hold, and why.
    """
    for edit in edits:
        why = problem(source, edit)
        if why:
            raise PatchConflict(
                f"after the {origin} the edit {edit.id} does not hold",
                where=str(edit),
                why=why,
                next_step="nothing was changed; look at the file on the host, or use the pristine copy of this release",
                details={"file": source.path, "edit": edit.id, "why": why},
            )


def _beside(found: match.Found, width: int, edit: Edit) -> bool:
    if not edit.statement:
        before = found.block.statements[: found.index]
        return not before or (len(before) == 1 and _docstring(before[0]))
    pattern = match.parse_statement(edit.statement)
    if edit.position == "into":
        return match.matches(pattern, found.block.owner) and found.index == 0
    beside = found.index + width if edit.position == "before" else found.index - 1
    return 0 <= beside < len(found.block.statements) and match.matches(pattern, found.block.statements[beside])


def _failed(scope: match.Scope, check: Check) -> str:
    found = match.statements(scope, match.parse_statement(check.statement))
    if len(found) != 1:
        return f"`{check.statement.strip()}` occurs {len(found)} times"
    place = found[0]
    earlier, later = place.block.statements[: place.index], place.block.statements[place.index + 1 :]
    for text, side, word in ((check.before, later, "before"), (check.after, earlier, "after")):
        if text and not any(match.matches(match.parse_statement(text), other) for other in side):
            return f"`{check.statement.strip()}` is not {word} `{text.strip()}`"
    blocked = next((row for row in earlier if isinstance(row, (ast.Return, ast.Raise))), None)
    return f"line {blocked.lineno} leaves the block before it" if blocked is not None else ""


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
