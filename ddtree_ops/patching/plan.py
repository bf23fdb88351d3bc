"""From the host's bytes to the patched bytes, in memory: recorded result, merge, or a refusal that shows why.

Pure: no network, no files written. Every touched file has a result that passes all checks, or there is no result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NoReturn

from ..errors import AnchorNotFound, ConfigError, DdtreeError, PatchConflict, Refused
from . import anchors, checks, merge
from .gitdiff import FileDiff, unified
from .recipe import Edit, Family, Recipe
from .series import META, EditPlace, Series, choose_family, load_series
from .states import FileStatus, classify
from .text import sha256, show, to_lf

How = Literal["recorded", "merged", "created"]
Outcome = Literal["NOOP", "APPLY", "MERGE", "REFUSE"]
CONTEXT = 3  # lines on each side of an insertion that must be as the series recorded them


@dataclass(frozen=True)
class FileChange:
    """One of SGLang's files that changes; ``how``: the series' recorded result, merged with local edits, or made by the
    recipe on content that no series knows."""

    path: str
    before_sha: str
    after_sha: str
    after_bytes: bytes = field(repr=False)
    how: How


@dataclass(frozen=True)
class PatchPlan:
    """The patch for one host: complete, checked, ready to be written. No changes means that it is already there."""

    series: str
    family: str
    spec: Literal["v1", "v2"]
    changes: tuple[FileChange, ...]
    statuses: tuple[FileStatus, ...]
    diff: str = field(repr=False)
    after: Mapping[str, str]  # every touched file -> SHA-256 that it has in the end

    @property
    def noop(self) -> bool:
        """Whether every touched file is already patched."""
        return not self.changes

    @property
    def hash(self) -> str:
        """SHA-256 over the touched files' resulting hashes; stands for the series in a build id where there is none, or
        where local edits were merged."""
        lines = (f"{path}\0{digest}\n" for path, digest in sorted(self.after.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True)
class Decision:
    """A whole-series decision with its table; ``plan`` unless it is a refusal, then ``error``."""

    outcome: Outcome
    statuses: tuple[FileStatus, ...]
    plan: PatchPlan | None
    error: DdtreeError | None


def select_series(patches_dir: Path | str, anchors: Mapping[str, str | None]) -> Series | None:
    """The committed series whose files these are, by content.

    ``anchors`` maps paths relative to the package root to SHA-256, ``None`` for absent. A file counts for a series when
    its hash is the recorded one, before or after the patch. The series with the most such files wins; with none, or two
    equally good, the answer is ``None``.

    Raises:
        PatchDamaged: a series in the folder is damaged.
    """
    scores = {series.name: (_score(series, anchors), series) for series in load_all(patches_dir)}
    ranked = sorted(scores.values(), key=lambda item: item[0], reverse=True)
    if not ranked or ranked[0][0] == 0 or (len(ranked) > 1 and ranked[1][0] == ranked[0][0]):
        return None
    return ranked[0][1]


def load_all(patches_dir: Path | str) -> list[Series]:
    """Every series under a folder, by name."""
    root = Path(patches_dir)
    if not root.is_dir():
        raise ConfigError("no folder with patches", where=str(root), next_step="name a folder that has recipe.yaml")
    return [load_series(folder) for folder in sorted(root.glob("sglang-*")) if (folder / META).is_file()]


def plan_patch(
    recipe: Recipe,
    series: Series | None,
    files: Mapping[str, bytes],
    *,
    base: Mapping[str, bytes] | None = None,
) -> PatchPlan:
    """The patch for a host's files.

    ``files`` holds the host's bytes of ``touched_paths`` (absent ones left out). ``base`` holds pristine bytes of the
    series' release where the caller has them (the tag's blob in a checkout, another pristine copy on the host); a file
    with local edits is then merged three-way. Without them the edits are made at their anchors in the host's own file,
    provided that the lines around each are the recorded ones.

    Raises:
        PatchConflict: local edits and the patch meet; details hold ``file, function, line, base, ours, theirs``.
        AnchorNotFound: the recipe does not fit these files.
        Refused: another version of the patch, or another DDTREE, is in the files.
    """
    family = recipe.family(series.meta.family) if series is not None else choose_family(recipe, files)
    edits = recipe.edits_of(family)
    by_file = {path: [e for e in edits if e.file == path] for path in dict.fromkeys(e.file for e in edits)}
    statuses = tuple(classify(recipe, series, path, files.get(path), own) for path, own in by_file.items())
    _refuse(recipe, statuses)
    changes: list[FileChange] = []
    conflicts: list[PatchConflict] = []
    for status in statuses:
        if status.state == "patched":
            continue
        try:
            changes.append(_change(series, status, files[status.path], by_file[status.path], base or {}))
        except PatchConflict as conflict:
            conflicts.append(conflict)
    if conflicts:
        conflicts[0].details["files"] = [dict(conflict.details) for conflict in conflicts]
        raise conflicts[0]
    return _plan(recipe, series, family, files, changes, statuses)


def decide(
    recipe: Recipe,
    series: Series | None,
    files: Mapping[str, bytes],
    *,
    base: Mapping[str, bytes] | None = None,
) -> Decision:
    """The same as :func:`plan_patch`, with a refusal as a value and the state of every file."""
    try:
        plan = plan_patch(recipe, series, files, base=base)
    except (PatchConflict, AnchorNotFound, Refused) as error:
        edits = recipe.edits_of(recipe.family(series.meta.family)) if series is not None else ()
        paths = dict.fromkeys(edit.file for edit in edits)
        rows = (classify(recipe, series, p, files.get(p), [e for e in edits if e.file == p]) for p in paths)
        return Decision("REFUSE", tuple(rows), None, error)
    if plan.noop:
        return Decision("NOOP", plan.statuses, plan, None)
    merged = any(change.how != "recorded" for change in plan.changes)
    return Decision("MERGE" if merged else "APPLY", plan.statuses, plan, None)


def _change(
    series: Series | None, status: FileStatus, ours: bytes, edits: Sequence[Edit], base: Mapping[str, bytes]
) -> FileChange:
    path = status.path
    pristine = _pristine(series, path, ours, base)
    how: How = "merged"
    if series is not None and status.state == "pristine":
        after, how = series.result(path, ours), "recorded"
    elif series is not None and pristine is not None:
        after = merge.merge_file(path, pristine, ours, series.result(path, pristine))
    elif series is not None:
        after = _at_anchors(series, path, ours, edits)
    else:
        source = anchors.Source(path, ours)
        after, how = anchors.insert(source, [anchors.place(source, edit) for edit in edits]), "created"
    origin = {"recorded": "recorded patch", "merged": "merge", "created": "recipe's edits"}[how]
    checks.require(anchors.Source(path, after), edits, origin)
    return FileChange(path, sha256(ours), sha256(after), after, how)


def _pristine(series: Series | None, path: str, ours: bytes, base: Mapping[str, bytes]) -> bytes | None:
    """The series' base of a file, when somebody has it: only bytes with the recorded hash count."""
    recorded = series.file(path) if series is not None else None
    if recorded is None:
        return None
    candidates = (ours, *([base[path]] if path in base else []))
    return next((data for data in candidates if sha256(data) == recorded.before), None)


