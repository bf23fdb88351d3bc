"""Snapshots of names on the host: hard links where that is possible, else copies; and the exact way back.

A hard link costs no space and brings back the very inode. It is safe because nothing here writes in place, and
installers replace files instead of rewriting them. Folders are kept as entries, so that modes and times return.

On an overlay (containers, test hosts) the first link to a file of a lower layer copies it up and flushes it, file by
file: 5,539 files took 35 s, copies of them 1.5 s. There it copies.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any, Callable, Dict, Iterable, List, Optional, Set

from . import durable, hashing
from .ops import Work
from .protocol import HostError

Entry = Dict[str, Any]

_PER_FOLDER = 1000


def take(work: Work, name: str, paths: Iterable[str]) -> str:
    """Keep every existing one of ``paths`` (folders without their content). Returns the snapshot's folder.

    On return everything is on the disk. Links are kept as links. Raises ``bad_kind`` for devices and sockets.
    """
    store = os.path.join(work.snapshots, name)
    os.makedirs(store, 0o700, exist_ok=True)
    entries: List[Entry] = []
    copied = 0
    linkable = _linkable_devices(store)
    for path in sorted(set(paths)):
        entry = _describe(path)
        if entry is None:
            continue
        if entry["kind"] == "f":
            entry["stored"] = "%d/%d" % (len(entries) // _PER_FOLDER, len(entries))
            stored = os.path.join(store, entry["stored"])
            os.makedirs(os.path.dirname(stored), 0o700, exist_ok=True)
            link = os.stat(os.path.dirname(path)).st_dev in linkable
            copied += 0 if _keep(path, stored, link) else 1
        entries.append(entry)
    if copied:
        durable.sync_filesystem(store)
    for number in range(len(entries) // _PER_FOLDER + 1):
        durable.sync_folder(os.path.join(store, str(number)))
    durable.replace_json(os.path.join(store, "list.json"), entries)
    return store


def entries_of(store: str) -> List[Entry]:
    """What :func:`take` kept. Raises ``snapshot_lost`` when the list is gone."""
    entries = durable.read_json(os.path.join(store, "list.json"))
    if not isinstance(entries, list):
        raise HostError("snapshot_lost", "the snapshot's list cannot be read", where=store, exit=7)
    return entries


def restore(store: str, present: Iterable[str], leave: Callable[[str], bool] = lambda _path: False) -> None:
    """Bring back what is in ``store``, and remove every name of ``present`` that is not in it.

    May be repeated, and may run over a half-finished one. Folders of ``present`` go only when they end up empty.
    Paths for which ``leave`` is true are not touched.
    """
    entries = [entry for entry in entries_of(store) if not leave(entry["path"])]
    kept = {entry["path"]: entry for entry in entries}
    _clear([path for path in present if not leave(path)], kept)
    folders = [entry for entry in entries if entry["kind"] == "d"]
    for entry in folders:
        _make_folder(entry)
    for entry in entries:
        if entry["kind"] == "f":
            _put_file(entry, os.path.join(store, entry["stored"]))
        elif entry["kind"] == "l":
            _put_link(entry)
    for entry in reversed(folders):  # sorted by path: children last, so from the leaves to the root
        _set_times(entry)


def restore_times(times: Dict[str, int]) -> None:
    """Set the mtime (ns) of folders whose content came back."""
    for path, mtime_ns in times.items():
        try:
            os.utime(path, ns=(mtime_ns, mtime_ns))
        except OSError:
            pass  # a courtesy: folder times are no part of the root hash


def tree(path: str) -> List[str]:
    """``path`` and every name under it (links are not followed); [] when it does not exist."""
    if not os.path.lexists(path):
        return []
    found = [path]
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, folders, files in os.walk(path):
            found += [os.path.join(folder, name) for name in folders + files]
    return found


def _describe(path: str) -> Optional[Entry]:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    entry: Entry = {
        "path": path,
        "mode": stat.S_IMODE(status.st_mode),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "mtime_ns": status.st_mtime_ns,
    }
    if stat.S_ISDIR(status.st_mode):
        entry["kind"] = "d"
    elif stat.S_ISLNK(status.st_mode):
        entry.update(kind="l", target=os.readlink(path))
    elif stat.S_ISREG(status.st_mode):
        entry["kind"] = "f"
    else:
        raise HostError("bad_kind", "this is neither a file nor a folder nor a link", where=path)
    return entry


def copied_bytes(store_root: str, paths: Iterable[str]) -> int:
    """Bytes that :func:`take` would have to copy into a folder under ``store_root``."""
    linkable = _linkable_devices(store_root)
    total = 0
    for path in paths:
        status = _lstat(path)
        if status is not None and stat.S_ISREG(status.st_mode):
            total += 0 if os.stat(os.path.dirname(path)).st_dev in linkable else status.st_size
    return total


def _linkable_devices(store: str) -> Set[int]:
    """Devices of folders whose files can be linked into ``store`` cheaply: its own, unless that is an overlay."""
    device = os.stat(store).st_dev
    name = "%d:%d" % (os.major(device), os.minor(device))
    try:
        with open("/proc/self/mountinfo", "rb") as handle:
            for line in handle:
                left, _, right = line.decode("utf-8", "replace").partition(" - ")
                if left.split()[2] == name and right.split()[0] == "overlay":
                    return set()
    except (OSError, IndexError):
        pass
    return {device}


def _keep(path: str, stored: str, link: bool = True) -> bool:
    """Link ``path`` to ``stored``, or copy it; True when it is a link."""
    durable.discard(stored)
    if link:
        try:
            os.link(path, stored, follow_symlinks=False)
            return True
        except OSError:
            pass  # another file system, or a kernel that protects other people's files from links
    _copy(path, stored)
    return False


def _copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    status = os.stat(source)
    if os.geteuid() == 0:
        os.chown(target, status.st_uid, status.st_gid)
    shutil.copystat(source, target)


def _clear(present: Iterable[str], kept: Dict[str, Entry]) -> None:
    folders: Set[str] = set()
    for path in present:
        durable.discard(durable.temporary_name(path))
        entry = kept.get(path)
        if os.path.isdir(path) and not os.path.islink(path):
            if entry is None or entry["kind"] != "d":
                folders.add(path)
        elif entry is None or entry["kind"] == "d":
            durable.discard(path)
    for path in sorted(folders, reverse=True):
        durable.discard_folder(path)


def _make_folder(entry: Entry) -> None:
    path = entry["path"]
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)
    os.makedirs(path, exist_ok=True)
    _set_owner(entry)
    os.chmod(path, entry["mode"])


def _put_file(entry: Entry, stored: str) -> None:
    path = entry["path"]
    durable.discard(durable.temporary_name(path))
    here, there = _lstat(path), os.lstat(stored)
    if here is None or not _is_the_same(path, here, stored, there):
        if here is not None and stat.S_ISDIR(here.st_mode):
            shutil.rmtree(path)
        temporary = durable.temporary_name(path)
        durable.discard(temporary)
        _keep(stored, temporary)
        os.replace(temporary, path)
    status = os.lstat(path)
    if (status.st_uid, status.st_gid) != (entry["uid"], entry["gid"]):
        _set_owner(entry)
    if stat.S_IMODE(status.st_mode) != entry["mode"]:
        os.chmod(path, entry["mode"])
    if status.st_mtime_ns != entry["mtime_ns"]:
        _set_times(entry)


def _is_the_same(path: str, here: os.stat_result, stored: str, there: os.stat_result) -> bool:
    """Whether the file at ``path`` still is the one that was kept.

    By inode; and by content where inodes cannot tell: an overlay (every container's root) gives a file of a lower layer
    another number than its link, and refuses to rename the one over the other.
    """
    if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
        return True
    alike = stat.S_ISREG(here.st_mode) and (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)
    return alike and hashing.of_file(path) == hashing.of_file(stored)


def _put_link(entry: Entry) -> None:
    path = entry["path"]
    durable.discard(durable.temporary_name(path))
    here = _lstat(path)
    if here is not None and stat.S_ISLNK(here.st_mode) and os.readlink(path) == entry["target"]:
        return
    if here is not None and stat.S_ISDIR(here.st_mode):
        shutil.rmtree(path)
    temporary = durable.temporary_name(path)
    durable.discard(temporary)
    os.symlink(entry["target"], temporary)
    os.replace(temporary, path)
    _set_owner(entry)
    os.utime(path, ns=(entry["mtime_ns"], entry["mtime_ns"]), follow_symlinks=False)


def _set_owner(entry: Entry) -> None:
    status = os.lstat(entry["path"])
    if (status.st_uid, status.st_gid) != (entry["uid"], entry["gid"]):
        os.chown(entry["path"], entry["uid"], entry["gid"], follow_symlinks=False)


def _set_times(entry: Entry) -> None:
    os.utime(entry["path"], ns=(entry["mtime_ns"], entry["mtime_ns"]))


def _lstat(path: str) -> Optional[os.stat_result]:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
