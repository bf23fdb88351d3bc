"""A series: the recipe's result on one release, as git-format patches with everything that recognises and guards it.

    patches/sglang-<release>/
        series.yaml         what it was made from and what it makes: hashes before and after, per file and per patch
        NNNN-<slug>.patch   for people, ``git am`` and for us: applied in memory, exactly, never with fuzz

No file of SGLang is kept beside the few context lines in the hunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from ..errors import AnchorNotFound, PatchDamaged
from . import anchors, checks, gitpatch
from .gitdiff import FileDiff, added_removed, mail
from .recipe import Family, Recipe, paths_by_patch
from .strict import read_document
from .text import sha256
from .trees import Tree, content_hash, counts

META = "series.yaml"
_RESTORE = "restore patches/ from the release of ddtree-ops, or make the series again: ddtree-ops patch create"


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: immutable, strict about unknown keys."""


class Base(Value, frozen=True, kw_only=True):
    """The pristine tree that the series was made from: ``trees.content_hash`` over that many source files."""

    content_hash: str
    files: int


class FileState(Value, frozen=True, kw_only=True):
    """One of SGLang's files: SHA-256 before and after, relative to the package root."""

    path: str
    before: str
    after: str
    patch: str


class EditPlace(Value, frozen=True, kw_only=True):
    """Where an edit went: the inserted text stands before 1-based line ``line`` of the pristine file."""

    id: str
    file: str
    scope: str
    line: int
    lines: int


class PatchState(Value, frozen=True, kw_only=True):
    """One patch file: size in bytes and SHA-256."""

    name: str
    bytes: int
    sha256: str
    insertions: int


class Meta(Value, frozen=True, kw_only=True):
    """``series.yaml``; ``digest`` is the SHA-256 of the file as it is with an empty digest."""

    schema: Literal[1]
    release: str
    family: str
    spec: Literal["v1", "v2"]
    lane: Literal["patch"]
    base: Base
    files: tuple[FileState, ...]
    identity: dict[str, str]  # further files of this release -> SHA-256
    patches: tuple[PatchState, ...]
    edits: tuple[EditPlace, ...]
    digest: str = ""


@dataclass(frozen=True)
class Series:
    """A series in memory; always complete and consistent with its own hashes."""

    meta: Meta
    patches: Mapping[str, bytes]  # name -> bytes, in order
    prefix: str  # of the package inside the patches' paths
    folder: Path | None = None

    @property
    def name(self) -> str:
        """Folder name, ``sglang-<release>``."""
        return f"sglang-{self.meta.release}"

    @property
    def hash(self) -> str:
        """One hash for the whole series: part of the build id."""
        return self.meta.digest

    @cached_property
    def file_patches(self) -> dict[str, gitpatch.FilePatch]:
        """Path relative to the package root -> its hunks."""
        found: dict[str, gitpatch.FilePatch] = {}
        for name, data in self.patches.items():
            for item in gitpatch.parse(name, data):
                relative = item.path.removeprefix(self.prefix + "/")
                if relative == item.path or relative in found:
                    raise PatchDamaged(
                        f"the patch changes {item.path}, which is not its file", where=name, next_step=_RESTORE
                    )
                found[relative] = item
        return found

    def file(self, path: str) -> FileState | None:
        """What the series says about a file; ``None`` when it does not touch it."""
        return next((item for item in self.meta.files if item.path == path), None)

    def result(self, path: str, before: bytes) -> bytes:
        """The patched file, from its pristine bytes.

        Raises:
            PatchDamaged: the bytes are not the pristine ones, or the patch does not give the recorded result.
        """
        state = self.file(path)
        if state is None or sha256(before) != state.before:
            raise PatchDamaged(f"{path} is not the base of {self.name}", where=path, next_step=_RESTORE)
        after = self.file_patches[path].apply(before)
        if sha256(after) != state.after:
            raise PatchDamaged(
                f"the patch gives another {path} than recorded",
                where=str(self.folder or self.name),
                why=f"expected {state.after[:12]}, got {sha256(after)[:12]}",
                next_step=_RESTORE,
            )
        return after


