"""One hash over everything on the host that a rollback must bring back, and the list that it is a hash of.

Scope: ``{"environment": prefix, "checkouts": [folder, ...], "unit_paths": [path, ...], "units": [name, ...]}``.
Each item of the scope is a *part* with a list of entries (one per name) and a hash; the root is the hash of the parts.

An entry is kind, permission bits, owner, group, and for files size, mtime and SHA-256 (above 4 GiB a sample, see
:func:`hashing.fingerprint`), for links their target.
Left out: ``__pycache__`` folders (Python and its compilers write them when they run; their files are counted), the
mtime of folders, link counts, and times that reading changes. A conda base's package cache and other environments,
and a system prefix (``/usr``) outside its site-packages and ``bin``, are not part of "the environment".
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from . import durable, hashing

Scope = Dict[str, Any]
Entry = List[Any]  # [kind, mode, uid, gid] or [..., size, mtime_ns, sha256] or [..., target]
Entries = Dict[str, Entry]
Progress = Callable[[int, int], None]

_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
_UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_KINDS = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}


class Manifest:
    """Entries by part and absolute path; ``bytecode`` counts what was left out."""

    def __init__(self, parts: Dict[str, Entries], bytecode: int = 0) -> None:
        self.parts = parts
        self.bytecode = bytecode
        self.hashes = {name: _hash_entries(entries) for name, entries in parts.items()}
        self.root = hashing.of_bytes(
            "".join("%s\0%s\n" % (name, self.hashes[name]) for name in sorted(parts)).encode("utf-8", "surrogateescape")
        )

    def summary(self) -> Dict[str, Any]:
        """What travels to the controller."""
        parts = {
            name: {"hash": self.hashes[name], "entries": len(entries), "bytes": _bytes(entries)}
            for name, entries in sorted(self.parts.items())
        }
        return {"root": self.root, "parts": parts, "bytecode_left_out": self.bytecode}

    def save(self, path: str) -> None:
        """Write the whole list, compressed."""
        body = json.dumps({"parts": self.parts, "bytecode": self.bytecode}, ensure_ascii=True, separators=(",", ":"))
        durable.replace_bytes(path, gzip.compress(body.encode("ascii"), 3, mtime=0), 0o600)

    @classmethod
    def load(cls, path: str) -> "Manifest":
        """Read a list that :meth:`save` wrote."""
        with gzip.open(path, "rb") as handle:
            value = json.loads(handle.read().decode("ascii"))
        return cls(value["parts"], int(value["bytecode"]))

    def flat(self) -> Entries:
        """All entries by path, whatever part they are in."""
        return {path: entry for entries in self.parts.values() for path, entry in entries.items()}


def differences(old: Manifest, new: Manifest) -> Dict[str, str]:
    """Each path that differs between two lists, with what differs about it."""
    before, after = old.flat(), new.flat()
    found: Dict[str, str] = {}
    for path in sorted(set(before) | set(after)):
        if before.get(path) != after.get(path):
            found[path] = _difference(before.get(path), after.get(path))
    return found


def measure(scope: Scope, cache: hashing.HashCache, progress: Optional[Progress] = None) -> Manifest:
    """Look at everything in ``scope``. Takes as long as reading what ``cache`` does not know."""
    return measure_parts(_parts(scope), cache, progress)


def measure_parts(
    named: Iterable[Tuple[str, List[str]]], cache: hashing.HashCache, progress: Optional[Progress] = None
) -> Manifest:
    """As :func:`measure` for parts given as (name, paths); what lies under a path belongs to it."""
    parts: Dict[str, Entries] = {}
    wanted: List[Tuple[Entry, hashing.Wanted]] = []
    bytecode = 0
    for name, roots in named:
        entries = parts.setdefault(name, {})
        for root in roots:
            for path, status in _walk(root, name):
                if status is None:
                    bytecode += 1
                elif path not in entries:
                    entries[path] = _entry(path, status)
                    if stat.S_ISREG(status.st_mode):
                        wanted.append((entries[path], hashing.Wanted(path, status)))
    digests = cache.hash_all([item for _, item in wanted], progress)
    for (entry, _), digest in zip(wanted, digests):
        entry.append(digest)
    return Manifest(parts, bytecode)


def timed(
    scope: Scope, cache: hashing.HashCache, progress: Optional[Progress] = None
) -> Tuple[Manifest, Dict[str, Any]]:
    """As :func:`measure`, with the summary that verbs return: seconds, files and bytes that had to be read."""
    started, files, size = time.monotonic(), cache.read_files, cache.read_bytes
    manifest = measure(scope, cache, progress)
    summary = manifest.summary()
    summary.update(
        seconds=round(time.monotonic() - started, 3),
        read_files=cache.read_files - files,
        read_bytes=cache.read_bytes - size,
    )
    return manifest, summary


def _parts(scope: Scope) -> Iterator[Tuple[str, List[str]]]:
    environment = str(scope.get("environment") or "")
    if environment:
        yield "environment", _environment_roots(environment)
    for path in scope.get("checkouts") or ():
        yield "checkout:%s" % path, [str(path)]
    for path in scope.get("unit_paths") or ():
        yield "unit_path:%s" % path, [str(path)]
    for name in scope.get("units") or ():
        yield "unit:%s" % name, _unit_links(str(name), scope)


def _environment_roots(prefix: str) -> List[str]:
    if os.path.normpath(prefix) not in _SYSTEM_PREFIXES:
        return [prefix]
    roots = [os.path.join(prefix, "bin")]
    for library in ("lib", "lib64"):
        for name in _names(os.path.join(prefix, library)):
            if name.startswith("python3"):
                roots += [os.path.join(prefix, library, name, part) for part in ("site-packages", "dist-packages")]
    return roots


def _unit_links(unit: str, scope: Scope) -> List[str]:
    """The unit's files, drop-in folders, and links to it in ``*.wants``, ``*.requires`` and beside it (aliases)."""
    folders = list(scope.get("unit_folders") or _UNIT_FOLDERS)
    folders.append(os.path.expanduser("~/.config/systemd/user"))
    found: List[str] = []
    for folder in folders:
        for name in _names(folder):
            path = os.path.join(folder, name)
            if name in (unit, unit + ".d") or (os.path.islink(path) and _links_to(path, unit)):
                found.append(path)
            elif name.endswith((".wants", ".requires", ".upholds")):
                inside = (os.path.join(path, entry) for entry in _names(path))
                found += [
                    p for p in inside if os.path.basename(p) == unit or (os.path.islink(p) and _links_to(p, unit))
                ]
    return found


