"""Every test starts from the same clean desk: an own home, no agent, no configuration of whoever runs it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts import layers  # noqa: F401  keeps the original environment before it is made hermetic

pytest_plugins = ["tests.hosts.fixtures"]

_DROPPED = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "PYTHONPATH", "NO_COLOR")
_FIXED = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "120",
}


def _clean(patch: pytest.MonkeyPatch, home: Path) -> None:
    for name in list(os.environ):
        if name in _DROPPED or (name.startswith("DDTREE_") and not name.startswith(("DDTREE_TEST_", "DDTREE_CACHE"))):
            patch.delenv(name)
    for name, value in _FIXED.items():
        patch.setenv(name, value)
    patch.setenv("HOME", str(home))
    for kind, folder in (
        ("CONFIG", ".config"),
        ("CACHE", ".cache"),
        ("STATE", ".local/state"),
        ("DATA", ".local/share"),
    ):
        patch.setenv(f"XDG_{kind}_HOME", str(home / folder))


@pytest.fixture(scope="session", autouse=True)
def _hermetic_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    _clean(patch, tmp_path_factory.mktemp("session-home"))


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This test's own home folder; empty, so no SSH configuration, keys or known hosts."""
    path = tmp_path_factory.mktemp("home")
    _clean(monkeypatch, path)
    return path
