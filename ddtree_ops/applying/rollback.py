"""The ways back of a host, as single calls: rollback, recover, purge, and what the host knows of its runs."""

from __future__ import annotations

from typing import Any

from ..remote.channel import Link, OnEvent
from .journal import LocalJournal
from .transaction import whoami


def rollback(
    link: Link, state_root: str, *, force: bool = False, run_id: str = "", on_event: OnEvent | None = None
) -> dict[str, Any]:
    """Take back the current deployment and prove the state before it by the root hash.

    Returns ``{"nothing": True}`` when nothing is deployed, else ``root, root_before, proven, undone, foreign, notes,
    deployment`` (the one that is current now). ``foreign`` names what others changed elsewhere since; it is left alone.

    Raises:
        Refused: ``drifted``, the deploy's own paths were changed since; ``force`` overwrites those.
        RollbackFailed: the host is not as before (exit 7).
    """
    params = {"state_root": state_root, "who": whoami(), "message": "rollback", "force": force, "run_id": run_id}
    return _record(link, "rollback", link.call("rollback", params, timeout=None, on_event=on_event))


def recover(link: Link, state_root: str, *, force: bool = False, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Take back the run that was interrupted, and prove it. As :func:`rollback`, with ``run`` (what was found).

    ``force``: when nothing of ours is left to undo but paths differ that a human has looked at, the run ends all the
    same; ``proven`` is then False and ``accepted`` names them.
    """
    params = {"state_root": state_root, "who": whoami(), "message": "recover", "force": force}
    return _record(link, "recover", link.call("recover", params, timeout=None, on_event=on_event))


def purge(
    link: Link,
    state_root: str,
    *,
    force: bool = False,
    keep_journal: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Remove our state folder. Returns ``removed, freed`` (bytes) and ``left`` (names in it that are not ours).

    Raises:
        Refused: ``deployed`` (roll back first) or ``edited`` (somebody worked in a tree; ``force`` removes it).
    """
    params = {"state_root": state_root, "who": whoami(), "force": force, "keep_journal": keep_journal}
    return link.call("purge", params, timeout=None, on_event=on_event)


def deployment(link: Link, state_root: str, run_id: str = "") -> dict[str, Any]:
    """``deployment, lock, interrupted, runs`` of the host, and the ``records`` of ``run_id`` if one is named."""
    return link.call("deployment", {"state_root": state_root, "run_id": run_id}, timeout=60.0)


def root_hash(
    link: Link, scope: dict[str, Any], state_root: str = "", *, against: dict[str, str] | None = None
) -> dict[str, Any]:
    """Measure ``scope`` without a write; ``against`` (``run_id, when``) adds the paths that differ from that list."""
    params = {"scope": scope, "state_root": state_root, "against": against}
    return link.call("root_hash", params, timeout=None)


def _record(link: Link, kind: str, result: dict[str, Any]) -> dict[str, Any]:
    if not result.get("nothing"):
        journal = LocalJournal(link.host, str(result.get("run_id")))
        journal.write(kind, root=result.get("root"), root_before=result.get("root_before"), undone=result.get("undone"))
    return result
