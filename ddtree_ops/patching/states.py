"""What one of the touched files is now, decided by its bytes: never by a version string or an exit status."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import AnchorNotFound
from . import checks
from .anchors import Source
from .payload import BUILD_FILE, Payload
from .recipe import Edit, Recipe
from .series import Series
from .text import has_crlf, sha256, to_lf

State = Literal["pristine", "patched", "patched-other-version", "modified", "native", "absent", "crlf"]

#: What each state means for a run.
ACTIONS: dict[State, str] = {
    "pristine": "the recorded result is written",
    "patched": "nothing to do",
    "patched-other-version": "refused: another version of this patch is in the file",
    "modified": "merged with the local edits, or refused",
    "native": "refused: SGLang has its own DDTREE, or a foreign one is in the file",
    "absent": "refused: the file does not exist",
    "crlf": "merged, CRLF kept",
}


@dataclass(frozen=True)
class FileStatus:
    """One touched file: state and, where it helps, why."""

    path: str
    state: State
    detail: str = ""


def classify(recipe: Recipe, series: Series | None, path: str, data: bytes | None, edits: Sequence[Edit]) -> FileStatus:
    """The state of one touched file; ``edits`` are the recipe's edits in it."""
    if data is None:
        return FileStatus(path, "absent")
    recorded = series.file(path) if series is not None else None
    digest = sha256(data)
    if recorded is not None and digest == recorded.before:
        return FileStatus(path, "pristine")
    if recorded is not None and digest == recorded.after:
        return FileStatus(path, "patched")
    try:
        tree = Source(path, data)
        applied = sum(not checks.problem(tree, edit) for edit in edits)
    except AnchorNotFound as broken:
        return FileStatus(path, "modified", broken.why)
    if applied == len(edits):
        return FileStatus(path, "patched", "with local edits" if series is not None else "")
    payload = f"{recipe.package}.{recipe.payload.target.replace('/', '.')}"
    if _imports(tree.tree, payload):
        return FileStatus(
            path, "patched-other-version", f"{applied} of {len(edits)} edits are as this version makes them"
        )
    if _names(tree.tree, recipe.algorithm):
        return FileStatus(path, "native", f"{recipe.algorithm} is defined there without {payload}")
    if recorded is not None and has_crlf(data) and sha256(to_lf(data)) == recorded.before:
        return FileStatus(path, "crlf", "pristine but for CRLF line endings")
    return FileStatus(path, "modified", "" if series is not None else "no committed series knows this content")


@dataclass(frozen=True)
class PayloadStatus:
    """The new files as they are on the host; ``files`` are those that speak for the state."""

    state: Literal["absent", "same", "other-version", "foreign"]
    files: tuple[str, ...] = ()


def payload_status(payload: Payload, present: Mapping[str, str]) -> PayloadStatus:
    """What the ``ddtree`` files on the host are; ``present`` maps paths relative to the package root to SHA-256.

    A folder with our ``_build.json`` is ours, of this version or another. Anything else at the payload's place, or a
    flat ``srt/speculative/ddtree_*.py`` as other proposals name them, is foreign and never written over.
    """
    inside = {path: digest for path, digest in present.items() if path.startswith(payload.target + "/")}
    flat = sorted(path for path in present if _flat(path, payload.target))
    if flat:
        return PayloadStatus("foreign", tuple(flat))
    wanted = {f"{payload.target}/{path}": digest for path, digest in payload.hashes.items()}
    build = f"{payload.target}/{BUILD_FILE}"
    different = {path for path in inside.keys() | wanted.keys() if inside.get(path) != wanted.get(path)} - {build}
    if not inside:
        return PayloadStatus("absent")
    if not different:
        return PayloadStatus("same")
    return PayloadStatus("other-version" if build in inside else "foreign", tuple(sorted(different)))


def _flat(path: str, target: str) -> bool:
    folder, _, name = target.rpartition("/")
    rest = path.removeprefix(folder + "/")
    return rest != path and "/" not in rest and rest.replace("_", "").startswith(name) and rest.endswith(".py")


def _imports(tree: ast.Module, package: str) -> bool:
    """Whether any import statement names the package or something in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == package or node.module.startswith(package + "."):
                return True
        elif isinstance(node, ast.Import) and any(
            alias.name == package or alias.name.startswith(package + ".") for alias in node.names
        ):
            return True
    return False


def _names(tree: ast.Module, algorithm: str) -> bool:
    """Whether a class of the module has a member called like the algorithm."""
    return any(
        isinstance(target, ast.Name) and target.id == algorithm
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )
