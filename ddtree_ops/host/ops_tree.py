"""Operation ``derive_tree``: a new source tree from the installed copy that really runs."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Tuple

from . import installed, packages, preflight, releases, treecopy
from .look import PACKAGE
from .ops import Params, Tx, absolute, need, op
from .protocol import HostError

_SHOWN = 50


@op("derive_tree")
def derive_tree(tx: Tx, params: Params) -> Params:
    """Copy the installed package into ``<state_root>/releases/<release_id>/python/src/sglang``.

    Params: ``release_id, package_dir``; ``dist_info`` (needed when several claim the package), ``content_hash`` and
    ``expected`` (relative path -> sha256) of the copy that the plan was made for, ``release`` (SGLang's, for
    release.json).

    Result: ``tree`` (the folder with pyproject.toml), ``release``, ``package_dir``, ``source``, ``version``,
    ``content_hash``, ``files``, ``bytes``, ``reused``; against RECORD: ``modified`` (copied as they are),
    ``unrecorded`` (copied too), ``missing``; and ``left_out`` (recorded outside the package), ``bytecode``
    (not copied).
    """
    folder = releases.path_of(tx, str(need(params, "release_id")))
    package = absolute(params, "package_dir")
    if not os.path.isfile(os.path.join(package, "__init__.py")):
        raise HostError("no_package", "there is no package to derive from", where=package)
    dist_info = str(params.get("dist_info") or "") or only_metadata([os.path.dirname(package)])
    if releases.deployed(tx, folder):
        return reuse(folder)
    what = treecopy.listing(package)
    # The copy, its objects in git (about a third), and room to breathe.
    preflight.space(tx.state_root, int(what.size * 1.5) + (64 << 20), 3 * len(what.files))
    staging = releases.stage(tx, folder)
    hashes = treecopy.copy(tx, what, package, os.path.join(staging, "python", "src", PACKAGE), "derive")
    check_expected(hashes, params, package)
    record = check_record(dist_info, hashes)
    version = packages.version_in(dist_info) or ""
    releases.write_build_files(os.path.join(staging, "python"), "src", metadata_of(dist_info))
    write_ignore(staging)
    facts = {
        "strategy": "derive",
        "release_id": os.path.basename(folder),
        "version": version,
        "source": package,
        "dist_info": dist_info,
        "content_hash": treecopy.content_hash(hashes),
        "files": len(hashes),
        "bytes": what.size,
        "modified": record.modified,
        "unrecorded": record.unrecorded,
        "missing": record.missing,
    }
    releases.describe(staging, {**facts, "release": params.get("release"), "created": time.time()})
    releases.publish(staging, folder)
    return {
        **paths_of(folder, "src"),
        **facts,
        "modified": record.modified[:_SHOWN],
        "unrecorded": record.unrecorded[:_SHOWN],
        "missing": record.missing[:_SHOWN],
        "left_out": record.elsewhere[:_SHOWN],
        "odd": list(what.odd),
        "bytecode": what.bytecode,
        "reused": False,
    }


class Record(NamedTuple):
    """RECORD against what was copied; sorted relative paths."""

    modified: List[str]
    unrecorded: List[str]
    missing: List[str]
    elsewhere: List[str]


def check_record(dist_info: str, hashes: Dict[str, str]) -> Record:
    """Compare the package's files with RECORD of ``dist_info``."""
    rows = packages.read_record(dist_info)
    own = packages.package_rows(rows)
    inside = (PACKAGE + "/", os.path.basename(dist_info) + "/")
    return Record(
        modified=sorted(path for path, row in own.items() if row.sha256 and hashes.get(path, row.sha256) != row.sha256),
        unrecorded=sorted(path for path in hashes if path not in own),
        missing=sorted(path for path in own if path not in hashes),
        elsewhere=sorted(path for path in rows if not path.startswith(inside) and not path.endswith(".pyc")),
    )


def metadata_of(dist_info: str) -> Dict[str, bytes]:
    """METADATA and entry_points.txt as they are. Raises ``no_metadata`` when there is no METADATA."""
    files: Dict[str, bytes] = {}
    for name in ("METADATA", "entry_points.txt"):
        try:
            with open(os.path.join(dist_info, name), "rb") as handle:
                files[name] = handle.read()
        except FileNotFoundError:
            pass
    if "METADATA" not in files:
        raise HostError("no_metadata", "the installed copy has no METADATA", where=dist_info)
    return files


def write_ignore(folder: str) -> None:
    """``.gitignore`` of a derived tree."""
    with open(os.path.join(folder, ".gitignore"), "w", encoding="ascii") as handle:
        handle.write("__pycache__/\n")


def paths_of(folder: str, sources: str, build: str = "python") -> Dict[str, Any]:
    """The result's paths: ``release``, ``tree`` (to be installed), ``package_dir``."""
    tree = os.path.join(folder, build)
    package = os.path.normpath(os.path.join(tree, sources, PACKAGE))
    return {"release": folder, "tree": tree, "package_dir": package}


def only_metadata(sites: Iterable[str]) -> str:
    """The one metadata folder of SGLang in ``sites``. Raises ``ambiguous_metadata``."""
    found = [folder for site in sites for folder in installed.metadata_folders(site)]
    if len(found) != 1:
        raise HostError(
            "ambiguous_metadata",
            "%d metadata folders claim sglang" % len(found),
            where=", ".join(sites),
            next="name the right one (dist_info)",
            details={"found": found},
        )
    return found[0]


def check_expected(hashes: Dict[str, str], params: Params, package: str) -> None:
    """Raise ``host_moved`` when the copy is not the one that the plan was made for."""
    wanted: List[Tuple[str, str]] = sorted(dict(params.get("expected") or {}).items())
    moved = [path for path, digest in wanted if hashes.get(path, "") != digest]
    if params.get("content_hash") and treecopy.content_hash(hashes) != params["content_hash"]:
        moved.append("(content hash of all sources)")
    if moved:
        raise HostError(
            "host_moved",
            "the installed copy is no longer what the plan was made for: %s" % ", ".join(moved[:5]),
            where=package,
            next="plan again",
            exit=5,
            details={"files": moved[:_SHOWN]},
        )


def reuse(folder: str) -> Params:
    """The result for a tree that is deployed already: it is in use, so it is left as it is."""
    facts = releases.read(folder)
    if not facts:
        raise HostError("no_release", "the deployed tree has no release.json", where=folder, next="roll back first")
    build, sources = ("python", "src") if facts.get("strategy") == "derive" else ("editable", str(facts.get("sources")))
    return {**facts, **paths_of(folder, sources, build), "bytecode": 0, "left_out": [], "odd": [], "reused": True}
