"""What is in a copy of the package: hashes of its files, and what they show about DFLASH and DDTREE.

The content hash is that of ``ddtree_ops.patching.trees.content_hash`` for a tree without our payload: SHA-256 over
``<relative path> NUL <sha256> LF`` of all ``.py`` files, sorted by the path's bytes; ``_version.py`` (written by the
build), bytecode folders and our own payload folder do not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import hashing
from .look import Look, read_bytes

PAYLOAD = "srt/speculative/ddtree"
SPEC_INFO = "srt/speculative/spec_info.py"
WORKER_V1 = "srt/speculative/dflash_worker.py"
WORKER_V2 = "srt/speculative/dflash_worker_v2.py"
BUILD_FILE = PAYLOAD + "/_build.json"
_THREADS = 4

_FileKey = Tuple[int, int, int, int, int]


class File(NamedTuple):
    """A regular file of a copy: SHA-256 is read on demand, see :class:`Hashes`."""

    path: str
    key: _FileKey  # (device, inode, size, mtime_ns, ctime_ns)
    size: int
    links: int
    symlink: bool


class Tree(NamedTuple):
    """The files below a package folder by relative path; without bytecode folders, links to folders are not entered."""

    root: str
    files: Dict[str, File]
    trouble: Tuple[str, ...]


def walk(root: str, bytecode: bool = False) -> Tree:
    """List ``root``, its ``__pycache__`` only with ``bytecode``; what cannot be read is named in ``trouble``."""
    files: Dict[str, File] = {}
    trouble: List[str] = []
    pending = [""]
    while pending:
        relative = pending.pop()
        try:
            entries = list(os.scandir(os.path.join(root, relative)))
        except OSError as error:
            trouble.append("%s: %s" % (os.path.join(root, relative), error.strerror))
            continue
        for entry in entries:
            path = relative + "/" + entry.name if relative else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if bytecode or entry.name != "__pycache__":
                        pending.append(path)
                    continue
                status = entry.stat()
                symlink = entry.is_symlink()
            except OSError:
                continue  # vanished, or a link to nothing
            if stat.S_ISREG(status.st_mode):
                key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                files[path] = File(entry.path, key, status.st_size, status.st_nlink, symlink)
    return Tree(root, files, tuple(trouble))


class Hashes:
    """SHA-256 of files; each inode is read once, however many copies share it. Safe for threads."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._known: Dict[_FileKey, str] = {}

    def of(self, tree: Tree, paths: Iterable[str]) -> Dict[str, str]:
        """Hash by relative path; files that cannot be read, or for which no time is left, are absent."""
        wanted = [path for path in paths if path in tree.files]
        missing = [path for path in wanted if tree.files[path].key not in self._known]
        if len(missing) > 64:
            chunks = [missing[start::_THREADS] for start in range(_THREADS)]
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda chunk: self._read(tree, chunk), chunks))
        else:
            self._read(tree, missing)
        found = ((path, self._known.get(tree.files[path].key, "")) for path in wanted)
        return {path: digest for path, digest in found if digest}

    def _read(self, tree: Tree, paths: List[str]) -> None:
        for path in paths:
            if self._look.late:
                return
            file = tree.files[path]
            digest = file_sha256(file.path)
            if digest:
                self._known[file.key] = digest


def file_sha256(path: str) -> str:
    """Hex SHA-256 of a file's bytes, "" when it cannot be read."""
    try:
        return hashing.of_file(path)
    except (OSError, ValueError):
        return ""


def source_paths(tree: Tree) -> List[str]:
    """The ``.py`` files that the content hash is over."""
    return [path for path in tree.files if path.endswith(".py") and not path.startswith(PAYLOAD + "/")]


def content_hash(hashes: Dict[str, str]) -> str:
    """The content hash for the given source files (relative path -> hex SHA-256)."""
    digest = hashlib.sha256()
    for path, value in sorted((os.fsencode(path), value) for path, value in hashes.items()):
        if path != b"_version.py":
            digest.update(path + b"\0" + value.encode("ascii") + b"\n")
    return digest.hexdigest()


def dflash_state(root: str) -> str:
    """ "v2" or "v1" by the worker that is there and defined, "none" when SGLang has no DFLASH."""
    if not _has(root, SPEC_INFO, rb"^\s+DFLASH\s*="):
        return "none"
    for relative, state in ((WORKER_V2, "v2"), (WORKER_V1, "v1")):
        if _has(root, relative, rb"^class\s+DFlash\w*Worker"):
            return state
    return "none"


class DdtreeFacts(NamedTuple):
    """State ("native", "ours", "foreign", "partial", "none"), our build id, and the files that are not ours."""

    state: str
    build_id: str
    foreign: Tuple[str, ...]


def ddtree_state(tree: Tree, unrecorded: Optional[Iterable[str]]) -> DdtreeFacts:
    """Whether DDTREE is in this copy and whose it is.

    Ours is the payload folder with its ``_build.json`` and a registration that reaches it. Files named ddtree that a
    RECORD lists (``unrecorded`` does not hold them) came with SGLang itself.
    """
    registered = _has(tree.root, SPEC_INFO, rb"^\s+DDTREE\s*=")
    reaches_payload = _has(tree.root, SPEC_INFO, rb"speculative\.ddtree\b")
    build_id = _build_id(tree.root)
    inside = PAYLOAD + "/"
    named = [path for path in sorted(tree.files) if "ddtree" in path.lower() and not path.endswith(".pyc")]
    if build_id:
        foreign = tuple(path for path in named if not path.startswith(inside))
        return DdtreeFacts("ours" if registered or reaches_payload else "partial", build_id, foreign)
    alien = set(named) if unrecorded is None else set(named) & set(unrecorded)
    if registered and reaches_payload and not named:
        return DdtreeFacts("partial", "", ())
    if registered and not alien:
        return DdtreeFacts("native", "", ())
    if alien:
        return DdtreeFacts("foreign", "", tuple(sorted(alien)))
    return DdtreeFacts("native" if named else "none", "", ())


def _build_id(root: str) -> str:
    raw = read_bytes(os.path.join(root, BUILD_FILE), 1 << 20)
    try:
        document = json.loads(raw.decode("utf-8")) if raw else {}
    except ValueError:
        return ""
    return str(document.get("build_id") or "") if isinstance(document, dict) else ""


def _has(root: str, relative: str, pattern: bytes) -> bool:
    return bool(re.search(pattern, read_bytes(os.path.join(root, relative), 8 << 20), re.MULTILINE))


_VERSION = re.compile(r"^(?:__version__|version)\s*(?:=\s*\w+\s*)?=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def version_in_source(root: str) -> str:
    """The version that the source itself states in ``_version.py`` or (older releases) ``version.py``; "" for none."""
    for name in ("_version.py", "version.py"):
        match = _VERSION.search(read_bytes(os.path.join(root, name), 65536).decode("utf-8", "replace"))
        if match:
            return match.group(1)
    return ""
