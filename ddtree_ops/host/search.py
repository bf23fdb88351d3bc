"""Look through the places where people keep environments and checkouts, to a bounded depth and within a time."""

from __future__ import annotations

import itertools
import os
import re
import time
from typing import List, NamedTuple, Set, Tuple

from .look import PACKAGE, Look, names_in, read_text

#: Roots with the depth to which their folders are read.
ROOTS = (
    ("/root", 3),
    ("/opt", 3),
    ("/srv", 3),
    ("/workspace", 3),
    ("/sgl-workspace", 3),
    ("/data", 3),
    ("/mnt", 2),
    ("/usr/local", 2),
    ("/app", 2),
    ("/", 2),
)
_SKIP = frozenset(
    "proc sys dev run boot lost+found node_modules __pycache__ site-packages dist-packages .git .cache .npm .vscode "
    ".cursor huggingface hub snapshots blobs .rustup .cargo .nvm .pyenv share include man doc".split()
)
_SKIP_AT_TOP = _SKIP | frozenset(
    "bin etc home lib lib32 lib64 libx32 media mnt opt root sbin snap srv tmp usr var".split()
)
_FREE_STEPS = frozenset(("python", "src", PACKAGE))
#: A file server that does not answer would hang every process that asks; below the usual places it is not asked.
_NETWORK = re.compile(r"^(nfs4?|cifs|smb3?|autofs|ceph|lustre|beegfs|gpfs|glusterfs|9p|afs|fuse\..+)$")
MOST_CPU_SECONDS = 0.8
MOST_SECONDS = 5.0
MOST_FOLDERS = 20000
MOST_ENTRIES = 5000  # of one folder


class Found(NamedTuple):
    """What the search brought: environment folders, and package folders that contain SGLang's source."""

    environments: Tuple[str, ...]
    package_folders: Tuple[str, ...]


def package_folders(place: str) -> List[str]:
    """The ``sglang`` package folders that a checkout (or the package's own folder) at ``place`` holds."""
    found = []
    for inner in ("python/" + PACKAGE, "python/src/" + PACKAGE, PACKAGE, "src/" + PACKAGE, ""):
        folder = os.path.normpath(os.path.join(place, inner))
        if os.path.basename(folder) == PACKAGE and is_package(folder) and folder not in found:
            found.append(folder)
    return found


def is_package(folder: str) -> bool:
    """``folder`` holds the source of SGLang, not merely a folder of that name."""
    return os.path.isfile(os.path.join(folder, "__init__.py")) and os.path.isdir(os.path.join(folder, "srt"))


class _Search:
    def __init__(self, look: Look) -> None:
        self.look = look
        self.stop_at = time.monotonic() + look.left(MOST_SECONDS)
        self.stop_at_cpu = time.thread_time() + MOST_CPU_SECONDS  # a busy machine is no reason to look at less
        self.network = network_mounts()
        self.folders = 0
        self.seen: Set[Tuple[int, int]] = set()
        self.environments: List[str] = []
        self.packages: List[str] = []

    def exhausted(self) -> bool:
        late = time.monotonic() > self.stop_at or time.thread_time() > self.stop_at_cpu
        return late or self.folders >= MOST_FOLDERS

    def visit(self, folder: str, depth: int, free: int = 3) -> None:
        """Look at ``folder`` and below it to ``depth``; steps into a checkout's usual folders are ``free``."""
        if self.exhausted():
            return
        try:
            here = os.stat(folder)
            with os.scandir(folder) as listing:
                entries = sorted(itertools.islice(listing, MOST_ENTRIES), key=lambda item: item.name)
        except OSError:
            return
        if (here.st_dev, here.st_ino) in self.seen:
            return
        self.seen.add((here.st_dev, here.st_ino))
        self.folders += 1
        names = {entry.name for entry in entries}
        if "pyvenv.cfg" in names or "conda-meta" in names:
            self.environments.append(folder)
        elif os.path.basename(folder) == PACKAGE and "__init__.py" in names and "srt" in names:
            self.packages.append(folder)
        else:
            for entry in entries:
                self._step(entry, folder, depth, free)

    def _step(self, entry: "os.DirEntry[str]", folder: str, depth: int, free: int) -> None:
        skip = _SKIP_AT_TOP if folder == "/" else _SKIP
        if entry.name in skip or entry.path in self.network or not _is_folder(entry):
            return
        if entry.name in _FREE_STEPS and free > 0:
            self.visit(entry.path, depth, free - 1)
        elif depth > 0:
            self.visit(entry.path, depth - 1, free)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def search(look: Look, homes: List[str]) -> Found:
    """Search :data:`ROOTS`, every home and the request's ``extra_roots``; ``roots`` replaces the usual places.

    The places are noted in ``look.searched``.
    """
    state = _Search(look)
    roots = [(root, 4) for root in look.texts("extra_roots")]
    if "roots" in look.params:
        roots += [(root, 4) for root in look.texts("roots")]
    else:
        roots += [(home, 3) for home in homes if home not in ("/", "/root")] + list(ROOTS)
    for root, depth in roots:
        named = root in look.texts("extra_roots")
        if root in state.network and not named:
            look.warn("%s was not searched: it is on a file server; name what is there in the inventory" % root)
        elif os.path.isdir(root):
            look.looked(root)
            state.visit(root, depth)
    if state.exhausted():
        look.warn(
            "the search for copies stopped after %d folders; "
            "name others as `environment` or `checkouts` in the inventory" % state.folders
        )
    return Found(tuple(state.environments), tuple(state.packages))


def network_mounts() -> Set[str]:
    """Mount points of network file systems, of the current user's home and its parents excepted."""
    found = set()
    home = os.path.expanduser("~")
    for line in read_text("/proc/self/mounts", 4 << 20).splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and _NETWORK.match(fields[2]):
            point = fields[1].replace("\\040", " ")
            if not (home == point or home.startswith(point.rstrip("/") + "/")):
                found.add(point)
    return found


def homes() -> List[str]:
    """Home folders of people (and root), from the password database and /home."""
    import pwd

    found = [os.path.expanduser("~")]
    for entry in pwd.getpwall():
        if (entry.pw_uid == 0 or 1000 <= entry.pw_uid < 60000) and os.path.isdir(entry.pw_dir):
            found.append(entry.pw_dir)
    found += [os.path.join("/home", name) for name in names_in("/home")]
    unique: List[str] = []
    for home in found:
        if home not in unique and home != "/":
            unique.append(home)
    return unique
