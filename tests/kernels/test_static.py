"""The checks of ``static_checks.py``: interpreted kernels, in the CPU environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels import checks
from tests.sglang_cpu.servers import Environment

pytestmark = pytest.mark.sglang

CHECKS = Path(__file__).with_name("static_checks.py")
NAMES = checks.names(CHECKS)


@pytest.fixture(scope="module")
def results(cpu_environment: Environment) -> checks.Outcomes:
    """Name of a check -> ``None`` or its traceback."""
    return checks.outcomes(cpu_environment, CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_static(name: str, results: checks.Outcomes) -> None:
    """See the docstring of the check."""
    assert results[name] is None, results[name]
