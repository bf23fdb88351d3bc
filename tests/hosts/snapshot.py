"""The state of a whole host as values: take it before and after, and compare.

A test host's root is an overlay: everything that the host ever wrote lies in one folder, its upper folder, over
layers that never change. So the manifest of that folder (deleted files are in it too, as white-outs) *is* the state
of the whole disk, and it is small. Memory file systems (/tmp, /dev/shm, our folder under /run) are walked beside it.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What the machine itself writes while nobody does anything: logs, random seed, timers' stamps, login records.
VOLATILE = (
    "/var/log/",
    "/var/lib/systemd/",
    "/var/lib/private/",
    "/var/tmp/systemd-private",
    "/tmp/systemd-private",
    "/etc/.pwd.lock",
)

# Runs on the host. For each path: kind, mode, owner, mtime in ns, size, and content hash, link target or device number.
PROGRAM = r"""
import hashlib, json, os, stat, sys
roots, volatile = json.load(sys.stdin)
found = {}
def note(shown, path):
    st = os.lstat(path)
    kind, extra = stat.S_IFMT(st.st_mode), ""
    if stat.S_ISREG(st.st_mode):
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
        extra = digest.hexdigest()
    elif stat.S_ISLNK(st.st_mode):
        extra = os.readlink(path)
    elif stat.S_ISDIR(st.st_mode):
        try:
            extra = "opaque" if os.getxattr(path, "trusted.overlay.opaque", follow_symlinks=False) == b"y" else ""
        except OSError:
            pass
    elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        extra = str(st.st_rdev)
    size = st.st_size if stat.S_ISREG(st.st_mode) else 0
    found[shown] = [oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns, size, extra]
def skip(shown):
    return any(shown == v.rstrip("/") or shown.startswith(v) for v in volatile)
for root, shown_root in roots:
    if not os.path.lexists(root):
        continue
    if not skip(shown_root):
        note(shown_root or "/", root)
    for folder, names, files in os.walk(root):
        shown = shown_root + folder[len(root):]
        names[:] = [n for n in names if not skip(shown + "/" + n)]
        for name in names + files:
            if not skip(shown + "/" + name):
                try:
                    note(shown + "/" + name, os.path.join(folder, name))
                except FileNotFoundError:
                    pass
json.dump(found, sys.stdout)
"""


State = tuple[Any, ...]
_WHITEOUT = ("0o20000", "0")  # kind and device number of what overlayfs puts in the place of a deleted file


@dataclass(frozen=True)
class Snapshot:
    """The state of a host: every path on its disk that is not from a read-only layer, and its service units."""

    paths: dict[str, State]
    units: dict[str, str]

    @classmethod
    def of(cls, manifest: str, units: str) -> Snapshot:
        """Parse what PROGRAM printed, and the blocks of ``systemctl show``."""
        paths = {path: tuple(facts) for path, facts in json.loads(manifest).items()}
        blocks = [dict(line.split("=", 1) for line in b.splitlines() if "=" in line) for b in units.split("\n\n")]
        return cls(paths, {b["Id"]: json.dumps(b, sort_keys=True) for b in blocks if "Id" in b})

    def changes(self, after: Snapshot) -> list[str]:
        """What differs in ``after``: one line per path or unit, empty when nothing does."""
        lines = []
        for path in sorted(self.paths.keys() | after.paths.keys()):
            old, new = self.paths.get(path), after.paths.get(path)
            if old == new:
                continue
            if old is None:
                lines.append(f"new      {path}")
            elif new is None:
                lines.append(f"gone     {path}")
            else:
                names = ("mode", "uid", "gid", "mtime", "size", "content")
                what = [n for n, a, b in zip(names, old, new, strict=True) if a != b]
                lines.append(f"changed  {path} ({', '.join(what)})")
        for unit in sorted(self.units.keys() | after.units.keys()):
            if self.units.get(unit) != after.units.get(unit):
                lines.append(f"unit     {unit}: {self.units.get(unit)} -> {after.units.get(unit)}")
        return lines

    def effective(self, lower: Sequence[Path]) -> dict[str, State | None]:
        """Where the host's disk differs from its layers: path -> (mode, uid, gid, content), None for deleted.

        A file that was written again with the same content differs in nothing, so this shows what a rollback must have
        undone; times are left out. ``lower``: the layers, the first on top, and the image.
        """
        found: dict[str, State | None] = {}
        for path, facts in self.paths.items():
            below = _below(lower, path)
            state = None if (facts[0], facts[5]) == _WHITEOUT else (*facts[:3], facts[5].removeprefix("opaque"))
            if state != below:
                found[path] = state
            if facts[5] == "opaque":
                hidden = {f"{path}/{name}" for layer in lower for name in _names(layer / path.lstrip("/"))}
                found.update(dict.fromkeys(sorted(hidden - self.paths.keys())))
        return found


def _names(folder: Path) -> list[str]:
    return [one.name for one in folder.iterdir()] if folder.is_dir() and not folder.is_symlink() else []


def _below(lower: Sequence[Path], path: str) -> State | None:
    """(mode, uid, gid, content) of a path in the topmost layer that has it."""
    for layer in lower:
        place = layer / path.lstrip("/")
        try:
            facts = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        content = ""
        if stat.S_ISREG(facts.st_mode):
            content = hashlib.sha256(place.read_bytes()).hexdigest()
        elif stat.S_ISLNK(facts.st_mode):
            content = str(place.readlink())
        elif stat.S_ISCHR(facts.st_mode):
            content = str(facts.st_rdev)
        return (oct(facts.st_mode), facts.st_uid, facts.st_gid, content)
    return None