def _at_anchors(series: Series, path: str, ours: bytes, edits: Sequence[Edit]) -> bytes:
    """Make the edits in the host's own file where the lines around each are the recorded ones."""
    source = anchors.Source(path, ours)
    places = {place.id: place for place in series.meta.edits}
    insertions = []
    for edit in edits:
        recorded = _recorded(series, places[edit.id])
        try:
            insertion = anchors.place(source, edit)
        except AnchorNotFound as absent:
            _anchor_changed(source, edit, recorded, absent)
        _require_context(source, edit, insertion, recorded)
        insertions.append(insertion)
    return anchors.insert(source, insertions)


@dataclass(frozen=True)
class _Context:
    """Recorded lines before and after an insertion, from the series' own hunks."""

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


def _recorded(series: Series, place: EditPlace) -> _Context:
    known = series.file_patches[place.file].old_lines()
    line = place.line - 1
    before = tuple(known[i] for i in range(line - CONTEXT, line) if i in known)
    after = tuple(known[i] for i in range(line, line + CONTEXT) if i in known)
    return _Context(before, after)


def _require_context(source: anchors.Source, edit: Edit, insertion: anchors.Insertion, recorded: _Context) -> None:
    line = insertion.site.line
    start, stop = line - len(recorded.before), line + len(recorded.after)
    around = source.lines[max(start, 0) : stop]
    expected = (*recorded.before, *recorded.after)
    if start >= 0 and [to_lf(row) for row in around] == list(expected):
        return
    raise _conflict(source, edit, recorded, around, insertion.lines, max(start, 0) + 1, insertion.site.scope)


