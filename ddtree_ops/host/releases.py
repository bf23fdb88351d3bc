"""Release trees under the state root: staged beside their place, complete when they appear, kept for their owner."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, Dict

from . import deployments, durable
from .ops import Params, Tx, Work, undoer
from .protocol import HostError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,120}\Z")

PYPROJECT = """\
# Written by ddtree-ops. An editable install from here needs no network, no setuptools and no compiler.
[build-system]
requires = []
build-backend = "ddtree_backend"
backend-path = ["."]
"""


def path_of(work: Work, release_id: str) -> str:
    """The folder of a release. Raises ``bad_params`` for an identifier that is no plain name."""
    if not _ID.match(release_id):
        raise HostError("bad_params", "%r cannot name a release" % release_id, exit=1)
    return os.path.join(work.releases, release_id)


def deployed(work: Work, folder: str) -> bool:
    """The current deployment runs from ``folder``."""
    deployment = deployments.read(work.state_root) or {}
    tree = str(deployment.get("tree") or "")
    return tree == folder or tree.startswith(folder + "/")


def keeps(work: Work, path: str) -> bool:
    """The way back of a finished run leaves ``path`` alone: it lies in a tree, which stays until purge."""
    return work.committed and path.startswith(work.releases + "/")


def stage(tx: Tx, folder: str) -> str:
    """An empty folder to build the release ``folder`` in; a former release of that name is set aside, not deleted."""
    if os.path.lexists(folder):
        aside = "%s.was-%s" % (folder, tx.run_id)
        tx.will("put_back", {"path": folder, "aside": aside}, "set %s aside" % os.path.basename(folder))
        os.rename(folder, aside)
    staging = os.path.join(tx.releases, ".%s.%s" % (os.path.basename(folder), tx.run_id))
    tx.will("remove_release", {"path": folder}, "create %s" % folder)
    tx.will("remove_release", {"path": staging}, "build in %s" % staging)
    shutil.rmtree(staging, ignore_errors=True)  # of an attempt in this very run that failed
    os.makedirs(staging, 0o755)
    return staging


def publish(staging: str, folder: str) -> None:
    """Give the staged tree its name. It is flushed with everything else before the run counts as committed."""
    os.rename(staging, folder)


def write_build_files(folder: str, sources: str, metadata: Dict[str, bytes]) -> None:
    """What makes ``folder`` installable: backend, pyproject, the copy's own metadata. ``sources`` is relative to it."""
    from . import editable_backend

    text = editable_backend.__loader__.get_source(editable_backend.__name__)  # type: ignore[union-attr]
    files = {
        "pyproject.toml": PYPROJECT.encode("ascii"),
        "ddtree_backend.py": str(text).encode("utf-8"),
        "editable.json": json.dumps({"sources": sources}).encode("ascii") + b"\n",
    }
    files.update(metadata)
    os.makedirs(folder, 0o755, exist_ok=True)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as handle:
            handle.write(data)


def describe(folder: str, facts: Params) -> None:
    """``release.json``: what this tree was made from."""
    with open(os.path.join(folder, "release.json"), "w", encoding="ascii") as handle:
        json.dump(facts, handle, ensure_ascii=True, indent=1, sort_keys=True)
        handle.write("\n")


def read(folder: str) -> Dict[str, Any]:
    """``release.json`` of a tree, {} when it has none."""
    return dict(durable.read_json(os.path.join(folder, "release.json"), {}) or {})


@undoer("remove_release")
def remove_release(work: Work, data: Params) -> None:
    """Remove a tree of this run. After a finished run it stays, with whatever its owner did in it, until purge."""
    path = str(data["path"])
    if os.path.dirname(path) != work.releases:
        raise HostError("bad_undo", "this is no release of ours", where=path, exit=7)
    if not os.path.lexists(path):
        return
    if keeps(work, path) and os.path.isfile(os.path.join(path, "release.json")):
        work.notes.append("kept until purge: %s" % path)
        return
    shutil.rmtree(path)


@undoer("put_back")
def put_back(work: Work, data: Params) -> None:
    """Give a tree that was set aside its name again."""
    if not os.path.lexists(data["aside"]):
        return
    if os.path.lexists(data["path"]):
        work.notes.append("kept until purge: %s" % data["aside"])
    else:
        os.rename(data["aside"], data["path"])
