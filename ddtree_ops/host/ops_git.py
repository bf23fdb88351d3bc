"""Operation ``git_commit``: our change as commits in the release's own repository, for its owner to read and go on."""

from __future__ import annotations

import os
import shutil

from . import gitrun, releases
from .ops import Params, Tx, Work, absolute, need, op, undoer
from .protocol import HostError


@op("git_commit")
def git_commit(tx: Tx, params: Params) -> Params:
    """Commit everything in a release's tree, making the repository first when it has none.

    Params: ``release`` (folder under the state root's releases), ``message``. Result: ``commit`` ("" when there was
    nothing to commit, or no git), ``head``, ``skipped`` (why, when the host has no git: the tree works without).
    """
    folder, message = absolute(params, "release"), str(need(params, "message"))
    if os.path.dirname(folder) != tx.releases:
        raise HostError("outside", "commits go to our own trees only", where=folder, exit=1)
    executable = gitrun.find()
    if not executable:
        return {"commit": "", "head": "", "skipped": "no git on the host"}
    git = gitrun.Git(tx, folder, executable)
    new = not os.path.isdir(git.git_dir)
    if new:
        tx.will("remove_repository", {"path": git.git_dir}, "git init %s" % folder)
        git.init()
    else:
        tx.will("reset_branch", {"release": folder, "head": git.head()}, "commit in %s" % folder)
    borrowed = releases.read(folder).get("strategy") == "checkout"  # its .gitignore is the project's own
    commit = git.commit_all(message, ignored=not borrowed, pack=new)
    return {"commit": commit, "head": commit or git.head(), "skipped": ""}


@undoer("remove_repository")
def remove_repository(work: Work, data: Params) -> None:
    """Remove the repository that this run made; a finished run's stays with its tree."""
    path = str(data["path"])
    if not work.committed and os.path.dirname(os.path.dirname(path)) == work.releases:
        shutil.rmtree(path, ignore_errors=True)


@undoer("reset_branch")
def reset_branch(work: Work, data: Params) -> None:
    """Let the branch name the commit that it named before; files are the business of other undo records."""
    folder, executable = str(data["release"]), gitrun.find()
    git_dir = os.path.join(folder, ".git")
    if work.committed or not executable or not data["head"] or not os.path.isdir(git_dir):
        return
    git = gitrun.Git(work, folder, executable)
    git.heal()
    git.must("update-ref", "HEAD", str(data["head"]))
    git.must("read-tree", "HEAD")
