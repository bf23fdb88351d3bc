"""DDTREE's part of the answer to ``/server_info``, without a patch: ``internal_states[0].ddtree``.

A scheduler answers with its server arguments and whatever its runtime context lists as changed since (0.5.17 and later
keep such a list in every process). An entry of ours is added there; a thread keeps it current. Releases without that
list say nothing about DDTREE there; the run folder has it all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from .. import beacon, metrics
from . import compat

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
_SETTINGS = ("budget", "width", "block_size", "auto", "ladder", "start", "verify_costs")
_shown: dict[str, Any] = {"build_id": None, "release_id": None, "settings": {}, "counters": {}}


def start() -> bool:
    """Add the entry; returns whether this release has a place for it. Call it when the drafter has been loaded.

    (A draft worker that is made later would copy the list into its own arguments.)
    """
    get_context = compat.optional("sglang.srt.runtime_context", "get_context")
    changes = getattr(get_context(), "_overrides_log", None) if get_context is not None else None
    if not isinstance(changes, list):
        logger.info("DDTREE: this SGLang has no place for more in /server_info.")
        return False
    _refresh()
    changes.append(("ddtree", {"ddtree": _shown}))
    threading.Thread(target=_run, name="ddtree-server-info", daemon=True).start()
    return True


def _run() -> None:
    while True:
        time.sleep(PERIOD_S)
        with contextlib.suppress(Exception):  # the last figures stand then
            _refresh()


def _refresh() -> None:
    """Replace values, never keys: the scheduler's thread may be reading."""
    build = beacon.build()
    _shown["build_id"], _shown["release_id"] = build.get("build_id"), build.get("release_id")
    _shown["settings"] = {name: beacon.settings.get(name) for name in _SETTINGS}
    _shown["counters"] = metrics.snapshot()