def choose_family(recipe: Recipe, files: Mapping[str, bytes]) -> Family:
    """The one family whose probes all hold in these files.

    Raises:
        AnchorNotFound: none fits, or more than one; with the first failing probe of each.
    """
    failing = {family.id: first_failing(family, files) for family in recipe.families}
    fitting = [family for family in recipe.families if not failing[family.id]]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise AnchorNotFound(
            "several families of the recipe fit this SGLang",
            why=", ".join(family.id for family in fitting),
            next_step="sharpen the probes in patches/recipe.yaml",
        )
    raise AnchorNotFound(
        "the recipe does not know this SGLang",
        where=recipe.package,
        why="; ".join(f"{name}: {why}" for name, why in failing.items()),
        next_step="use a release that has a series (ddtree-ops patch show); DFLASH itself needs SGLang 0.5.11 or newer",
        details={"families": failing},
    )


def first_failing(family: Family, files: Mapping[str, bytes]) -> str:
    """The first probe of the family that does not hold, with the reason; empty when all hold."""
    for probe in family.probes:
        data = files.get(probe.file)
        why = "the file is absent" if data is None else ""
        if data is not None:
            try:
                source = anchors.Source(probe.file, data)
                scope, name = anchors.find_scope(source, probe)
                if probe.statement:
                    anchors.find_statement(source, probe, scope, name)
            except AnchorNotFound as absent:
                why = absent.why
        if probe.present == bool(why):
            return f"{probe}: {why}" if probe.present else f"{probe} exists"
    return ""


@dataclass(frozen=True)
class Made:
    """What the recipe makes of one file."""

    before: bytes
    after: bytes
    edits: tuple[EditPlace, ...]


def make_files(recipe: Recipe, family: Family, files: Mapping[str, bytes]) -> dict[str, Made]:
    """Resolve a family's edits on these files and check the result; nothing is written.

    Raises:
        AnchorNotFound: an anchor (or a whole file) is missing.
        PatchConflict: an edit's own check does not hold afterwards.
    """
    made: dict[str, Made] = {}
    edits = recipe.edits_of(family)
    for path in dict.fromkeys(edit.file for edit in edits):
        own = [edit for edit in edits if edit.file == path]
        if path not in files:
            raise AnchorNotFound(
                f"{path} does not exist in this SGLang",
                where=path,
                why=f"the edits {', '.join(edit.id for edit in own)} go there",
                next_step="compare with the supported releases: ddtree-ops patch check",
            )
        source = anchors.Source(path, files[path])
        placed = [anchors.place(source, edit) for edit in own]
        after = anchors.insert(source, placed)
        checks.require(anchors.Source(path, after), own, "recipe's edits")
        places = tuple(
            EditPlace(id=item.edit, file=path, scope=item.site.scope, line=item.site.line + 1, lines=len(item.lines))
            for item in placed
        )
        made[path] = Made(files[path], after, places)
    return made


