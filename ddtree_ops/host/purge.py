"""The verb ``purge``: remove our own state folder, once nothing on the host depends on it."""

from __future__ import annotations

import os
import shutil
from typing import List

from . import deployments, durable, entry, gitrun, locks
from .look import names_in
from .ops import Params, Work, absolute
from .protocol import Emit, HostError, verb

_FOLDERS = ("releases", "snapshots", "secrets", "lock.new", "cache", "services", "run")
_FILES = ("hashcache.json", "deployment.json")
_OURS = "ddtree-ops@localhost"


@verb("purge")
def purge(params: Params, emit: Emit) -> Params:
    """Remove trees, snapshots, caches, secrets and journals; the state folder too when it is empty then.

    Params: ``state_root``, ``who``; ``keep_journal``; ``force`` (also trees with their owner's own edits). Only names
    that we make are touched. Result: ``removed``, ``freed`` (bytes), ``left`` (what stays in the folder). Raises
    ``deployed`` while a deployment is there, ``edited`` for trees with edits.
    """
    state_root = absolute(params, "state_root")
    if not os.path.isdir(state_root):
        return {"removed": [], "freed": 0, "left": [], "nothing": True}
    entry.check(state_root)
    if deployments.read(state_root) is not None:
        raise HostError(
            "deployed", "a deployment runs from there", where=state_root, next="ddtree-ops rollback, then purge"
        )
    work = Work(state_root, "purge", emit)
    entry.enter(state_root, "purge", params)
    try:
        edited = [] if params.get("force") else _edited(work)
        if edited:
            raise HostError(
                "edited",
                "somebody worked in %s" % ", ".join(edited),
                where=edited[0],
                next="save that work, or ddtree-ops purge --force",
                details={"trees": edited},
            )
        names = [*_FOLDERS, *_FILES] + ([] if params.get("keep_journal") else ["journal"])
        paths = [os.path.join(state_root, name) for name in names if os.path.lexists(os.path.join(state_root, name))]
        freed = sum(_size(path) for path in paths)
        for done, path in enumerate(paths):
            work.progress("purge", path, done, len(paths))
            shutil.rmtree(path) if os.path.isdir(path) else durable.discard(path)
    finally:
        shutil.rmtree(work.snapshots, ignore_errors=True)
        locks.release(state_root)
    durable.discard(os.path.join(state_root, "lock.guard"))
    left = names_in(state_root)
    if not left:
        os.rmdir(state_root)
    return {"removed": paths, "freed": freed, "left": left, "nothing": not paths}


def _edited(work: Work) -> List[str]:
    """Trees with uncommitted changes, or with a newest commit that is not ours."""
    executable = gitrun.find()
    found = []
    for name in names_in(work.releases):
        folder = os.path.join(work.releases, name)
        if not executable or not os.path.isdir(os.path.join(folder, ".git")):
            continue
        git = gitrun.Git(work, folder, executable)
        status = git.ask("status", "--porcelain", "--untracked-files=all")
        author = git.ask("log", "-1", "--format=%ae")
        if status.text().strip() or author.text().strip() != _OURS:
            found.append(folder)
    return found


def _size(path: str) -> int:
    total = os.lstat(path).st_size
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            status = os.lstat(os.path.join(folder, name))
            total += status.st_size if status.st_nlink == 1 or os.path.isdir(os.path.join(folder, name)) else 0
    return total
