"""State of git work trees, read without a trace: no index refresh, no hooks, no filters, no network, no config written.

A repository can name programs that git runs (fsmonitor, hooks, clean filters, pagers); facts are gathered as root, so
all of them are switched off by environment, which outranks the repository's own configuration. ``safe.directory``
comes the same way, so that a work tree of another user can be read, and is reported as ownership trouble.
"""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from . import commands
from .look import Fact, Look, owner_of, read_text

_SETTINGS = (
    ("safe.directory", "*"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.hooksPath", "/dev/null"),
    ("core.pager", "cat"),
    ("protocol.allow", "never"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("core.quotePath", "false"),
)


def environment(settings: Tuple[Tuple[str, str], ...] = ()) -> Dict[str, str]:
    """The environment under which every git of the host program reads a repository."""
    pairs = _SETTINGS + settings
    found = commands.clean_environment(
        {
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_CONFIG_COUNT": str(len(pairs)),
        }
    )
    for number, (key, value) in enumerate(pairs):
        found["GIT_CONFIG_KEY_%d" % number] = key
        found["GIT_CONFIG_VALUE_%d" % number] = value
    return found


def dot_git_above(path: str) -> str:
    """The nearest folder from ``path`` upwards with an entry ``.git`` (folder, file or link), "" when there is none."""
    folder = path
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent


def state_of(look: Look, package: str) -> Optional[Fact]:
    """model.GitState of the work tree that tracks ``package``; None when none does.

    An environment that merely lies inside some repository is not tracked by it: None.
    """
    toplevel = dot_git_above(os.path.realpath(package))
    if not toplevel:
        return None
    broken = _broken_link(toplevel)
    if broken:
        return broken
    if not commands.which("git"):
        return _without_git(toplevel)
    return _Reader(look, toplevel).read(os.path.realpath(package))


def _blank(toplevel: str) -> Fact:
    return {
        "toplevel": toplevel,
        "head": "",
        "branch": "",
        "detached": False,
        "tags": [],
        "dirty": [],
        "untracked": 0,
        "shallow": False,
        "kind": "repository",
        "ownership_trouble": False,
        "superproject": "",
        "error": "",
    }


def _git_folder(toplevel: str) -> str:
    """Where ``.git`` leads: itself, or the target that a ``.git`` file names."""
    entry = os.path.join(toplevel, ".git")
    if os.path.isdir(entry):
        return entry
    line = read_text(entry, 4096).strip()
    target = line[len("gitdir:") :].strip() if line.startswith("gitdir:") else ""
    return os.path.normpath(os.path.join(toplevel, target)) if target else ""


def kind_of(toplevel: str) -> str:
    """ "repository", "submodule" or "worktree", by where ``.git`` leads."""
    if os.path.isdir(os.path.join(toplevel, ".git")):
        return "repository"
    return "submodule" if "/modules/" in _git_folder(toplevel) else "worktree"


def _broken_link(toplevel: str) -> Optional[Fact]:
    target = _git_folder(toplevel)
    if target and os.path.isdir(target):
        return None
    state = _blank(toplevel)
    state["kind"] = kind_of(toplevel)
    state["error"] = "gitdir target missing: %s" % (target or "%s/.git names none" % toplevel)
    return state


def _without_git(toplevel: str) -> Fact:
    state = _blank(toplevel)
    state["kind"] = kind_of(toplevel)
    state["error"] = "git is not installed here: changes are unknown"
    folder = _git_folder(toplevel)
    common = os.path.normpath(os.path.join(folder, read_text(os.path.join(folder, "commondir"), 4096).strip()))
    head = read_text(os.path.join(folder, "HEAD"), 4096).strip()
    if not head.startswith("ref:"):
        state.update(head=head, detached=True)
        return state
    ref = head[4:].strip()
    state["branch"] = ref.replace("refs/heads/", "", 1)
    state["head"] = read_text(os.path.join(common, ref), 4096).strip()
    for line in read_text(os.path.join(common, "packed-refs"), 4 << 20).splitlines():
        if not state["head"] and line.endswith(" " + ref):
            state["head"] = line.split(" ")[0]
    return state


class _Reader:
    def __init__(self, look: Look, toplevel: str) -> None:
        self.look = look
        self.toplevel = toplevel
        self.env = environment()

    def git(self, *words: str) -> commands.Ran:
        argv = ["git", "--no-optional-locks", "--no-pager", *words]
        return commands.run(argv, timeout=self.look.left(10.0), cwd=self.toplevel, env=self.env)

    def read(self, package: str) -> Optional[Fact]:
        self._switch_off_filters()
        inside = os.path.relpath(package, self.toplevel)
        listed = self.git("ls-files", "-z", "--", inside + "/__init__.py")
        state = _blank(self.toplevel)
        state["kind"] = kind_of(self.toplevel)
        state["ownership_trouble"] = self._foreign()
        if not listed.ok:
            state["error"] = listed.complaint()
            return state
        if not listed.out:
            return None
        self._status(state)
        self._tags_and_kind(state)
        return state

    def _switch_off_filters(self) -> None:
        named = self.git("config", "--null", "--name-only", "--get-regexp", r"^filter\..*\.(clean|smudge|process)$")
        keys = [key for key in named.text().split("\0") if key.startswith("filter.")]
        if keys:
            self.env = environment(tuple((key, "") for key in dict.fromkeys(keys)))

    def _foreign(self) -> bool:
        places = (self.toplevel, os.path.join(self.toplevel, ".git"), _git_folder(self.toplevel))
        allowed = {os.geteuid()}
        if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdigit():
            allowed.add(int(os.environ["SUDO_UID"]))
        return any(owner_of(place)[0] not in allowed for place in places)

    def _status(self, state: Fact) -> None:
        ran = self.git(
            "status",
            "--porcelain=v2",
            "--branch",
            "-z",
            "--untracked-files=normal",
            "--ignore-submodules=dirty",
            "--no-renames",
        )
        if not ran.ok:
            state["error"] = ran.complaint()
            return
        for item in ran.text().split("\0"):
            if item.startswith("# branch.oid "):
                oid = item.split(" ", 2)[2]
                state["head"] = "" if oid == "(initial)" else oid
            elif item.startswith("# branch.head "):
                name = item.split(" ", 2)[2]
                state["detached"] = name == "(detached)"
                state["branch"] = "" if state["detached"] else name
            elif item.startswith("1 "):
                state["dirty"].append(item.split(" ", 8)[8])
            elif item.startswith("u "):
                state["dirty"].append(item.split(" ", 10)[10])
            elif item.startswith("? "):
                state["untracked"] += 1

    def _tags_and_kind(self, state: Fact) -> None:
        if state["head"]:
            state["tags"] = self.git("tag", "--points-at", "HEAD").lines()
        ran = self.git("rev-parse", "--is-shallow-repository", "--show-superproject-working-tree")
        lines = ran.lines()
        state["shallow"] = lines[:1] == ["true"]
        if len(lines) > 1:
            state.update(kind="submodule", superproject=lines[1])


def describe_dirty(dirty: List[str]) -> str:
    """The changed paths in a few words."""
    names = [os.path.basename(path) for path in dirty]
    return ", ".join(names[:3]) + (" and %d more" % (len(names) - 3) if len(names) > 3 else "")
