"""Every way the tool can stop, as one exception tree; each class knows its exit code.

::

    DdtreeError                       1   a bug in the tool, unless a subclass says otherwise
    ├── UsageError                    2   wrong command line, consent missing
    │   └── ConfigError               2   inventory, playbook, recipe: file, line, key, what is allowed
    ├── HostUnreachable               3   no route, refused, timed out
    │   ├── AuthenticationFailed      3
    │   ├── HostKeyUnknown            3
    │   ├── HostKeyChanged            3
    │   └── TransportError            3   the connection broke, or a reply was damaged
    ├── Refused                       4   found out before any change
    │   ├── PatchConflict             4   base, ours and theirs of the first conflict
    │   ├── PatchDamaged              4   a series or patch file is not what was recorded
    │   ├── AnchorNotFound            4   a recipe's anchor is not in this source
    │   └── StepFailed                4   failed on the way, undone, host as before
    ├── PlanStale                     5   the host moved since the plan was made
    │   └── HostLocked                5   another run holds the lock
    ├── RolledBack                    6   a deploy failed and was undone by itself
    ├── RollbackFailed                7   a human is needed
    ├── GateFailed                    8   a gate or comparison failed, or a bench is INVALID
    ├── Unhealthy                     9   installed, but the service is not what was asked for
    ├── Drift                        10   what runs is not what was deployed
    └── Interrupted                 130   stopped by the user, unwound cleanly

A message says *what* failed; ``where`` and ``why`` place it; ``next_step`` is a command or an
edit that the reader can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

#: With several hosts the worst outcome wins, in this order (architecture: exit codes).
SEVERITY = (7, 1, 9, 6, 8, 4, 5, 3, 2, 130, 10, 0)


class DdtreeError(Exception):
    """Base of all errors that a user may see; ``exit_code`` is what the process ends with."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "bug"

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        why: str = "",
        next_step: str = "",
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.next_step = next_step
        self.details: dict[str, Any] = dict(details or {})
        self.reason = code or type(self).code

    def as_dict(self) -> dict[str, Any]:
        """The error as the ``error`` object of every ``--json`` document."""
        return {
            "code": self.reason,
            "exit_code": self.exit_code,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "next": self.next_step,
            "details": self.details,
        }


class UsageError(DdtreeError):
    """Wrong command line, or a change without consent."""

    exit_code = 2
    code = "usage"


class ConfigError(UsageError):
    """A configuration file is wrong; ``where`` is ``file:line: key``."""

    code = "config"


class HostUnreachable(DdtreeError):
    """No connection to the host."""

    exit_code = 3
    code = "unreachable"


class AuthenticationFailed(HostUnreachable):
    """The host refused every key that was offered."""

    code = "authentication"


class HostKeyUnknown(HostUnreachable):
    """The host's key is in no known_hosts file that was read."""

    code = "host_key_unknown"


class HostKeyChanged(HostUnreachable):
    """The host presents another key than the recorded one."""

    code = "host_key_changed"


class TransportError(HostUnreachable):
    """The connection broke or a reply was damaged; the host's state is unknown until the next run asks."""

    code = "transport"


class Refused(DdtreeError):
    """Found out before any change; the host is as it was."""

    exit_code = 4
    code = "refused"


class PatchConflict(Refused):
    """A three-way merge is not clean; details hold ``file, function, line, base, ours, theirs``."""

    code = "patch_conflict"


class PatchDamaged(Refused):
    """A patch or series file differs from what was recorded when it was made."""

    code = "patch_damaged"


class AnchorNotFound(Refused):
    """An anchor of the recipe does not exist in this source."""

    code = "anchor_not_found"


class StepFailed(Refused):
    """A step failed after the change began; everything was undone and proven, the host is as before."""

    code = "step_failed"


class PlanStale(DdtreeError):
    """The host is no longer what the plan was made for."""

    exit_code = 5
    code = "plan_stale"


class HostLocked(PlanStale):
    """Another run works on this host."""

    code = "locked"


class RolledBack(DdtreeError):
    """The deploy failed its health check or gate and was undone by itself."""

    exit_code = 6
    code = "rolled_back"


class RollbackFailed(DdtreeError):
    """The way back failed; a human is needed."""

    exit_code = 7
    code = "rollback_failed"


class GateFailed(DdtreeError):
    """A gate or a comparison failed, or a measurement is INVALID."""

    exit_code = 8
    code = "gate_failed"


class Unhealthy(DdtreeError):
    """Installed, but the service is not what was asked for."""

    exit_code = 9
    code = "unhealthy"


class Drift(DdtreeError):
    """What is on disk or runs differs from the deployment."""

    exit_code = 10
    code = "drift"


class Interrupted(DdtreeError):
    """Stopped by the user and unwound cleanly."""

    exit_code = 130
    code = "interrupted"


def worst(codes: Iterable[int]) -> int:
    """The exit code for several hosts: the first of :data:`SEVERITY` that occurs; 0 for none."""
    seen = set(codes)
    return next((code for code in SEVERITY if code in seen), max(seen, default=0))


def as_error(error: BaseException) -> DdtreeError:
    """Any exception as one that a user can read; a bug's traceback goes to a file that the error names."""
    if isinstance(error, DdtreeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", next_step="ddtree-ops status tells what the host is in")
    return DdtreeError(
        f"this is a bug in ddtree-ops: {type(error).__name__}: {error}",
        where=_written_down(error),
        next_step="please report it with that file; `ddtree-ops status` tells what the host is in",
    )


def _written_down(error: BaseException) -> str:
    import tempfile
    import traceback

    try:
        with tempfile.NamedTemporaryFile(prefix="ddtree-ops-", suffix=".log", delete=False) as log:
            log.write("".join(traceback.format_exception(error)).encode("utf-8", "replace"))
    except OSError as trouble:
        return f"no file could be written: {trouble}"
    return log.name


_BY_EXIT: dict[int, type[DdtreeError]] = {
    1: DdtreeError,
    2: UsageError,
    3: HostUnreachable,
    4: Refused,
    5: PlanStale,
    6: RolledBack,
    7: RollbackFailed,
    8: GateFailed,
    9: Unhealthy,
    10: Drift,
    130: Interrupted,
}
_BY_CODE: dict[str, type[DdtreeError]] = {"locked": HostLocked, "step_failed": StepFailed}


def from_remote(error: Mapping[str, Any]) -> DdtreeError:
    """The exception for an ``error`` object of the host program (see ``host/protocol.py``)."""
    code = str(error.get("code", "bug"))
    kind = _BY_CODE.get(code) or _BY_EXIT.get(int(error.get("exit", 1)), DdtreeError)
    return kind(
        str(error.get("message", "the host program failed")),
        where=str(error.get("where", "")),
        next_step=str(error.get("next", "")),
        code=code,
        details=dict(error.get("details") or {}),
    )