def _anchor_changed(source: anchors.Source, edit: Edit, recorded: _Context, absent: AnchorNotFound) -> NoReturn:
    """The anchored statement itself is gone: show the lines of its function that look most like the recorded ones."""
    scope, name = anchors.find_scope(source, edit)
    first = int(getattr(scope, "lineno", 1)) - 1
    last = int(getattr(scope, "end_lineno", None) or len(source.lines))
    expected = (*recorded.before, *recorded.after)
    start = max(range(first, last), key=lambda row: _likeness(source.lines[row:last], expected), default=first)
    around = source.lines[start : start + len(expected)]
    conflict = _conflict(
        source, edit, recorded, around, anchors.render(edit, _site(source, name, recorded)), start + 1, name
    )
    conflict.why = absent.why
    raise conflict from absent


def _likeness(lines: Sequence[bytes], expected: Sequence[bytes]) -> int:
    return sum(to_lf(a) == b for a, b in zip(lines, expected, strict=False) if b.strip())


def _site(source: anchors.Source, scope: str, recorded: _Context) -> anchors.Site:
    near = next((row for row in (*recorded.after, *reversed(recorded.before)) if row.strip()), b"")
    return anchors.Site(source.path, scope, 0, near[: len(near) - len(near.lstrip(b" \t"))], b"\n")


def _conflict(
    source: anchors.Source,
    edit: Edit,
    recorded: _Context,
    around: Sequence[bytes],
    inserted: Sequence[bytes],
    line: int,
    scope: str,
) -> PatchConflict:
    return PatchConflict(
        f"the host's {source.path} was changed where the patch goes (edit {edit.id})",
        where=f"{source.path}:{line} in {scope}",
        why="the lines around the patch's place are not those of the release",
        next_step="nothing was changed; move the local edit away from these lines, or deploy from a pristine copy",
        details={
            "file": source.path,
            "function": scope,
            "line": line,
            "edit": edit.id,
            "base": show((*recorded.before, *recorded.after)),
            "ours": show(around),
            "theirs": show((*recorded.before, *inserted, *recorded.after)),
        },
    )


def _refuse(recipe: Recipe, statuses: Sequence[FileStatus]) -> None:
    for status in statuses:
        if status.state == "native":
            raise Refused(
                f"this SGLang already has a {recipe.algorithm}",
                where=status.path,
                why=status.detail,
                next_step=f"use it as it is (--speculative-algorithm {recipe.algorithm}), or name a copy without it",
                code="ddtree_native",
                details={"file": status.path},
            )
        if status.state == "patched-other-version":
            raise Refused(
                "another version of this patch is in the file",
                where=status.path,
                why=status.detail,
                next_step="roll the earlier deployment back first: ddtree-ops rollback",
                code="patched_other_version",
                details={"file": status.path},
            )
        if status.state == "absent":
            raise AnchorNotFound(
                f"{status.path} does not exist in this SGLang",
                where=status.path,
                why="the copy is incomplete, or of a release that the recipe does not know",
                next_step="compare with the supported releases: ddtree-ops patch check",
                details={"file": status.path},
            )


def _plan(
    recipe: Recipe,
    series: Series | None,
    family: Family,
    files: Mapping[str, bytes],
    changes: Sequence[FileChange],
    statuses: tuple[FileStatus, ...],
) -> PatchPlan:
    diffs = [
        FileDiff(f"{recipe.repository_prefix}/{change.path}", files[change.path], change.after_bytes)
        for change in changes
    ]
    name = series.name if series is not None else ""
    after = {status.path: sha256(files[status.path]) for status in statuses}
    after.update({change.path: change.after_sha for change in changes})
    return PatchPlan(name, family.id, family.spec, tuple(changes), statuses, unified(diffs), after)


def _score(series: Series, anchors: Mapping[str, str | None]) -> int:
    known = {item.path: {item.before, item.after} for item in series.meta.files}
    known.update({path: {digest} for path, digest in series.meta.identity.items()})
    return sum(anchors.get(path) in digests for path, digests in known.items())
