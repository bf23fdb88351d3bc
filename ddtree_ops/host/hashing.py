"""Hashes of files, and a cache of them, so that gigabytes which did not change are not read again."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import durable

_BLOCK = 1 << 20
_SAMPLES = 33
#: Files above this many bytes are sampled in root hashes (the largest library of a CUDA torch has about 1 GB).
HUGE = 4 << 30
#: A file changed less than this long ago may change again within one tick of its clock: it is not remembered.
_RACY_NS = 2 * 10**9


def of_bytes(data: bytes) -> str:
    """SHA-256 of ``data``, lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def of_file(path: str) -> str:
    """SHA-256 of a file's bytes, lower-case hex; symbolic links are followed."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as handle:
        while True:
            block = handle.read(_BLOCK)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def fingerprint(path: str, size: int) -> str:
    """SHA-256 of a file; of one above :data:`HUGE` only its size and a sample: ``sampled:<hex>``.

    Model weights lie in checkouts and environments, too. Nothing of ours writes there, and reading a hundred gigabytes
    to prove it would take minutes; a change of size, mtime or of a sampled block is still seen.
    """
    if size <= HUGE:
        return of_file(path)
    digest = hashlib.sha256(b"%d" % size)
    with open(path, "rb", buffering=0) as handle:
        for part in range(_SAMPLES):
            handle.seek((size - _BLOCK) * part // (_SAMPLES - 1))
            digest.update(handle.read(_BLOCK))
    return "sampled:" + digest.hexdigest()


def of_file_or_absent(path: str) -> str:
    """As :func:`of_file`, "" when nothing has that name."""
    try:
        return of_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""


class Wanted(NamedTuple):
    """A regular file to be hashed, with what ``lstat`` said about it."""

    path: str
    stat: os.stat_result


Progress = Callable[[int, int], None]  # bytes done, bytes in all


class HashCache:
    """Content hashes by (device, inode, size, mtime, ctime): no write goes by without a new ctime."""

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = path
        self._known: Dict[str, List[object]] = dict(durable.read_json(path, {}) or {}) if path else {}
        self._changed = False
        self.read_files = 0
        self.read_bytes = 0

    def hash_all(self, files: Iterable[Wanted], progress: Optional[Progress] = None) -> List[str]:
        """The hash of each file in order, "" for one that vanished or cannot be read; only unknown ones are read."""
        wanted = list(files)
        found: List[Optional[str]] = [self._look_up(item.stat) for item in wanted]
        todo = [index for index, digest in enumerate(found) if digest is None]
        started_ns = time.time_ns()
        total, done = sum(wanted[index].stat.st_size for index in todo), 0
        with ThreadPoolExecutor(max_workers=min(16, (os.cpu_count() or 1) + 2)) as pool:
            batches = _batches(wanted, todo)
            for batch, digests in zip(batches, pool.map(lambda part: [_quiet(wanted[i]) for i in part], batches)):
                for index, digest in zip(batch, digests):
                    found[index] = digest
                    if digest:
                        self._remember(wanted[index].stat, digest, started_ns)
                done += sum(wanted[index].stat.st_size for index in batch)
                if progress is not None:
                    progress(done, total)
        self.read_files += len(todo)
        self.read_bytes += total
        return [digest or "" for digest in found]

    def save(self) -> None:
        """Keep the cache for the next run. It only saves time, so a full or read-only disk is no error."""
        if self.path and self._changed:
            try:
                durable.replace_json(self.path, self._known)
            except OSError:
                return
            self._changed = False

    def _look_up(self, stat: os.stat_result) -> Optional[str]:
        known = self._known.get("%d:%d" % (stat.st_dev, stat.st_ino))
        if known is not None and known[:3] == [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]:
            return str(known[3])
        return None

    def _remember(self, stat: os.stat_result, digest: str, now_ns: int) -> None:
        if now_ns - stat.st_ctime_ns > _RACY_NS:
            key = "%d:%d" % (stat.st_dev, stat.st_ino)
            self._known[key] = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, digest]
            self._changed = True


def _quiet(item: Wanted) -> str:
    try:
        return fingerprint(item.path, item.stat.st_size)
    except OSError:
        return ""


def _batches(wanted: List[Wanted], todo: List[int]) -> List[Tuple[int, ...]]:
    """Portions of about 16 MiB or 200 files: enough to keep threads busy, small enough for a smooth progress."""
    batches: List[Tuple[int, ...]] = []
    batch: List[int] = []
    size = 0
    for index in todo:
        batch.append(index)
        size += wanted[index].stat.st_size
        if size >= 16 * _BLOCK or len(batch) >= 200:
            batches.append(tuple(batch))
            batch, size = [], 0
    if batch:
        batches.append(tuple(batch))
    return batches
