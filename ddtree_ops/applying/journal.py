"""This machine's own record of every run: what was done to which host, one JSON line each, no secrets.

The host's journal is what a rollback needs; this one answers "what did I do, when, and how did it end" when the host
is not reachable. It lies in the user's state folder and is only ever appended to.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where the records lie: ``runs/`` in the user's state folder (``XDG_STATE_HOME``)."""
    import platformdirs

    return Path(platformdirs.user_state_dir("ddtree-ops")) / "runs"


class LocalJournal:
    """The record of one run. A disk that is full or read-only costs the record, not the run: ``trouble`` says so."""

    def __init__(self, host: str, run_id: str) -> None:
        self.path = folder() / f"{run_id}.jsonl"
        self.host = host
        self.run_id = run_id
        self.trouble = ""

    def write(self, kind: str, **fields: Any) -> None:
        """Append one line. ``fields`` are names, hashes and figures; parameters of operations never come here."""
        record = {"time": round(time.time(), 3), "host": self.host, "run_id": self.run_id, "kind": kind, **fields}
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=True) + "\n")
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"


def read(run_id: str) -> list[dict[str, Any]]:
    """The lines of one run, oldest first; [] when this machine knows none."""
    try:
        text = (folder() / f"{run_id}.jsonl").read_text("utf-8")
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]
