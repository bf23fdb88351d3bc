"""Checks that need torch or Triton run in the CPU environment's Python, once per file, and are reported one by one.

A check file defines functions ``check_*`` and prints, as its last line, a JSON object: name -> ``null`` or a traceback.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.sglang_cpu.servers import Environment

Outcomes = dict[str, str | None]


def names(file: Path) -> list[str]:
    """The checks of a file, without importing it."""
    body = ast.parse(file.read_text("utf-8")).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]


def outcomes(environment: Environment, file: Path) -> Outcomes:
    """Run a file's checks; name -> ``None`` or its traceback."""
    found: Outcomes = json.loads(environment.run("-B", file).splitlines()[-1])
    return found
