"""The recipe: what the patch does to SGLang's own files, each edit named by an anchor instead of a line.

``patches/recipe.yaml`` is the source; a committed series (``series.py``) is what it produced on one release. An edit
only *inserts* lines; nothing of SGLang's is removed or rewritten. Which edits belong together is decided by the anchors
that exist in a tree (``families``), never by a version number.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from .. import errors
from .strict import Document, read_document

Position = Literal["before", "after", "into"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: immutable, strict about unknown keys."""


class Anchor(Value, frozen=True, kw_only=True):
    """A place in a Python file: file, class, function, statement.

    ``function`` may name alternatives (the name changed between releases; the first that exists) and nesting with a
    dot (``outer.inner``). ``statement`` is Python source; ``...`` in it stands for any expression, and as a body for
    any body.
    """

    file: str
    class_: str = msgspec.field(name="class", default="")
    function: str | tuple[str, ...] = ""
    statement: str = ""

    @property
    def functions(self) -> tuple[str, ...]:
        """The alternatives of ``function``; empty for class or module level."""
        if isinstance(self.function, tuple):
            return self.function
        return (self.function,) if self.function else ()

    def __str__(self) -> str:
        scope = ".".join(part for part in (self.class_, "|".join(self.functions)) if part)
        statement = f" `{self.statement.strip()}`" if self.statement else ""
        return f"{self.file}:{scope or '<module>'}{statement}"


class Probe(Anchor, frozen=True, kw_only=True):
    """A fact about a tree: the anchor resolves (or, with ``present: false``, does not)."""

    present: bool = True


class Check(Value, frozen=True, kw_only=True):
    """What must hold after an edit, in the edit's own class and function.

    ``statement`` occurs exactly once there, and in its block comes before ``before`` (and after ``after``).
    """

    statement: str
    before: str = ""
    after: str = ""


class Edit(Anchor, frozen=True, kw_only=True):
    """One insertion: where, what, why, and what must hold afterwards."""

    id: str
    why: str
    position: Position
    insert: str
    blank: Literal["", "before", "after"] = ""  # a blank line before or after the inserted ones
    check: tuple[Check, ...] = ()


class PatchFile(Value, frozen=True, kw_only=True):
    """One patch of the series: a name, a commit message and the files that it may touch."""

    slug: str
    subject: str
    body: str
    files: tuple[str, ...]


class Family(Value, frozen=True, kw_only=True):
    """Releases with the same surface: found by probes, changed by the same edits."""

    id: str
    spec: Literal["v1", "v2"]
    summary: str
    probes: tuple[Probe, ...]
    edits: tuple[str, ...]


class PayloadSpec(Value, frozen=True, kw_only=True):
    """New files: a folder under ``kernels/`` and where it goes inside the package."""

    source: str
    target: str


class LeftAlone(Value, frozen=True, kw_only=True):
    """A place that was considered and is not edited, and why."""

    where: str
    why: str


class Recipe(Value, frozen=True, kw_only=True):
    """The whole recipe. Paths are relative to the package root (``sglang/``)."""

    schema: Literal[1]
    algorithm: str
    package: str
    repository_prefix: str  # where the package lies in SGLang's repository, for the paths inside patches
    author: str
    date: str  # RFC 2822; fixed, so that the same recipe gives the same bytes
    payload: PayloadSpec
    identity: tuple[str, ...]  # further files whose hashes recognise a release
    patches: tuple[PatchFile, ...]
    families: tuple[Family, ...]
    edits: tuple[Edit, ...]
    left_alone: tuple[LeftAlone, ...] = ()

    def edits_of(self, family: Family) -> tuple[Edit, ...]:
        """The family's edits, in the order in which it names them."""
        by_id = {edit.id: edit for edit in self.edits}
        return tuple(by_id[name] for name in family.edits)

    def family(self, name: str) -> Family:
        """The family with this id."""
        for family in self.families:
            if family.id == name:
                return family
        raise errors.ConfigError(
            f"the recipe has no family {name!r}",
            why="families: " + ", ".join(family.id for family in self.families),
            next_step="make the series again: ddtree-ops patch create",
        )


