"""Processes and sockets from /proc. A process may end at any moment: whatever cannot be read is simply not there."""

from __future__ import annotations

import os
import re
import struct
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from .look import read_bytes, read_text

#: Environment variables that decide what is imported and on what it runs. Nothing else leaves the host.
SAFE_VARIABLES = frozenset(("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"))
_SECRET = re.compile(r"(?<![a-z])(api|hf)?(key|token|secret|password|passwd|credentials?|auth)(?![a-z])", re.IGNORECASE)
_CONTAINER = re.compile(
    r"/(docker|libpod|lxc|kubepods|containerd|crio|machine\.slice)[-/.:]|docker-[0-9a-f]{12}|cri-containerd"
)


class Process(NamedTuple):
    """One process: ids, arguments as they are now (programs retitle themselves), start in seconds since the epoch."""

    pid: int
    parent: int
    group: int
    session: int
    uid: int
    args: Tuple[str, ...]
    start_time: float


class Listener(NamedTuple):
    """A listening TCP socket."""

    address: str
    port: int
    inode: str


def is_secret(name: str) -> bool:
    """A variable or option whose value must not be reported."""
    return bool(_SECRET.search(name))


def safe_environment(variables: Dict[str, str]) -> Dict[str, str]:
    """The part of an environment that may be reported: import path, GPUs and SGLang's own settings, no secrets."""
    return {
        key: value
        for key, value in sorted(variables.items())
        if key in SAFE_VARIABLES or (key.startswith("SGLANG_") and not is_secret(key))
    }


def redact(args: Iterable[str]) -> List[str]:
    """A command line with the values of secret options replaced by ``***``."""
    shown: List[str] = []
    hide = False
    for word in args:
        option, sign, _ = word.partition("=")
        named = word.startswith("--") and is_secret(option)
        if hide and not word.startswith("--"):
            shown.append("***")
        else:
            shown.append(option + "=***" if named and sign else word)
        hide = named and not sign
    return shown


def _boot_time() -> float:
    for line in read_text("/proc/stat", 1 << 20).splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def process(pid: int, boot_time: Optional[float] = None) -> Optional[Process]:
    """The process ``pid`` as it is now, None when it is gone (or a kernel thread)."""
    stat = read_bytes("/proc/%d/stat" % pid, 4096)
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
    raw = read_bytes("/proc/%d/cmdline" % pid, 1 << 20)
    args = tuple(os.fsdecode(word) for word in raw.rstrip(b"\0").split(b"\0")) if raw else ()
    ticks = os.sysconf("SC_CLK_TCK")
    started = (_boot_time() if boot_time is None else boot_time) + int(fields[19]) / ticks
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), uid, args, started)


def all_processes() -> Dict[int, Process]:
    """Every process that can be read, by pid."""
    boot_time = _boot_time()
    found: Dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            one = process(int(name), boot_time)
            if one is not None:
                found[one.pid] = one
    return found


def environment_of(pid: int) -> Dict[str, str]:
    """The environment that ``pid`` was started with; empty when it may not be read."""
    pairs = (item.partition(b"=") for item in read_bytes("/proc/%d/environ" % pid, 4 << 20).split(b"\0"))
    return {os.fsdecode(key): os.fsdecode(value) for key, sign, value in pairs if sign}


def link(pid: int, name: str) -> str:
    """What ``/proc/<pid>/<name>`` points to ("exe", "cwd", "root", "ns/pid"), "" when it may not be read."""
    try:
        target = os.readlink("/proc/%d/%s" % (pid, name))
    except OSError:
        return ""
    return target[: -len(" (deleted)")] if target.endswith(" (deleted)") else target


def cgroup_of(pid: int) -> str:
    """The cgroup path that systemd uses: version 2, else the named hierarchy of version 1."""
    unified = named = ""
    for line in read_text("/proc/%d/cgroup" % pid, 65536).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            unified = path
        elif controllers == "name=systemd":
            named = path
    return unified if unified not in ("", "/") else named or unified


def unit_of(cgroup: str) -> str:
    """The service that a cgroup path belongs to, "" for a login session or none."""
    for part in reversed(cgroup.split("/")):
        if part.endswith(".service") and not re.match(r"^user@\d+\.service$", part):
            return part
    return ""


def in_foreign_namespace(pid: int, cgroup: str) -> bool:
    """``pid`` lives in a container: another pid namespace than ours, or a cgroup that a container runtime made."""
    theirs, ours = link(pid, "ns/pid"), link(os.getpid(), "ns/pid")
    return bool(theirs and ours and theirs != ours) or bool(_CONTAINER.search(cgroup))


def site_packages_of(pid: int) -> str:
    """The site-packages folder that most of the process's mapped libraries come from, "" when none does."""
    counts: Dict[str, int] = {}
    for match in re.finditer(rb"(/[^\n]*?/(?:site|dist)-packages)/", read_bytes("/proc/%d/maps" % pid, 16 << 20)):
        folder = os.fsdecode(match.group(1))
        counts[folder] = counts.get(folder, 0) + 1
    return max(counts, key=lambda folder: counts[folder]) if counts else ""


# -- sockets --


def listeners(net: str = "/proc/net") -> List[Listener]:
    """Listening TCP sockets of a network namespace (``/proc/<pid>/net`` for that of a process)."""
    found: List[Listener] = []
    for name, family in (("tcp", 4), ("tcp6", 6)):
        for line in read_text(os.path.join(net, name), 32 << 20).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A":
                host, _, port = fields[1].partition(":")
                found.append(Listener(_address(host, family), int(port, 16), fields[9]))
    return found


def _address(text: str, family: int) -> str:
    import socket

    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack("=%dI" % len(words), *words)
    return socket.inet_ntop(socket.AF_INET if family == 4 else socket.AF_INET6, packed)


def socket_owners(inodes: Set[str], pids: Iterable[int]) -> Dict[str, List[int]]:
    """The processes that hold each of the socket ``inodes``; those that may not be asked are left out."""
    owners: Dict[str, List[int]] = {}
    wanted = {"socket:[%s]" % inode: inode for inode in inodes}
    for pid in pids:
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(folder + "/" + name)
            except OSError:
                continue
            inode = wanted.get(target)
            if inode is not None and pid not in owners.setdefault(inode, []):
                owners[inode].append(pid)
    return owners
