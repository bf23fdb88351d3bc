"""Stale bytecode: a cache of the old source that looks like one of the new (same size, same second)."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterable, List, Optional

from . import commands, durable
from .ops import Work

_MARK = "@ddtree-caches@"

_SCRIPT = r"""
import importlib.util, json, sys
found = []
for path in json.loads(sys.stdin.read()):
    for level in ("", "1", "2"):
        try:
            found.append(importlib.util.cache_from_source(path, optimization=level))
        except Exception:
            pass
sys.stdout.write(sys.argv[1] + json.dumps(found) + "\n")
"""


def beside(path: str) -> List[str]:
    """Existing caches of source ``path`` in the ``__pycache__`` beside it, of any interpreter."""
    folder, name = os.path.split(path)
    caches = os.path.join(folder, "__pycache__")
    stem = name[: -len(".py")] + "."
    try:
        names = sorted(os.listdir(caches))
    except OSError:
        return []
    return [os.path.join(caches, entry) for entry in names if entry.startswith(stem) and entry.endswith(".pyc")]


def elsewhere(
    work: Work, python: str, paths: Iterable[str], env: Optional[Dict[str, Any]] = None, cwd: str = "/"
) -> List[str]:
    """Where ``python`` would keep the caches of ``paths`` under ``env`` (PYTHONPYCACHEPREFIX moves them)."""
    environment = commands.clean_environment({key: str(value) for key, value in (env or {}).items()})
    ran = work.run(
        [python, "-B", "-c", _SCRIPT, _MARK],
        env=environment,
        cwd=cwd,
        timeout=30.0,
        stdin=json.dumps(list(paths)).encode("ascii"),
        step="bytecode",
    )
    _, mark, body = ran.text().rpartition(_MARK)
    return [str(path) for path in json.loads(body.splitlines()[0])] if mark else []


def drop(paths: Iterable[str]) -> List[str]:
    """Remove the caches of the ``.py`` files in ``paths`` that lie beside them; those that went."""
    gone = []
    for path in paths:
        for cache in beside(path) if path.endswith(".py") else []:
            durable.discard(cache)
            gone.append(cache)
    return gone
