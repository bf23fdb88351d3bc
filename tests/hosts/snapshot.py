"""The state of a whole host as values: take it before and after, and compare.

A test host's root is an overlay: everything that the host ever wrote lies in one folder, its upper folder, over
layers that never change. So the manifest of that folder (deleted files are in it too, as white-outs) *is* the state
of the whole disk, and it is small. Memory file systems (/tmp, /dev/shm, our folder under /run) are walked beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Snapshot:
    """The state of a host: every path on its disk that is not from a read-only layer, and its service units."""

    paths: dict[str, tuple[Any, ...]]
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
