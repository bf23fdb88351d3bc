"""Strict checking of host keys: an own reader of known_hosts, so that a message can name file and line.

Three outcomes and no fourth: the key is recorded (go on), the host is not recorded (``HostKeyUnknown``), another key is
recorded or this one is revoked (``HostKeyChanged``). The only way past an unknown key is the fingerprint that the user
gives beforehand; nothing is ever written.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paramiko import MissingHostKeyPolicy, PKey, SSHClient

from ..errors import HostKeyChanged, HostKeyUnknown
from .ssh_config import Endpoint


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    names: tuple[str, ...]
    kind: str  # ssh-ed25519, ...
    blob: bytes
    marker: str  # "", "@revoked", "@cert-authority"
    where: str  # file:line

    def matches(self, name: str) -> bool:
        """Whether the line speaks of ``name``: plain, pattern (``*``, ``?``, ``!``) or hashed."""
        found = False
        for pattern in self.names:
            if pattern.startswith("|1|"):
                found = found or _hash_matches(pattern, name)
            elif pattern.startswith("!") and fnmatch.fnmatchcase(name, _escape(pattern[1:])):
                return False
            else:
                found = found or fnmatch.fnmatchcase(name, _escape(pattern.lower()))
        return found


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint as OpenSSH prints it: ``SHA256:`` and unpadded base64."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read(paths: Iterable[str]) -> tuple[Entry, ...]:
    """All entries of the files that exist, in order; lines that are no entry are skipped, as OpenSSH does."""
    entries = []
    for path in paths:
        try:
            lines = Path(path).read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            continue
        entries += [entry for number, line in enumerate(lines, 1) if (entry := _entry(line, f"{path}:{number}"))]
    return tuple(entries)


def _entry(line: str, where: str) -> Entry | None:
    fields = line.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < 3 or fields[0].startswith("#"):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except ValueError:
        return None
    return Entry(tuple(fields[0].split(",")), fields[1], blob, marker, where)


def _escape(pattern: str) -> str:
    return pattern.replace("[", "[[]")  # only * and ? are special in known_hosts; [host]:port is literal


def _hash_matches(pattern: str, name: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        mine = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(mine, base64.b64decode(digest))
    except ValueError:
        return False


class StrictPolicy(MissingHostKeyPolicy):
    """Decides about every key: the client's own stores stay empty, so that paramiko asks this policy each time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.entries = [entry for entry in read(endpoint.known_hosts) if entry.marker != "@cert-authority"]
        self.accepted = ""  # fingerprint, when the user's own word let an unknown key pass

    def known(self) -> list[Entry]:
        """The entries for this host; those without port count where there is none with it (as for OpenSSH)."""
        name = self.endpoint.known_name.lower()
        found = [entry for entry in self.entries if entry.matches(name)]
        return found or [entry for entry in self.entries if entry.matches(self.endpoint.address.lower())]

    def key_types(self, offered: Iterable[str]) -> tuple[str, ...]:
        """The algorithms to ask for: those of the recorded keys first, so that the server shows a key we can check."""
        kinds = {entry.kind for entry in self.known() if not entry.marker}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        offered = tuple(offered)
        return (*(kind for kind in offered if kind in kinds), *(kind for kind in offered if kind not in kinds))

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:  # noqa: ARG002
        """Called by paramiko with the key that the server proved to hold; returns only for a key to be trusted."""
        blob = key.asbytes()
        known = self.known()
        for entry in known:
            if entry.blob == blob and entry.marker == "@revoked":
                raise self._changed(key, entry, "the key is marked @revoked")
        recorded = [entry for entry in known if not entry.marker]
        if any(entry.blob == blob for entry in recorded):
            return
        name = self.endpoint.known_name.lower()
        exact = [entry for entry in recorded if entry.matches(name)]
        if exact:
            same = [entry for entry in exact if entry.kind == key.get_name()]
            raise self._changed(key, (same or exact)[0], "it may be another machine on that address, or an attack")
        if hmac.compare_digest(self.endpoint.accept_host_key, fingerprint(blob)):
            self.accepted = fingerprint(blob)
            return
        raise self._unknown(key)

    def _changed(self, key: PKey, entry: Entry, why: str) -> HostKeyChanged:
        seen, recorded = fingerprint(key.asbytes()), fingerprint(entry.blob)
        return HostKeyChanged(
            f"the host key of {self.endpoint.where} is not the recorded one: "
            f"it shows {key.get_name()} {seen}, recorded is {entry.kind} {recorded}",
            where=entry.where,
            why=f"{why}; nothing was run there",
            next_step="ask whoever runs the host; only if the change is theirs, remove the line: "
            f"ssh-keygen -R '{self.endpoint.known_name}' -f {entry.where.rpartition(':')[0]}",
            details={"seen": seen, "recorded": recorded, "key_type": key.get_name()},
        )

    def _unknown(self, key: PKey) -> HostKeyUnknown:
        seen, expected = fingerprint(key.asbytes()), self.endpoint.accept_host_key
        kind = key.get_name()
        scan = f"ssh-keyscan -p {self.endpoint.port} -t {kind.removeprefix('ssh-')} {self.endpoint.address}"
        target = self.endpoint.known_hosts[0] if self.endpoint.known_hosts else "~/.ssh/known_hosts"
        what = f"the host key of {self.endpoint.where} is not known: {kind} {seen}"
        if expected:
            what += f"; --accept-new-host-key expects {expected}"
        return HostKeyUnknown(
            what,
            where=", ".join(self.endpoint.known_hosts),
            why="no entry names this host; a key is never accepted unseen, and nothing was run there",
            next_step="compare with `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` on the host's console; "
            f"if equal, record it: {scan} >> {target}, or for this run only: --accept-new-host-key {seen}",
            details={"seen": seen, "expected": expected, "key_type": kind, "known_name": self.endpoint.known_name},
        )
