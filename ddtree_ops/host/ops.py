"""Operations of a transaction and their undo: the frame that every mutation of a host goes through.

::

    @op("write_greeting")
    def write_greeting(tx: Tx, params: Params) -> Params:
        tx.will("remove_greeting", {"path": path}, "write %s" % path)   # on disk before the next line runs
        durable.replace_bytes(path, b"hello")
        return {"path": path}

    @undoer("remove_greeting")
    def remove_greeting(work: Work, data: Params) -> None:
        durable.discard(data["path"])           # may run twice, and may run though the write never happened

An undoer is idempotent, needs nothing but its ``data`` and the run's snapshot folder, and leaves the host as it was
before the operation. It runs in the same process, or in a later one after a crash.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from . import commands
from .journal import Journal
from .protocol import Emit, HostError

Params = Dict[str, Any]

#: Children that we start carry this variable; ``recover`` ends those that outlived a killed helper.
RUN_VARIABLE = "DDTREE_OPS_RUN"

_DIE_WITH_PARENT = """
import os, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except Exception:
    pass
os.getppid() == int(sys.argv[1]) or sys.exit(125)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Work:
    """One run's place on the host: what operations and undoers share."""

    def __init__(self, state_root: str, run_id: str, emit: Emit) -> None:
        self.state_root = state_root
        self.run_id = run_id
        self.emit = emit
        self.committed = False  # True when a finished run is rolled back: its release then stays, for its owner's edits
        self.notes: List[str] = []  # what the way back has to say

    @property
    def snapshots(self) -> str:
        """Folder for what the way back needs; on disk before the mutation, removed once the way back is proven."""
        return os.path.join(self.state_root, "snapshots", self.run_id)

    @property
    def releases(self) -> str:
        """Folder of the derived trees."""
        return os.path.join(self.state_root, "releases")

    def progress(self, step: str, text: str = "", done: int = 0, total: int = 0) -> None:
        """Tell the controller; raises ``ControllerLost`` when there is none any more."""
        self.emit({"kind": "progress", "step": step, "text": text, "done": done, "total": total})

    def run(
        self,
        argv: Sequence[str],
        env: Optional[Dict[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: float = 120.0,
        stdin: bytes = b"",
        step: str = "",
    ) -> commands.Ran:
        """Run ``argv`` (absolute path first) with a deadline. The child ends when this process does, however that
        happens; its whole group ends when the controller is lost meanwhile."""
        if not os.path.isabs(argv[0]):
            raise ValueError("argv[0] must be an absolute path: %r" % argv[0])
        full = dict(commands.clean_environment() if env is None else env, **{RUN_VARIABLE: self.run_id})
        try:
            child = subprocess.Popen(
                _tied(argv),
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=full,
                start_new_session=True,
            )
        except OSError as error:
            return commands.Ran(-1, b"", b"", "%s: %s" % (argv[0], error.strerror or error))
        name = os.path.basename(argv[0])
        started, pending = time.monotonic(), stdin or None
        try:
            while True:
                try:
                    out, err = child.communicate(pending, timeout=0.5)
                    return commands.Ran(child.returncode, out, err)
                except subprocess.TimeoutExpired:
                    seconds, pending = time.monotonic() - started, None  # its input is on its way already
                if seconds > timeout:
                    return commands.Ran(-1, b"", b"", "%s: no end in %g s" % (name, timeout))
                self.emit({"kind": "running", "step": step or name, "seconds": round(seconds, 1)})
        finally:
            if child.returncode is None:
                _end_group(child)


class Tx(Work):
    """An open transaction."""

    def __init__(self, state_root: str, run_id: str, emit: Emit, journal: Journal) -> None:
        super().__init__(state_root, run_id, emit)
        self.journal = journal
        self.op = ""
        self.failed: List[str] = []  # operations that failed and whose effect may not be committed

    def will(self, undo: str, data: Params, text: str = "") -> None:
        """Record how the next mutation is taken back. Returns when that is on the disk, and only then mutate.

        ``undo`` names an :func:`undoer`; ``data`` must be JSON and hold no secret; ``text`` is for people.
        """
        if undo not in UNDOERS:
            raise ValueError("no undoer is called %r" % undo)
        self.progress(self.op, text)  # notices a lost controller before the mutation, not after it
        self.journal.append("will", op=self.op, undo=undo, data=data, text=text)


Function = Callable[[Tx, Params], Params]
Undo = Callable[[Work, Params], None]


class Op(NamedTuple):
    """A registered operation; ``must_hold``: when it failed, the transaction cannot be committed any more."""

    function: Function
    must_hold: bool


OPS: Dict[str, Op] = {}
UNDOERS: Dict[str, Undo] = {}


def op(name: str, must_hold: bool = True) -> Callable[[Function], Function]:
    """Register an operation for ``tx_do``. Operations whose failure a playbook may accept (a service that does not
    get healthy, left in place for a look) say ``must_hold=False``."""

    def register(function: Function) -> Function:
        _once(name, OPS[name].function if name in OPS else None, function)
        OPS[name] = Op(function, must_hold)
        return function

    return register


def undoer(name: str) -> Callable[[Undo], Undo]:
    """Register the function that carries out undo records called ``name``."""

    def register(function: Undo) -> Undo:
        _once(name, UNDOERS.get(name), function)
        UNDOERS[name] = function
        return function

    return register


def need(params: Params, name: str) -> Any:
    """Parameter ``name``; a missing or empty one is the caller's mistake."""
    value = params.get(name)
    if value is None or value == "":
        raise HostError("bad_params", "parameter %r is missing" % name, exit=1)
    return value


def absolute(params: Params, name: str) -> str:
    """Parameter ``name`` as a normalised absolute path."""
    path = str(need(params, name))
    if not os.path.isabs(path) or "\0" in path:
        raise HostError("bad_params", "parameter %r is no absolute path: %r" % (name, path), exit=1)
    return os.path.normpath(path)


def _once(name: str, known: Optional[Callable[..., Any]], function: Callable[..., Any]) -> None:
    if known is not None and known.__module__ != function.__module__:
        raise ValueError("%r is registered by %s and %s" % (name, known.__module__, function.__module__))


def _tied(argv: Sequence[str]) -> List[str]:
    """``argv`` under a wrapper that dies with us (PR_SET_PDEATHSIG): a killed helper must not leave pip writing."""
    if not sys.platform.startswith("linux") or not sys.executable:
        return list(argv)
    return [sys.executable, "-I", "-S", "-B", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]


def _end_group(child: "subprocess.Popen[bytes]") -> None:
    """End what is left of the child's process group, and reap the child."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
    try:
        child.communicate(timeout=5.0)
    except (subprocess.TimeoutExpired, ValueError):
        pass
