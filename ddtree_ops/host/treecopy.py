"""Copies of a package folder: every byte, mode and time; no bytecode, no link that leads astray."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, NamedTuple, Optional, Tuple

from . import content, hashing
from .ops import Work

_BLOCK = 1 << 20
_BATCH = 64
_Link = Tuple[str, str]


class Listing(NamedTuple):
    """What a package folder holds, by path relative to it."""

    folders: Dict[str, os.stat_result]
    files: Dict[str, os.stat_result]
    links: Dict[str, str]
    bytecode: int
    odd: Tuple[str, ...]  # sockets, devices, pipes

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(status.st_size for status in self.files.values())


def listing(root: str) -> Listing:
    """List ``root`` (a link to a folder is entered, links inside are not). Bytecode is counted and left out."""
    found = Listing({"": os.stat(root)}, {}, {}, 0, ())
    bytecode, odd = 0, []
    pending = [""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(root, folder) if folder else root) as entries:
            items = list(entries)
        for item in items:
            path = folder + "/" + item.name if folder else item.name
            status = item.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                found.links[path] = os.readlink(item.path)
            elif stat.S_ISDIR(status.st_mode):
                if item.name == "__pycache__":
                    bytecode += len(os.listdir(item.path))
                    continue
                found.folders[path] = status
                pending.append(path)
            elif not stat.S_ISREG(status.st_mode):
                odd.append(path)
            elif item.name.endswith(".pyc"):
                bytecode += 1
            else:
                found.files[path] = status
    return found._replace(bytecode=bytecode, odd=tuple(sorted(odd)))


def copy(work: Work, what: Listing, source: str, target: str, step: str) -> Dict[str, str]:
    """Copy ``what`` from ``source`` to the new folder ``target``; SHA-256 of each file by relative path.

    Links that stay inside the package are kept as they are; a link to a file elsewhere becomes that file, a link to a
    folder elsewhere an absolute link: the copy imports what the original did. Not flushed to the disk yet.
    """
    for path in sorted(what.folders):
        os.makedirs(os.path.join(target, path), 0o755, exist_ok=True)
    hashes: Dict[str, str] = {}
    names = sorted(what.files)
    batches = [names[start : start + _BATCH] for start in range(0, len(names), _BATCH)]
    total = what.size
    done = 0
    with ThreadPoolExecutor(max_workers=4) as pool:
        for batch, digests in zip(batches, pool.map(lambda part: _copy_batch(source, target, part, what), batches)):
            hashes.update(zip(batch, digests))
            done += sum(what.files[name].st_size for name in batch)
            work.progress(step, "copy %s" % os.path.basename(source), done, total)
    for path, link in what.links.items():
        _copy_link(source, target, path, link, hashes)
    for path in sorted(what.folders, reverse=True):
        status = what.folders[path]
        folder = os.path.join(target, path)
        os.chmod(folder, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
        os.utime(folder, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return hashes


def remove(path: str) -> None:
    """Remove a folder of a tree that is being built, if it is there."""
    if os.path.isdir(path):
        shutil.rmtree(path)


def content_hash(hashes: Dict[str, str]) -> str:
    """The package's content hash as the facts report it, from the hashes that :func:`copy` returned."""
    counted = {p: h for p, h in hashes.items() if p.endswith(".py") and not p.startswith(content.PAYLOAD + "/")}
    return content.content_hash(counted)


def _copy_batch(source: str, target: str, names: List[str], what: Listing) -> List[str]:
    return [_copy_file(os.path.join(source, name), os.path.join(target, name), what.files[name]) for name in names]


def _copy_file(source: str, target: str, status: os.stat_result) -> str:
    digest = hashlib.sha256()
    reader = os.open(source, os.O_RDONLY)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            while True:
                block = os.read(reader, _BLOCK)
                if not block:
                    break
                digest.update(block)
                view = memoryview(block)
                while view:
                    view = view[os.write(writer, view) :]
            os.fchmod(writer, stat.S_IMODE(status.st_mode))
            os.utime(writer, ns=(status.st_mtime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)
    return digest.hexdigest()


def _copy_link(source: str, target: str, path: str, link: str, hashes: Dict[str, str]) -> None:
    place = os.path.join(source, path)
    inside = os.path.normpath(os.path.join(os.path.dirname(path), link))
    final: Optional[str] = os.path.realpath(place)
    if not os.path.isabs(link) and not inside.startswith(".."):
        os.symlink(link, os.path.join(target, path))
        if final and os.path.isfile(final):
            hashes[path] = hashing.of_file(final)
    elif final and os.path.isfile(final):
        hashes[path] = _copy_file(final, os.path.join(target, path), os.stat(final))
    else:
        os.symlink(final or link, os.path.join(target, path))
