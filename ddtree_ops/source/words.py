"""Small phrases about copies that several messages share."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.version import InvalidVersion, Version

from ..model import Copy, Facts, GitState

_KINDS = {
    "wheel": "wheel",
    "editable-pth": "editable install (.pth)",
    "editable-finder": "editable install (import hook)",
    "editable-egg-link": "editable install (egg-link)",
    "checkout": "checkout",
    "worktree": "git worktree",
    "path": "source folder",
    "skeleton": "leftover folder without __init__.py",
    "unknown": "files without metadata",
}


def kind(copy: Copy) -> str:
    """The kind of a copy for people."""
    if copy.git is not None and copy.git.kind == "submodule":
        return "git submodule"
    return _KINDS[copy.kind]


def place(facts: Facts, copy: Copy) -> str:
    """Where a copy is, as its owner would say: the environment's prefix, the work tree's top, or the folder."""
    for interpreter in facts.interpreters:
        if copy.environment and copy.environment == interpreter.path:
            return interpreter.prefix
    if copy.git is not None:
        return copy.git.toplevel
    return copy.root


def version(copy: Copy) -> str:
    """The version by content, and what is claimed where that differs; "unknown version" when neither is known."""
    if copy.version_content and copy.version_claimed in ("", copy.version_content):
        return copy.version_content
    if copy.version_content:
        return f"{copy.version_content} (claims {copy.version_claimed})"
    return f"{copy.version_claimed} (claimed, content unknown)" if copy.version_claimed else "unknown version"


def parsed(text: str) -> Version | None:
    """A version to compare with, None when it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def is_older(copy: Copy, than: Copy) -> bool:
    """``copy`` is of an older release, as far as both versions are known."""
    mine = parsed(copy.version_content or copy.version_claimed)
    other = parsed(than.version_content or than.version_claimed)
    return mine is not None and other is not None and mine < other


def git(state: GitState) -> str:
    """A work tree's state in a few words: "main a6b2be8, 2 modified"."""
    if state.error:
        return state.error
    parts = [(state.branch or "detached") + " " + state.head[:9]]
    if state.tags:
        parts[0] += f" ({state.tags[0]})"
    if state.dirty:
        parts.append(f"{len(state.dirty)} modified")
    if state.untracked:
        parts.append(f"{state.untracked} untracked")
    parts += [text for flag, text in ((state.shallow, "shallow"), (state.ownership_trouble, "other owner")) if flag]
    return ", ".join(parts)


def count(number: int, thing: str) -> str:
    """For example "1 file", "1,204 files"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def listed(items: Iterable[str], most: int = 3) -> str:
    """Up to ``most`` items, and how many more there are."""
    names = list(items)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def names(paths: Iterable[str], most: int = 3) -> str:
    """As :func:`listed`, with the last part of each path."""
    return listed((path.rsplit("/", 1)[-1] for path in paths), most)
