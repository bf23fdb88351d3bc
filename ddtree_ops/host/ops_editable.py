"""Operation ``install_editable``: the environment imports the tree, and nothing else in it changed."""

from __future__ import annotations

import os
from typing import Dict, List, Set

from . import hashing, installed, installers, layouts, packages, preflight, roothash, snapshots, undo
from .look import names_in
from .ops import Params, Tx, Work, absolute, op, undoer
from .protocol import HostError

_SHOWN = 50


@op("install_editable")
def install_editable(tx: Tx, params: Params) -> Params:
    """Install ``tree`` (folder with pyproject.toml) editable into the environment of ``python``.

    Params: ``python`` (exact path in the environment), ``tree``; ``installer`` (``auto``, ``pip``, ``uv``, ``self``),
    ``uv`` (path). A copy that is installed editable from this very tree already is left alone.

    Result: ``method``, ``installer_version``, ``argv``, ``changed`` (False: nothing to do), ``version``, ``added``,
    ``removed``, ``modified`` (counts), ``leftovers`` (unrecorded names that were taken out and come back with the
    undo), ``pth``. Raises ``install_failed``, ``foreign_change`` (something besides SGLang changed),
    ``externally_managed``, ``no_installer``.
    """
    python, tree = absolute(params, "python"), absolute(params, "tree")
    layout = layouts.read(tx, python)
    if _is_current(layout, tree):
        return {"method": "", "changed": False, "version": _version(layout), "leftovers": [], "argv": []}
    uv = str(params.get("uv") or "") or installers.find_uv()
    method = installers.choose(layout, str(params.get("installer") or "auto"), uv)
    preflight.writable([*layout.sites, layout.scripts])
    cache = undo.cache_for(tx.state_root)
    before = _manifest(layout, cache)
    known, ours_before = installed.distributions(layout), set(installed.traces(layout))
    preflight.space(tx.state_root, snapshots.copied_bytes(tx.snapshots, ours_before))
    _promise(tx, layout, ours_before)
    done = installers.install(tx, layout, tree, method, uv)
    leftovers = installers.leftovers(layout)
    lost = [path for name in leftovers for path in snapshots.tree(name) if _unknown(path, ours_before)]
    if lost:
        raise _foreign(lost, "appeared while the tree was installed")
    installers.remove(leftovers)
    changes = _check(layout, before, ours_before, known, cache)
    if not _is_current(layout, tree):
        raise HostError(
            "install_failed", "%s ended well, but the environment does not point to the tree" % method, where=tree
        )
    words = list(changes.values())
    return {
        "method": done.method,
        "installer_version": done.version,
        "argv": done.argv,
        "changed": True,
        "version": _version(layout),
        "added": words.count("is new"),
        "removed": words.count("is missing"),
        "modified": len(words) - words.count("is new") - words.count("is missing"),
        "leftovers": leftovers[:_SHOWN],
        "pth": _pth(layout),
    }


@undoer("restore_environment")
def restore_environment(work: Work, data: Params) -> None:
    """Everything of SGLang in the environment as it was: content, modes, owners, times, links, the very inodes."""
    layout = layouts.Layout(**{**data["layout"], "sites": tuple(data["layout"]["sites"])})
    snapshots.restore(str(data["store"]), installed.traces(layout))
    snapshots.restore_times({str(path): int(mtime) for path, mtime in data["times"].items()})


def _promise(tx: Tx, layout: layouts.Layout, paths: Set[str]) -> None:
    store = snapshots.take(tx, "environment-%d" % len(tx.journal.records), paths)
    times = {path: os.stat(path).st_mtime_ns for path in [*layout.sites, layout.scripts]}
    data = {"layout": layout._asdict(), "store": store, "times": times}
    tx.will("restore_environment", data, "install into %s" % layout.prefix)


def _manifest(layout: layouts.Layout, cache: hashing.HashCache) -> roothash.Manifest:
    return roothash.measure_parts([("packages", [*layout.sites, layout.scripts])], cache)


def _check(
    layout: layouts.Layout,
    before: roothash.Manifest,
    ours_before: Set[str],
    known: Dict[str, str],
    cache: hashing.HashCache,
) -> Dict[str, str]:
    """What changed in site-packages and scripts; raises ``foreign_change`` when some of it is not SGLang's."""
    changes = roothash.differences(before, _manifest(layout, cache))
    ours = ours_before | set(installed.traces(layout))
    foreign = [path for path in changes if path not in ours]
    if foreign:
        raise _foreign(foreign, "changed, though only sglang should")
    now = installed.distributions(layout)
    names = {name for name in set(known) ^ set(now) if not installed.belongs(name)}
    if names:
        raise _foreign(sorted(names), "are other distributions than before")
    return changes


def _foreign(paths: List[str], what: str) -> HostError:
    return HostError(
        "foreign_change",
        "%d paths in the environment %s, for example %s" % (len(paths), what, paths[0]),
        where=paths[0],
        next="the environment is put back as it was; report this with the installer's version",
        details={"paths": paths[:_SHOWN]},
    )


def _unknown(path: str, ours_before: Set[str]) -> bool:
    """A name that is in no snapshot and not bytecode of a snapshot's folder: not ours to delete."""
    if path in ours_before or os.path.isdir(path) or "/__pycache__/" in path:
        return False
    return not any(installed.is_leftover(part) for part in path.split("/"))


def _is_current(layout: layouts.Layout, tree: str) -> bool:
    """Exactly one metadata folder, made from ``tree``, its ``.pth`` naming the tree's sources, and no package folder
    in site-packages."""
    from . import editable_backend

    folders = [folder for site in layout.sites for folder in installed.metadata_folders(site)]
    if len(folders) != 1 or any(os.path.lexists(os.path.join(site, "sglang")) for site in layout.sites):
        return False
    line = editable_backend.pth_line(editable_backend.sources(tree)).strip()
    rows = [row for row in packages.read_record(folders[0]) if row.endswith(".pth")]
    lines = [_text(os.path.join(os.path.dirname(folders[0]), row)).strip() for row in rows]
    return lines == [line] and not installers.leftovers(layout)


def _version(layout: layouts.Layout) -> str:
    for site in layout.sites:
        for folder in installed.metadata_folders(site):
            return packages.version_in(folder) or ""
    return ""


def _pth(layout: layouts.Layout) -> List[str]:
    found = (os.path.join(site, name) for site in layout.sites for name in names_in(site))
    return [path for path in found if path.endswith(".pth") and installed.belongs(os.path.basename(path))]


def _text(path: str) -> str:
    try:
        with open(path, "rb") as handle:
            return os.fsdecode(handle.read())
    except OSError:
        return ""
