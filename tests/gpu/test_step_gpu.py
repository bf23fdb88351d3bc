"""What surrounds tree and verify in a decode step, on a real GPU: checks of three files of ``tests/kernels``.

python -m pytest tests/gpu        on the GPU host, in an environment with torch, Triton and pytest
"""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU", allow_module_level=True)

from tests.kernels import count_checks, request_checks, step_checks  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", list(step_checks.CHECKS))
def test_step(name: str) -> None:
    """See the docstring of the check."""
    step_checks.CHECKS[name]("cuda")


@pytest.mark.parametrize("name", list(count_checks.CHECKS))
def test_count(name: str) -> None:
    """See the docstring of the check."""
    count_checks.CHECKS[name]("cuda")


@pytest.mark.parametrize("name", list(request_checks.CHECKS))
def test_request(name: str) -> None:
    """See the docstring of the check."""
    request_checks.CHECKS[name]("cuda")
