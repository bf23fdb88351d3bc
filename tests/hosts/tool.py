"""The real command as a child process, as a user would type it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Said:
    """What a run of ``ddtree-ops`` printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams, with the white space of line breaks and tables evened out."""
        return " ".join((self.out + " " + self.err).split())

    @property
    def json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def ddtree_ops(*words: object, cwd: Path, timeout: float = 300) -> Said:
    """Run ``ddtree-ops WORDS`` without a terminal; never raises for its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "ddtree_ops", *map(str, words)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
