"""``deployment.json``: what is deployed now. Written by ``tx_commit``, put back by its undo."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

from . import durable
from .ops import Params, Tx, Work, undoer


def path_of(state_root: str) -> str:
    """The file that names the current deployment."""
    return os.path.join(state_root, "deployment.json")


def read(state_root: str) -> Optional[Dict[str, Any]]:
    """The current deployment, None when nothing is deployed."""
    value = durable.read_json(path_of(state_root))
    return dict(value) if isinstance(value, dict) else None


def replace(tx: Tx, deployment: Params) -> None:
    """Make ``deployment`` the current one; its predecessor comes back with the undo."""
    tx.will("restore_deployment", {"previous": read(tx.state_root)}, "record the deployment")
    durable.replace_json(path_of(tx.state_root), {"created": time.time(), **deployment})


@undoer("restore_deployment")
def restore_deployment(work: Work, data: Params) -> None:
    """Put the previous deployment back, or none."""
    if data["previous"] is None:
        durable.discard(path_of(work.state_root))
    else:
        durable.replace_json(path_of(work.state_root), data["previous"])
