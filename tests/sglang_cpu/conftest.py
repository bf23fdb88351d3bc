"""The CPU environment and the patched tree that the tests of this folder share."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.hosts import layers
from tests.sglang_cpu import runs
from tests.sglang_cpu.runs import PAIR
from tests.sglang_cpu.servers import Environment, make_patched_tree

__all__ = ["PAIR"]


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


@pytest.fixture(scope="session")
def plain_run(cpu_environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> runs.PlainRun:
    """Answers of the unmodified server without speculation."""
    return runs.run_plain(cpu_environment, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session", params=["overlap", "sync"])
def ddtree_run(
    request: pytest.FixtureRequest,
    cpu_environment: Environment,
    patched_tree: Path,
    plain_run: runs.PlainRun,
    tmp_path_factory: pytest.TempPathFactory,
) -> runs.DDTreeRun:
    """Everything that a DDTREE server is asked; ``plain_run`` comes first, so that one server runs at a time."""
    folder = tmp_path_factory.mktemp("ddtree")
    return runs.run_ddtree(cpu_environment, patched_tree, plain_run, folder, request.param == "overlap")
