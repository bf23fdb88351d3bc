"""What a check file does when it is run by itself, by the CPU environment's Python or by hand.

FILE_checks.py [NAME ...]     the named checks, or all; one JSON object: name -> null or a traceback
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def run(checks: Mapping[str, Callable[..., None]], *arguments: Any, before: Callable[[], Any] | None = None) -> None:
    """Call the checks named on the command line, or all, with ``arguments``; ``before`` is called ahead of each."""
    results: dict[str, str | None] = {}
    for name in [word for word in sys.argv[1:] if not word.startswith("--")] or list(checks):
        try:
            if before is not None:
                before()
            checks[name](*arguments)
            results[name] = None
        except Exception:
            results[name] = traceback.format_exc()
    print(json.dumps(results))
