"""A transaction on one host, driven step by step over an open link.

::

    with Transaction(link, state_root=root, message="deploy 0.5.20-...", scope=scope) as tx:
        tx.do("derive_tree", {...})
        tx.do("install_editable", {...})
        tx.commit(deployment)

Leaving the block without :meth:`Transaction.commit` undoes everything and proves it. The link keeps telling the host
that we live; if it breaks, the host undoes by itself.
"""

from __future__ import annotations

import getpass
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from ..errors import DdtreeError, Interrupted
from ..remote.channel import Link, OnEvent
from .interrupt import InterruptGuard
from .journal import LocalJournal


class Transaction:
    """One run on one host.

    Args:
        state_root: Our folder on the host.
        message: What the run is about; others see it when they find the lock held.
        scope: What the root hash covers (``environment, checkouts, unit_paths, units``).
        need_bytes: Free space that the host must have under ``state_root``.
        writes: Paths that the run will write to; refused before any change when they cannot be written.
        run_id: Made from time and chance when not given.
        tell: Receives sentences for the user (stderr by default).
    """

    def __init__(
        self,
        link: Link,
        *,
        state_root: str,
        message: str,
        scope: Mapping[str, Any],
        need_bytes: int = 0,
        writes: Iterable[str] = (),
        tool_version: str = "",
        run_id: str = "",
        who: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.run_id = run_id or new_run_id()
        self.state_root = state_root
        self.message = message
        self.scope = dict(scope)
        self.before: dict[str, Any] = {}
        self.after: dict[str, Any] = {}
        self.undone: dict[str, Any] | None = None
        self._link = link
        self._begin = {
            "state_root": state_root,
            "run_id": self.run_id,
            "who": who or whoami(),
            "message": message,
            "scope": self.scope,
            "need_bytes": need_bytes,
            "writes": [str(path) for path in writes],
            "tool_version": tool_version,
        }
        self._tell = tell or _to_stderr
        self._guard = InterruptGuard(self._tell)
        self._journal = LocalJournal(link.host, self.run_id)
        self._open = False

    # -- the four calls --

    def begin(self, *, on_event: OnEvent | None = None) -> dict[str, Any]:
        """Lock, measure, start the journal; returns ``{"root", "parts", ...}`` of the host as it is.

        Raises:
            HostLocked: another run works there (exit 5). PlanStale: an interrupted run must be recovered first.
            Refused: no space, read-only, no permission. Nothing was written in all these cases.
        """
        self.before = self._link.call("tx_begin", self._begin, timeout=None, on_event=on_event)["before"]
        self._open = True
        self._guard.install()
        self._journal.write("begin", message=self.message, state_root=self.state_root, root=self.before.get("root"))
        return self.before

    def do(
        self,
        op: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = 600.0,
        on_event: OnEvent | None = None,
    ) -> dict[str, Any]:
        """Run one operation. A DdtreeError leaves the transaction open for :meth:`abort` (or :meth:`commit`)."""
        self._guard.check()
        started = time.monotonic()
        try:
            result = self._link.call(
                "tx_do", {"op": op, "params": dict(params or {})}, timeout=timeout, on_event=on_event
            )
        except KeyboardInterrupt:
            raise self.stopped() from None
        except DdtreeError as error:
            self._journal.write("failed", op=op, code=error.reason, what=error.what)
            raise
        self._journal.write("done", op=op, seconds=round(time.monotonic() - started, 2))
        return result

    def commit(self, deployment: Mapping[str, Any] | None = None, *, on_event: OnEvent | None = None) -> dict[str, Any]:
        """End well; ``deployment`` becomes the host's deployment.json. Returns the root hash and parts after it."""
        self._guard.check()
        self._guard.too_late = True
        params = {"deployment": dict(deployment)} if deployment else {}
        try:
            self.after = self._link.call("tx_commit", params, timeout=None, on_event=on_event)["after"]
        except KeyboardInterrupt:
            raise self.stopped() from None
        self.release()
        self._journal.write("committed", root=self.after.get("root"))
        return self.after

    def abort(self, reason: str, *, on_event: OnEvent | None = None) -> dict[str, Any]:
        """Undo everything and prove it; returns ``{"root", "root_before", "undone", "notes", ...}``.

        Raises:
            RollbackFailed: the host is not as before (exit 7); details name the paths.
        """
        self._tell_once(reason)
        try:
            self.undone = self._link.call("tx_abort", {"reason": reason}, timeout=None, on_event=on_event)
        except KeyboardInterrupt:
            raise self.stopped() from None
        except DdtreeError as error:
            self._journal.write("undo failed", code=error.reason, what=error.what)
            raise
        finally:
            self.release()
        self._journal.write("undone", reason=reason, root=self.undone.get("root"))
        return self.undone

    # -- around them --

    def check_interrupt(self) -> None:
        """Raise :class:`Interrupted` when the user asked to stop meanwhile."""
        self._guard.check()

    @property
    def is_open(self) -> bool:
        """Begun, and neither committed nor undone."""
        return self._open

    def __enter__(self) -> Transaction:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open:
            self.abort(str(error) if error is not None else "not committed")

    def stopped(self) -> Interrupted:
        """The second Ctrl-C: nobody waits for the host any more, which undoes by itself once the link is closed."""
        self.release()
        late = " unless it is recorded already" if self._guard.too_late else ""
        return Interrupted(
            f"stopped at once; the host undoes run {self.run_id} by itself{late}",
            where=self._link.host,
            next_step=f"see how it ended: ddtree-ops status --host {self._link.host}; "
            f"if it is unfinished: ddtree-ops recover --host {self._link.host} --yes",
            code="stopped",
        )

    def _tell_once(self, reason: str) -> None:
        self._journal.write("undoing", reason=reason)

    def release(self) -> None:
        """Give the signals back, however it ended; what is still open on the host, closing the link undoes."""
        self._open = False
        self._guard.remove()


def new_run_id() -> str:
    """Sorts by time, differs by chance: ``20260314T091500-1f3a9c``."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def whoami() -> str:
    """``user@machine``, for the lock and the journal."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "?"
    return f"{user}@{socket.gethostname()}"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
