"""Which process listens on a port, and how to name it in a message."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, NamedTuple, Set

from . import procs


class Listener(NamedTuple):
    """A listening socket; ``pids`` are the processes that hold it (empty when we may not see them)."""

    address: str
    port: int
    pids: List[int]

    def as_dict(self) -> Dict[str, Any]:
        """For results."""
        return dict(self._asdict())


def listeners(port: int, among: Iterable[int] = ()) -> List[Listener]:
    """The sockets that listen on ``port``; their owners are looked for in ``among`` first, then everywhere."""
    found = [item for item in procs.listeners() if item.port == port]
    if not found:
        return []
    inodes = {item.inode for item in found}
    owners = procs.socket_owners(inodes, among)
    missing = inodes - set(owners)
    if missing:
        owners.update(procs.socket_owners(missing, (int(name) for name in os.listdir("/proc") if name.isdigit())))
    return [Listener(item.address, port, sorted(owners.get(item.inode, ()))) for item in found]


def owners(port: int, among: Iterable[int] = ()) -> Set[int]:
    """The processes that hold a listening socket on ``port``."""
    return {pid for item in listeners(port, among) for pid in item.pids}


def describe(pids: Iterable[int]) -> str:
    """Processes for a message: pid, user, command without secrets."""
    texts: List[str] = []
    for pid in sorted(set(pids)):
        found = procs.process(pid)
        if found is not None:
            command = " ".join(procs.redact(found.args))[:120] or "no command line"
            texts.append("pid %d (uid %d: %s)" % (pid, found.uid, command))
    return "; ".join(texts) or "a process that this account may not see"