def make_git_series(recipe: Recipe, tree: Tree, release: str = "") -> Series:
    """Make the series of a pristine tree; deterministic, byte for byte.

    Raises:
        AnchorNotFound, PatchConflict: the recipe does not fit.
        Refused: the tree is not pristine.
    """
    files = tree.pristine(tuple(dict.fromkeys(edit.file for edit in recipe.edits)))
    family = choose_family(recipe, files)
    made = make_files(recipe, family, files)
    owner = paths_by_patch(recipe)
    groups = [(patch, [path for path in patch.files if path in made]) for patch in recipe.patches]
    groups = [(patch, paths) for patch, paths in groups if paths]
    patches: dict[str, bytes] = {}
    states: list[PatchState] = []
    for number, (patch, paths) in enumerate(groups, start=1):
        diffs = [FileDiff(f"{recipe.repository_prefix}/{path}", made[path].before, made[path].after) for path in paths]
        data = mail(
            subject=patch.subject,
            body=patch.body,
            author=recipe.author,
            date=recipe.date,
            number=number,
            total=len(groups),
            changes=diffs,
        )
        name = f"{number:04d}-{patch.slug}.patch"
        patches[name] = data
        added = sum(added_removed(item)[0] for item in diffs)
        states.append(PatchState(name=name, bytes=len(data), sha256=sha256(data), insertions=added))
    names = {patch.slug: name for (patch, _), name in zip(groups, patches, strict=True)}
    hashes = tree.hashes()
    meta = Meta(
        schema=1,
        release=release or tree.version,
        family=family.id,
        spec=family.spec,
        lane="patch",
        base=Base(content_hash=content_hash(hashes), files=sum(map(counts, hashes))),
        files=tuple(
            FileState(path=path, before=sha256(m.before), after=sha256(m.after), patch=names[owner[path].slug])
            for path, m in made.items()
        ),
        identity={path: sha256(data) for path, data in tree.pristine(recipe.identity).items()},
        patches=tuple(states),
        edits=tuple(place for m in made.values() for place in m.edits),
    )
    meta = msgspec.structs.replace(meta, digest=_digest(meta))
    return Series(meta, patches, recipe.repository_prefix)


def series_files(series: Series) -> dict[str, bytes]:
    """The files of a series folder: name -> bytes."""
    return {META: _yaml(series.meta), **series.patches}


def load_series(folder: Path, prefix: str = "python/sglang") -> Series:
    """Read a series and prove that it is whole: digest, sizes, hashes, every hunk.

    Raises:
        PatchDamaged: anything is missing, extra, cut, converted or changed.
    """
    document = read_document(folder / META, PatchDamaged)
    meta = document.convert(Meta)
    if _digest(meta) != meta.digest:
        document.fail("series.yaml was changed after it was made", "$.digest", next_step=_RESTORE)
    expected = {state.name for state in meta.patches}
    extra = sorted({path.name for path in folder.glob("*.patch")} - expected)
    if extra:
        raise PatchDamaged(
            f"{extra[0]} is not part of the series", where=str(folder / extra[0]), next_step="remove it, or " + _RESTORE
        )
    patches: dict[str, bytes] = {}
    for state in meta.patches:
        file = folder / state.name
        if not file.is_file():
            raise PatchDamaged(f"{state.name} is missing", where=str(file), next_step=_RESTORE)
        patches[state.name] = _verified(file, state)
    series = Series(meta, patches, prefix, folder)
    if set(series.file_patches) != {item.path for item in meta.files}:
        raise PatchDamaged("the patches change other files than recorded", where=str(folder), next_step=_RESTORE)
    return series


def _verified(file: Path, state: PatchState) -> bytes:
    data = file.read_bytes()
    if sha256(data) == state.sha256:
        gitpatch.parse(str(file), data)
        return data
    if b"\r\n" in data:
        why = "it has CRLF line endings; a checkout or an editor rewrote it (.gitattributes: *.patch -text)"
    elif not data.endswith(b"\n"):
        why = f"it has no final newline ({len(data)} of {state.bytes} bytes): the end is missing"
    elif len(data) < state.bytes:
        why = f"{state.bytes - len(data)} of {state.bytes} bytes are missing"
    else:
        why = f"its content changed (SHA-256 {sha256(data)[:12]}, recorded {state.sha256[:12]})"
    raise PatchDamaged(f"{state.name} is damaged", where=str(file), why=why, next_step=_RESTORE)


def _yaml(meta: Meta) -> bytes:
    data = msgspec.to_builtins(meta)
    text = yaml.safe_dump(data, sort_keys=False, width=120, allow_unicode=True, default_flow_style=False)
    return ("# Made by `ddtree-ops patch create`; do not edit.\n" + text).encode()


def _digest(meta: Meta) -> str:
    return sha256(_yaml(msgspec.structs.replace(meta, digest="")))