def load_recipe(path: Path | str) -> Recipe:
    """Read and check a recipe.

    Raises:
        ConfigError: with file, line and key, for anything unknown, mistyped, inconsistent or not parsable as Python.
    """
    document = read_document(Path(path))
    recipe = document.convert(Recipe)
    _check_edits(document, recipe)
    _check_families(document, recipe)
    _check_patches(document, recipe)
    return recipe


def touched_paths(recipe: Recipe) -> tuple[str, ...]:
    """Files that some family edits, relative to the package root: what to fetch from the host."""
    return tuple(sorted({edit.file for edit in recipe.edits}))


def recognised_paths(recipe: Recipe) -> tuple[str, ...]:
    """Files whose presence or hash recognises a release: touched, probed and identity files."""
    probed = {probe.file for family in recipe.families for probe in family.probes}
    return tuple(sorted({*touched_paths(recipe), *probed, *recipe.identity}))


def _check_edits(document: Document, recipe: Recipe) -> None:
    seen: set[str] = set()
    for number, edit in enumerate(recipe.edits):
        here = f"$.edits[{number}]"
        if edit.id in seen:
            document.fail(f"the edit id {edit.id!r} occurs twice", f"{here}.id")
        seen.add(edit.id)
        _python(document, edit.insert, f"{here}.insert")
        if edit.statement:
            _one_statement(document, edit.statement, f"{here}.statement")
        elif edit.position != "into":
            document.fail(f"position {edit.position!r} needs a statement", f"{here}.position")
        for index, check in enumerate(edit.check):
            for key in ("statement", "before", "after"):
                text: str = getattr(check, key)
                if text:
                    _one_statement(document, text, f"{here}.check[{index}].{key}")


def _check_families(document: Document, recipe: Recipe) -> None:
    known = {edit.id for edit in recipe.edits}
    used: set[str] = set()
    for number, family in enumerate(recipe.families):
        if not family.probes:
            document.fail("a family needs probes", f"$.families[{number}].probes")
        for index, name in enumerate(family.edits):
            if name not in known:
                document.fail(
                    f"unknown edit {name!r}",
                    f"$.families[{number}].edits[{index}]",
                    why="known: " + ", ".join(sorted(known)),
                )
        used |= set(family.edits)
        for index, probe in enumerate(family.probes):
            if probe.statement:
                _one_statement(document, probe.statement, f"$.families[{number}].probes[{index}].statement")
    for number, edit in enumerate(recipe.edits):
        if edit.id not in used:
            document.fail(f"no family uses the edit {edit.id!r}", f"$.edits[{number}].id")


def _check_patches(document: Document, recipe: Recipe) -> None:
    owner: dict[str, str] = {}
    for number, patch in enumerate(recipe.patches):
        for index, file in enumerate(patch.files):
            if file in owner:  # otherwise line numbers of the second patch would not be those of the base
                document.fail(f"{file} is already in patch {owner[file]!r}", f"$.patches[{number}].files[{index}]")
            owner[file] = patch.slug
    for number, edit in enumerate(recipe.edits):
        if edit.file not in owner:
            document.fail(f"no patch has the file {edit.file}", f"$.edits[{number}].file")


def _python(document: Document, text: str, path: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError as problem:
        document.fail(f"not valid Python: {problem.msg}", path, why=(problem.text or "").strip())


def _one_statement(document: Document, text: str, path: str) -> None:
    found = _python(document, text, path)
    if len(found) != 1:
        document.fail(f"exactly one statement is needed, {len(found)} found", path)


def paths_by_patch(recipe: Recipe) -> Mapping[str, PatchFile]:
    """File -> the patch of the series that changes it."""
    return {file: patch for patch in recipe.patches for file in patch.files}
