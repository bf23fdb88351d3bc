"""Environments and a driver for the host's transactions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .material import Driver, Environment, close_open_transaction


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No test inherits an open transaction."""
    yield
    close_open_transaction()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An environment without pip that holds the small SGLang."""
    return Environment(tmp_path / "env").install()


@pytest.fixture
def driver(tmp_path: Path, environment: Environment) -> Driver:
    """The verbs, for a state folder beside that environment."""
    return Driver(tmp_path / "state", {"environment": str(environment.prefix)})


@pytest.fixture(scope="session")
def venv_with_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the pip that comes with this Python; copied, never changed."""
    prefix = tmp_path_factory.mktemp("venv") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
    return prefix
