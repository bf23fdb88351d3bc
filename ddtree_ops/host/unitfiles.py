"""The unit's files: written, verified and taken back; the secrets file beside them.

Each write first records how it is taken back (:mod:`.ops`); what an undo record must not hold (secrets) is kept as a
0600 file in the run's snapshot folder.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import time
from typing import Dict, List, Optional

from . import durable, systemd
from .http import environment_line
from .ops import Params, Tx, Work, absolute, need, op, undoer
from .protocol import HostError
from .runner import Service, service_of

MARKER = "written by ddtree-ops"
_OURS = (MARKER, '"ddtree-process/1"')


@op("unit_install")
def unit_install(tx: Tx, params: Params) -> Params:
    """Write the unit and its secrets file, make systemd read it, and check that it is what systemd now sees.

    ``service``, ``text``; ``secrets`` (the text of the environment file, "" for none: never journalled) and
    ``host_secrets`` (name -> file on this host that holds the value); ``cache_dir`` and ``user`` (its owner). A unit of
    that name that is not ours is refused, as is one that systemd complains about.
    """
    service = service_of(params)
    path = absolute(params["service"], "path")
    text = str(need(params, "text"))
    _refuse_foreign(path)
    if service.init == "systemd":
        _refuse_complaints(service.unit, text)
    _make_cache(str(params.get("cache_dir") or ""), str(params.get("user") or ""))
    changed = []
    secrets = str(params.get("secrets") or "") + _host_secrets(dict(params.get("host_secrets") or {}))
    if service.secrets_file and _write(tx, service, service.secrets_file, secrets, 0o600):
        changed.append(service.secrets_file)
    if _write(tx, service, path, text, 0o644):
        changed.append(path)
    if service.init == "systemd":
        systemd.daemon_reload()
        _check_seen(service, path)
    return {"path": path, "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(), "changed": changed}


def _host_secrets(places: Dict[str, str]) -> str:
    """Lines for secrets that lie on this host and never travel."""
    lines = []
    for name, place in sorted(places.items()):
        try:
            with open(os.path.expanduser(place), encoding="utf-8") as file:
                lines.append(environment_line(name, file.read().rstrip("\n")))
        except (OSError, ValueError) as error:
            raise HostError(
                "no_secret",
                "the secret %s cannot be read on the host: %s" % (name, getattr(error, "strerror", "") or "no text"),
                where=place,
                next="put it there (mode 0600), or name another source in the inventory",
            ) from None
    return "".join(lines)


def _refuse_foreign(path: str) -> None:
    if os.path.islink(path):
        raise HostError(
            "unit_foreign",
            "%s is a link to %s, not a unit of ours" % (path, os.readlink(path)),
            where=path,
            next="choose another unit name in the inventory (service: unit)",
        )
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            head = file.read(4096)
    except FileNotFoundError:
        return
    if not any(mark in head for mark in _OURS):
        raise HostError(
            "unit_foreign",
            "%s exists and was not written by ddtree-ops" % path,
            where=path,
            next="choose another unit name in the inventory (service: unit)",
        )


def _refuse_complaints(unit: str, text: str) -> None:
    said = systemd.verify(unit, text)
    if said:
        raise HostError(
            "unit_invalid",
            "systemd-analyze verify complains about the unit: %s" % said[0],
            where=unit,
            next="correct the service settings in the inventory, or the template",
            details={"complaints": said},
        )


def _check_seen(service: Service, path: str) -> None:
    found = systemd.state(service.unit)
    if found["load"] != "loaded" or found["path"] != path or found["needs_reload"]:
        raise HostError(
            "unit_not_seen",
            "systemd does not use %s (it is %s, from %s)" % (path, found["load"], found["path"] or "nowhere"),
            where=path,
            next="systemctl cat %s on the host shows what stands before it" % service.unit,
        )


def _write(tx: Tx, service: Service, path: str, text: str, mode: int) -> bool:
    """Write one file with its way back; False when it is right already. Empty ``text`` means: no such file."""
    data = text.encode("utf-8")
    before = _read(path)
    if before == (data or None) and (before is None or stat.S_IMODE(os.stat(path).st_mode) == mode):
        return False
    kept = ""
    old: Dict[str, int] = {}
    if before is not None:
        status = os.stat(path)
        old = {
            "mode": stat.S_IMODE(status.st_mode),
            "uid": status.st_uid,
            "gid": status.st_gid,
            "mtime_ns": status.st_mtime_ns,
        }
        kept = os.path.join(tx.snapshots, "unit-" + hashlib.sha256(path.encode("utf-8")).hexdigest()[:16])
        os.makedirs(tx.snapshots, 0o700, exist_ok=True)
        if not os.path.exists(kept):  # the first one of a run is the one to go back to
            durable.replace_bytes(kept, before, 0o600)
    created = _missing_folders(path)
    tx.will(
        "restore_unit_file",
        {"service": service.ref, "path": path, "kept": kept, "old": old, "folders": created},
        ("replace %s" if before is not None else "write %s" if data else "remove %s") % path,
    )
    for folder in created:
        os.mkdir(folder, 0o700 if mode == 0o600 else 0o755)
    if data:
        durable.replace_bytes(path, data, mode)
    else:
        durable.discard(path)
    return True


def _read(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _missing_folders(path: str) -> List[str]:
    missing: List[str] = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


@undoer("restore_unit_file")
def restore_unit_file(work: Work, data: Params) -> None:
    """Put the earlier file back, or take the new one away; then systemd reads its units again."""
    path = str(data["path"])
    if data["kept"]:
        old = dict(data["old"])
        with open(str(data["kept"]), "rb") as file:
            durable.replace_bytes(path, file.read(), int(old["mode"]))
        if os.geteuid() == 0:
            os.chown(path, int(old["uid"]), int(old["gid"]))
        os.utime(path, ns=(time.time_ns(), int(old["mtime_ns"])))
    else:
        durable.discard(path)
    for folder in reversed(data["folders"]):
        try:
            os.rmdir(folder)
        except OSError:
            pass  # not empty: it holds what is not of this step
    if str(dict(data["service"]).get("init") or "systemd") == "systemd" and path.startswith("/etc/systemd/"):
        unit = str(data["service"]["unit"])
        systemd.restart_on(unit)
        systemd.daemon_reload()
        systemd.systemctl("reset-failed", unit, check=False)


def _make_cache(path: str, user: str) -> None:
    """The JIT cache folder of the release; it belongs to the user that the service runs as."""
    if not path:
        return
    os.makedirs(path, exist_ok=True)
    if user and os.geteuid() == 0:
        try:
            entry = pwd.getpwnam(user)
        except KeyError:
            raise HostError(
                "no_user", "the host has no user %r" % user, next="correct `user` in the inventory's service"
            ) from None
        os.chown(path, entry.pw_uid, entry.pw_gid)
