"""The checks of ``step_checks.py``, with interpreted kernels, in the CPU environment."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.sglang_cpu.servers import Environment

pytestmark = pytest.mark.sglang

CHECKS = Path(__file__).with_name("step_checks.py")
NAMES = [
    node.name
    for node in ast.parse(CHECKS.read_text("utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def results(cpu_environment: Environment) -> dict[str, str | None]:
    """Name of a check -> ``None`` or its traceback."""
    found: dict[str, str | None] = json.loads(cpu_environment.run("-B", CHECKS).splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_step(name: str, results: dict[str, str | None]) -> None:
    """See the docstring of the check."""
    assert results[name] is None, results[name]
