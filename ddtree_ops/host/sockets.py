"""Which process listens on a port: from ``/proc/net/tcp`` to the socket's inode to the process that holds it."""

from __future__ import annotations

import os
import socket
import struct
from typing import Dict, Iterable, List, NamedTuple, Optional

_LISTEN = "0A"


class Listener(NamedTuple):
    """A listening socket; ``pids`` are the processes that hold it (empty when we may not see them)."""

    address: str
    port: int
    inode: int
    pids: List[int]


def listeners(port: int, among: Optional[Iterable[int]] = None) -> List[Listener]:
    """The sockets that listen on ``port``; their owners are looked for in ``among`` first, then everywhere."""
    found: List[Listener] = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for fields in _table(name):
            address, _, number = fields[1].rpartition(":")
            if fields[3] == _LISTEN and int(number, 16) == port:
                found.append(Listener(_address(address, family), port, int(fields[9]), []))
    if not found:
        return []
    owners = _owners({item.inode for item in found}, list(among or ()))
    return [item._replace(pids=sorted(owners.get(item.inode, ()))) for item in found]


def _table(name: str) -> List[List[str]]:
    try:
        with open("/proc/net/" + name) as file:
            return [line.split() for line in file][1:]
    except OSError:
        return []


def _address(text: str, family: int) -> str:
    words = [int(text[index : index + 8], 16) for index in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(struct.pack("=I", word) for word in words))


def _owners(inodes: Iterable[int], first: List[int]) -> Dict[int, List[int]]:
    wanted = {"socket:[%d]" % inode: inode for inode in inodes}
    found: Dict[int, List[int]] = {}
    for pids in (first, [int(name) for name in os.listdir("/proc") if name.isdigit()]):
        for pid in pids:
            for link in _descriptors(pid):
                if link in wanted:
                    found.setdefault(wanted[link], []).append(pid)
        if len(found) == len(wanted):
            break
    return {inode: sorted(set(pids)) for inode, pids in found.items()}


def _descriptors(pid: int) -> List[str]:
    folder = "/proc/%d/fd" % pid
    links: List[str] = []
    try:
        names = os.listdir(folder)
    except OSError:
        return links
    for name in names:
        try:
            links.append(os.readlink(os.path.join(folder, name)))
        except OSError:
            continue
    return links


def describe(pid: int) -> str:
    """A process for a message: pid, user, command."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        owner = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return "pid %d (gone)" % pid
    return "pid %d (uid %d: %s)" % (pid, owner, words[:100] or "no command line")
