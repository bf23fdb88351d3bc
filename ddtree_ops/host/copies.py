"""Every copy of the ``sglang`` package on the host: where it lies, how it is installed, and what it is made of."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import content, gitinfo, packages, search
from .interpreters import Candidate
from .look import PACKAGE, Fact, Look, owner_of

MOST_COPIES = 32


class Place(NamedTuple):
    """A package folder and how one came to it. ``site`` is the site-packages folder that installs it, "" for none."""

    root: str
    kind: str
    environment: str = ""
    site: str = ""
    label: str = ""


class Scanned(NamedTuple):
    """A copy as reported (model.Copy) with the source hashes that stay on the host, for comparisons."""

    fact: Fact
    sources: Dict[str, str]


def installed(candidate: Candidate) -> List[Place]:
    """The copies that an environment installs, in each of the styles; a leftover skeleton counts."""
    found: List[Place] = []
    for site in candidate.site_packages:
        direct = os.path.join(site, PACKAGE)
        if os.path.isdir(direct):
            kind = "skeleton"
            if os.path.isfile(os.path.join(direct, "__init__.py")):
                recorded = any(info["recorded"] for info in packages.dist_infos(site))
                kind = "wheel" if recorded else "unknown"
            found.append(Place(direct, kind, candidate.path, site))
        found += [Place(root, kind, candidate.path, site) for root, kind in _editable(site)]
    unique: Dict[str, Place] = {}
    for place in found:
        unique.setdefault(os.path.realpath(place.root), place._replace(label=candidate.prefix))
    return list(unique.values())


def _editable(site: str) -> Iterable[Tuple[str, str]]:
    target, _ = packages.finder_target(site)
    if target and os.path.isdir(target):
        yield target, "editable-finder"
    link = packages.egg_link(site)
    if link:
        for inner in (PACKAGE, "src/" + PACKAGE):
            if os.path.isdir(os.path.join(link, inner)):
                yield os.path.join(link, inner), "editable-egg-link"
    editable = any(info["editable"] for info in packages.dist_infos(site))
    for entry, source in packages.path_entries(site).items():
        folder = os.path.join(entry, PACKAGE)
        if os.path.isfile(os.path.join(folder, "__init__.py")):
            ours = editable and PACKAGE in os.path.basename(source).lower()
            yield folder, "editable-pth" if ours else "path"


def standing(look: Look, folders: Iterable[str]) -> List[Place]:
    """Copies that no environment installs: the inventory's checkouts and what the search found."""
    found: Dict[str, Place] = {}
    for named in look.texts("checkouts"):
        place = os.path.expanduser(named)
        look.looked(place)
        inside = search.package_folders(place)
        if not os.path.isdir(place):
            look.warn("checkout %s of the inventory does not exist" % place)
        elif not inside:
            look.warn("checkout %s of the inventory holds no sglang package" % place)
        for folder in inside:
            found.setdefault(os.path.realpath(folder), Place(folder, source_kind(folder)))
    for folder in folders:
        found.setdefault(os.path.realpath(folder), Place(folder, source_kind(folder)))
    return list(found.values())


def source_kind(folder: str) -> str:
    """ "checkout", "worktree" (its ``.git`` is a file) or "path" (no repository) for a source folder."""
    toplevel = gitinfo.dot_git_above(os.path.realpath(folder))
    if not toplevel:
        return "path"
    if os.path.isfile(os.path.join(toplevel, ".git")) and gitinfo.kind_of(toplevel) == "worktree":
        return "worktree"
    return "checkout"


def shadow(folder: str) -> Place:
    """A folder that an import led to and that nothing else accounts for."""
    whole = os.path.isfile(os.path.join(folder, "__init__.py"))
    return Place(folder, source_kind(folder) if whole else "skeleton")


def merge(look: Look, groups: Iterable[Iterable[Place]]) -> List[Place]:
    """All places, one per (folder, environment); a folder that an environment installs is not listed again."""
    found: Dict[Tuple[str, str], Place] = {}
    taken: Dict[str, bool] = {}
    for group in groups:
        for place in group:
            real = os.path.realpath(place.root)
            if not place.environment and real in taken:
                continue
            taken[real] = True
            found.setdefault((real, place.environment), place)
    places = list(found.values())
    if len(places) > MOST_COPIES:
        look.warn("%d copies found; only the first %d are described" % (len(places), MOST_COPIES))
    return places[:MOST_COPIES]