def _links_to(path: str, unit: str) -> bool:
    try:
        return os.path.basename(os.readlink(path)) == unit
    except OSError:
        return False


def _walk(root: str, part: str) -> Iterator[Tuple[str, Optional[os.stat_result]]]:
    """Every name under ``root`` with its ``lstat``; None stands for a name that is left out."""
    try:
        status = os.lstat(root)
    except (FileNotFoundError, NotADirectoryError):
        return
    yield root, status
    if not stat.S_ISDIR(status.st_mode):
        return
    conda = part == "environment" and os.path.isdir(os.path.join(root, "conda-meta"))
    skip = ("pkgs", "envs") if conda else ()
    pending = [root]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                items = list(entries)
        except PermissionError:
            continue  # its own entry is listed; what we may not read we cannot have changed
        for item in items:
            if item.name == "__pycache__" and item.is_dir(follow_symlinks=False):
                for _ in _names(item.path):
                    yield item.path, None
                continue
            if folder == root and item.name in skip:
                continue
            try:
                inner = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield item.path, inner
            if stat.S_ISDIR(inner.st_mode):
                pending.append(item.path)


def _entry(path: str, status: os.stat_result) -> Entry:
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "o")
    entry: Entry = [kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid]
    if kind == "f":
        entry += [status.st_size, status.st_mtime_ns]
    elif kind == "l":
        try:
            entry.append(os.readlink(path))
        except OSError:
            entry.append("")
    return entry


def _difference(old: Optional[Entry], new: Optional[Entry]) -> str:
    if old is None:
        return "is new"
    if new is None:
        return "is missing"
    if old[0] != new[0]:
        return "changed its kind"
    words = ("kind", "mode", "owner", "group") + (("target",) if old[0] == "l" else ("size", "mtime", "content"))
    return ", ".join(word for word, a, b in zip(words, old, new) if a != b) + " differs"


def _hash_entries(entries: Entries) -> str:
    lines = [json.dumps([path, entries[path]], ensure_ascii=True, separators=(",", ":")) for path in sorted(entries)]
    return hashing.of_bytes("\n".join(lines).encode("ascii"))


def _bytes(entries: Entries) -> int:
    return sum(int(entry[4]) for entry in entries.values() if entry[0] == "f")


def _names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
