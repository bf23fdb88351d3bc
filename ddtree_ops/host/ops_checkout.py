"""Operation ``borrow_checkout``: our own tree at the operator's commit, with the operator's edits, on borrowed objects.

Nothing is written in the checkout or its ``.git``.
"""

from __future__ import annotations

import os
import time
from typing import List

from . import gitrun, layouts, packages, preflight, releases, treecopy
from .look import read_bytes
from .ops import Params, Tx, absolute, need, op
from .ops_tree import check_expected, metadata_of, only_metadata, paths_of, reuse
from .protocol import HostError

_SHOWN = 50
_BUILD = "editable"  # python/pyproject.toml is the project's own here, so ours lies beside it


@op("borrow_checkout")
def borrow_checkout(tx: Tx, params: Params) -> Params:
    """Make ``<state_root>/releases/<release_id>`` from the checkout that really runs.

    Params: ``release_id``, ``toplevel`` (of the checkout), ``package_dir`` (in it); ``dist_info`` (metadata of the
    installed copy) or ``python`` (to find it); ``head`` (that HEAD must be); ``content_hash``, ``expected``,
    ``release`` as for ``derive_tree``.

    The new repository starts at HEAD (through ``objects/info/alternates``), then one commit with what differs on disk
    below the package: edits, deletions, new files. Files that .gitignore names (compiled modules, ``_version.py``) are
    copied and not committed. Result: as for ``derive_tree``, and ``head``, ``edits`` (``"M path"``), ``edits_commit``,
    ``compiled``.
    """
    folder = releases.path_of(tx, str(need(params, "release_id")))
    top, source = os.path.realpath(absolute(params, "toplevel")), os.path.realpath(absolute(params, "package_dir"))
    package = os.path.relpath(source, top)
    dist_info = str(params.get("dist_info") or "")
    if not dist_info:
        dist_info = only_metadata(layouts.read(tx, absolute(params, "python")).sites)
    if package.startswith("..") or not os.path.isfile(os.path.join(source, "__init__.py")):
        raise HostError("no_package", "there is no package to derive from", where=source)
    executable = gitrun.find()
    if not executable:
        raise HostError("no_git", "the host has no git, which this strategy needs", next="use the strategy derive")
    if releases.deployed(tx, folder):
        return reuse(folder)
    head = gitrun.look(tx, executable, top, "rev-parse", "--verify", "HEAD^{commit}")
    if params.get("head") not in (None, "", head):
        raise HostError(
            "host_moved",
            "the checkout is at %s, not at %s" % (head, params["head"]),
            where=top,
            next="plan again",
            exit=5,
        )
    what = treecopy.listing(source)
    preflight.space(tx.state_root, int(what.size * 1.5) + (64 << 20), 2 * len(what.files))
    staging = releases.stage(tx, folder)
    git = gitrun.Git(tx, staging, executable)
    _borrow(tx, git, executable, top, head, os.path.dirname(package))
    treecopy.remove(os.path.join(staging, package))
    hashes = treecopy.copy(tx, what, source, os.path.join(staging, package), "derive")
    check_expected(hashes, params, source)
    commit = git.commit_all("Uncommitted edits of %s" % top, package, ignored=False)
    show = ["-c", "core.quotePath=false", "diff", "--name-status", "--no-renames", head, "HEAD"]
    edits = git.must(*show).splitlines() if commit else []
    sources = os.path.relpath(os.path.join(staging, os.path.dirname(package)), os.path.join(staging, _BUILD))
    releases.write_build_files(os.path.join(staging, _BUILD), sources, metadata_of(dist_info))
    facts = {
        "strategy": "checkout",
        "release_id": os.path.basename(folder),
        "version": packages.version_in(dist_info) or "",
        "source": source,
        "dist_info": dist_info,
        "content_hash": treecopy.content_hash(hashes),
        "files": len(hashes),
        "bytes": what.size,
        "head": head,
        "edits": [line.replace("\t", " ", 1) for line in edits],
        "edits_commit": commit,
        "compiled": sorted(path for path in hashes if path.endswith(".so")),
        "sources": sources,
    }
    releases.describe(staging, {**facts, "release": params.get("release"), "created": time.time()})
    releases.publish(staging, folder)
    return {
        **paths_of(folder, sources, _BUILD),
        **facts,
        "edits": facts["edits"][:_SHOWN],  # type: ignore[index]
        "edited": len(edits),
        "odd": list(what.odd),
        "bytecode": what.bytecode,
        "reused": False,
    }


def object_folders(objects: str) -> List[str]:
    """``objects`` and every folder that it borrows from itself, absolute: git follows relative ones only one level."""
    found, pending = [], [objects]
    while pending:
        folder = os.path.realpath(pending.pop(0))
        if folder in found or not os.path.isdir(folder):
            continue
        found.append(folder)
        for line in os.fsdecode(read_bytes(os.path.join(folder, "info", "alternates"))).splitlines():
            if line and not line.startswith(("#", '"')):
                pending.append(os.path.join(folder, line))
    return found


def _borrow(tx: Tx, git: gitrun.Git, executable: str, top: str, head: str, sources: str) -> None:
    """A repository at ``head`` whose work tree holds the top-level files and the folder ``sources``."""
    common = os.path.join(top, gitrun.look(tx, executable, top, "rev-parse", "--git-common-dir"))
    git.init("sha256" if len(head) == 64 else "sha1")
    folders = object_folders(os.path.join(common, "objects"))
    _write(os.path.join(git.git_dir, "objects", "info", "alternates"), os.fsencode("\n".join(folders) + "\n"))
    shallow = read_bytes(os.path.join(common, "shallow"), 64 << 20)
    if shallow:
        _write(os.path.join(git.git_dir, "shallow"), shallow)
    own = b"/%s/\n/release.json\n__pycache__/\n" % os.fsencode(_BUILD)
    _write(
        os.path.join(git.git_dir, "info", "exclude"), read_bytes(os.path.join(common, "info", "exclude")) + b"\n" + own
    )
    git.must("update-ref", "HEAD", head)
    git.must("config", "core.sparseCheckout", "true")
    pattern = "/*\n!/*/\n/%s/\n" % sources if sources else "/*\n"
    _write(os.path.join(git.git_dir, "info", "sparse-checkout"), os.fsencode(pattern))
    git.must("read-tree", "-m", "-u", "HEAD")


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as handle:
        handle.write(data)
