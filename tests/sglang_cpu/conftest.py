"""The CPU environment and the patched tree that the tests of this folder share."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.sglang_cpu.servers import REPOSITORY, Environment, make_patched_tree

PAIR = REPOSITORY / "tests" / "models" / "pytiny"


def _layer() -> Path:
    if os.environ.get("DDTREE_TEST_LAYER"):
        return Path(os.environ["DDTREE_TEST_LAYER"])
    if platform.system() == "Linux" and platform.machine() == "x86_64" and os.geteuid() == 0:
        return layers.cpu_layer()
    reason = "the CPU environment needs root on x86_64 Linux, or DDTREE_TEST_LAYER (tests/sglang_cpu/make_env.sh)"
    if layers.ORIGINAL_ENV.get("REQUIRE_TESTHOST") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cpu_environment() -> Environment:
    """SGLang 0.5.20 on the CPU, as its wheel has it."""
    return Environment(_layer() / "root/ml-env/bin/python", layers.cache() / "bytecode")


@pytest.fixture(scope="session")
def patched_tree(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose ``sglang`` is the pristine package plus recipe plus payload."""
    return make_patched_tree(cpu_environment.sglang, tmp_path_factory.mktemp("patched"))
