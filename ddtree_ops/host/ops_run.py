"""Operation ``run_command``: a step of the operator's own, named in a playbook."""

from __future__ import annotations

import os
import shutil
from typing import List

from .ops import Params, Tx, Work, need, op, undoer
from .protocol import HostError

_SHOWN = 4000


@op("run_command")
def run_command(tx: Tx, params: Params) -> Params:
    """Run ``argv`` (no shell) in ``cwd`` with a deadline of ``timeout`` seconds.

    ``undo``: the command that takes it back, run on the way back even when ``argv`` did not finish, so it must be
    harmless then. Result: ``status``, ``output``. Raises ``command_failed`` for any other status than 0.
    """
    argv = _words(params, "argv")
    cwd = str(params.get("cwd") or "/")
    timeout = float(params.get("timeout") or 600.0)
    if params.get("undo"):
        undo = {"argv": _words(params, "undo"), "cwd": cwd, "timeout": timeout}
        tx.will("run_back", undo, "run %s" % " ".join(argv))
    ran = tx.run([_which(argv[0]), *argv[1:]], cwd=cwd, timeout=timeout, step="run")
    output = (ran.out + ran.err).decode("utf-8", "replace")[-_SHOWN:]
    if not ran.ok:
        raise HostError(
            "command_failed",
            "the playbook's command failed: %s" % (ran.error or "exit status %d" % ran.code),
            where=" ".join(argv),
            next="run it by hand on the host, or take the step out of the playbook",
            details={"log": output.splitlines()[-20:]},
        )
    return {"status": ran.code, "output": output}


@undoer("run_back")
def run_back(work: Work, data: Params) -> None:
    """Run the command that the playbook names as the way back."""
    argv = [str(word) for word in data["argv"]]
    ran = work.run([_which(argv[0]), *argv[1:]], cwd=str(data["cwd"]), timeout=float(data["timeout"]), step="run back")
    if not ran.ok:
        raise HostError("command_failed", "%s: %s" % (" ".join(argv), ran.error or "exit status %d" % ran.code))


def _words(params: Params, name: str) -> List[str]:
    words = need(params, name)
    if (
        not isinstance(words, list)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
    ):
        raise HostError("bad_params", "parameter %r must be a list of words" % name, exit=2)
    return list(words)


def _which(name: str) -> str:
    found = name if os.path.isabs(name) else shutil.which(name)
    if not found or not os.access(found, os.X_OK):
        raise HostError(
            "no_command", "there is no command %s" % name, next="install it on the host, or name its full path"
        )
    return found
