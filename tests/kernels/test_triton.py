"""The checks of ``triton_checks.py``, interpreted on the CPU, and the kernels compiled for GPUs that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernels import checks
from tests.sglang_cpu.servers import Environment

pytestmark = pytest.mark.sglang

CHECKS = Path(__file__).with_name("triton_checks.py")
NAMES = checks.names(CHECKS)
ARCHITECTURES = (80, 90, 100, 120)


@pytest.fixture(scope="module")
def results(cpu_environment: Environment) -> checks.Outcomes:
    """Name of a check -> ``None`` or its traceback."""
    return checks.outcomes(cpu_environment, CHECKS)


@pytest.mark.parametrize("name", NAMES)
def test_triton(name: str, results: checks.Outcomes) -> None:
    """See the docstring of the check."""
    assert results[name] is None, results[name]


@pytest.fixture(scope="module")
def compiled(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """Kernel and architecture -> ``None`` or a traceback."""
    variables = cpu_environment.variables(TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
    del variables["TRITON_INTERPRET"]
    script = CHECKS.with_name("cross_compile.py")
    output = cpu_environment.run("-B", script, *map(str, ARCHITECTURES), variables=variables)
    found: dict[str, str | None] = json.loads(output.splitlines()[-1])
    if "skip" in found:
        pytest.skip(str(found["skip"]))
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_compile_without_a_gpu(architecture: int, compiled: dict[str, str | None]) -> None:
    """An operation of one GPU generation only would be seen on somebody else's server."""
    mine = {name: error for name, error in compiled.items() if name.endswith(f" sm_{architecture}")}
    assert len(mine) >= 14
    assert {name: error for name, error in mine.items() if error is not None} == {}