def scan(look: Look, hashes: content.Hashes, place: Place) -> Scanned:
    """Describe one copy. The heavy part: its files are listed and hashed."""
    tree = content.walk(place.root, bytecode=place.kind == "skeleton")
    for trouble in tree.trouble[:3]:
        look.warn("cannot read %s" % trouble)
    infos = packages.dist_infos(place.site) if place.site else []
    git = gitinfo.state_of(look, place.root) if place.kind not in ("wheel", "skeleton") or _is_link(place) else None
    fact: Fact = {
        "id": "",
        "kind": place.kind,
        "root": place.root,
        "realpath": os.path.realpath(place.root),
        "environment": place.environment,
        "version_claimed": "",
        "version_content": "",
        "anchors": {},
        "content_hash": "",
        "files": len(tree.files),
        "size": sum(file.size for file in tree.files.values()),
        "dflash": content.dflash_state(place.root),
        "ddtree": "none",
        "ddtree_build_id": "",
        "foreign_files": [],
        "git": git,
        "dist_infos": infos,
        "record": None,
        "compiled": sorted(path for path in tree.files if path.endswith(".so")),
        "symlink": _is_link(place),
        "hard_linked": sum(1 for file in tree.files.values() if file.links > 1),
        "owner": owner_of(place.root)[1],
        "read_only": _read_only(place.root),
    }
    fact["id"] = "%s@%s" % (place.kind, place.label or (git or {}).get("toplevel") or place.root)
    if place.kind == "skeleton":
        fact["foreign_files"] = sorted(tree.files)[:200]
        return Scanned(fact, {})
    unrecorded = _check_record(look, hashes, tree, place, fact)
    sources = hashes.of(tree, content.source_paths(tree))
    if not look.late:
        fact["content_hash"] = content.content_hash(sources)
    else:
        look.warn("no time was left to hash %s" % place.root)
    fact["anchors"] = {path: sources.get(path) for path in look.texts("anchors")}
    ddtree = content.ddtree_state(tree, unrecorded)
    fact.update(ddtree=ddtree.state, ddtree_build_id=ddtree.build_id, foreign_files=list(ddtree.foreign))
    fact["anchors"].update(hashes.of(tree, ddtree.foreign[:50]))
    fact["version_claimed"] = _claimed_version(place, infos, git)
    return Scanned(fact, sources)


def _is_link(place: Place) -> bool:
    return os.path.islink(place.root)


def _check_record(
    look: Look, hashes: content.Hashes, tree: content.Tree, place: Place, fact: Fact
) -> Optional[List[str]]:
    """RECORD against the disk for a copy in site-packages; returns the files that no RECORD lists (None: no RECORD)."""
    if place.kind != "wheel":
        return None
    tables = [packages.package_rows(packages.read_record(str(info["path"]))) for info in fact["dist_infos"]]
    tables = [table for table in tables if table]
    if not tables:
        return None
    current = hashes.of(tree, tree.files)

    def misfit(table: Dict[str, packages.Recorded]) -> int:
        return sum(1 for path, row in table.items() if row.sha256 and current.get(path) != row.sha256)

    owner = min(tables, key=misfit)  # with several RECORDs, the one that describes what is there
    listed = set().union(*tables)
    unrecorded = sorted(path for path in tree.files if path not in listed and not path.endswith(".pyc"))
    fact["record"] = {
        "recorded": len(owner),
        "missing": sorted(path for path in owner if path not in tree.files),
        "modified": sorted(
            path for path, row in owner.items() if path in current and row.sha256 and current[path] != row.sha256
        ),
        "unrecorded": unrecorded,
    }
    if look.late:
        fact["record"] = None
    return unrecorded


def _claimed_version(place: Place, infos: List[Fact], git: Optional[Fact]) -> str:
    versions = [str(info["version"]) for info in infos if info["version"] and "leftover" not in str(info["note"])]
    if place.kind in ("wheel", "editable-pth", "editable-finder", "editable-egg-link") and versions:
        owning = [str(info["version"]) for info in infos if info["version"] and info["recorded"]]
        return (owning or versions)[-1]
    stated = content.version_in_source(place.root)
    tags = [tag for tag in (git or {}).get("tags", ()) if tag.lstrip("v")[:1].isdigit()]
    return stated or (tags[0].lstrip("v") if tags else "")


def _read_only(folder: str) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def name_apart(scanned: List[Scanned]) -> None:
    """Make the ids unique: a second copy of the same kind at the same place gets a number."""
    counts: Dict[str, int] = {}
    for one in scanned:
        name = str(one.fact["id"])
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1:
            one.fact["id"] = "%s#%d" % (name, counts[name])


def divergence(one: Scanned, other: Scanned, sample: int = 20) -> Fact:
    """model.Divergence of two copies over their source files."""
    left, right = one.sources, other.sources
    only_left = sorted(set(left) - set(right))
    only_right = sorted(set(right) - set(left))
    common = set(left) & set(right)
    different = sorted(path for path in common if left[path] != right[path])
    return {
        "a": one.fact["id"],
        "b": other.fact["id"],
        "only_a": len(only_left),
        "only_b": len(only_right),
        "different": len(different),
        "same": len(common) - len(different),
        "sample_only_a": _telling(only_left, sample),
        "sample_only_b": _telling(only_right, sample),
        "sample_different": _telling(different, sample),
    }


def _telling(paths: List[str], sample: int) -> List[str]:
    """The paths that tell most: speculative decoding first."""
    return sorted(paths, key=lambda path: ("speculative" not in path, path))[:sample]
