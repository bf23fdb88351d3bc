"""A result folder with its reports, and a browser to open them in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_ops.bench.render import write_reports
from tests.reports import chromium
from tests.reports.synthetic import HOSTILE, Maker


@pytest.fixture(scope="session")
def chromium_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """One browser for all tests; skips where there is none, fails where the run promised one (CI)."""
    binary = chromium.executable()
    if binary is None:
        reason = "no Chromium: bash tests/reports/install_chromium.sh, or DDTREE_TEST_CHROMIUM=PATH"
        if os.environ.get("REQUIRE_CHROMIUM") == "1":
            pytest.fail(f"REQUIRE_CHROMIUM=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    with chromium.browser(binary, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="session")
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file, a losing budget and INVALID cells."""
    path = tmp_path_factory.mktemp("full") / "result"
    write_reports(Maker().write(path))
    return path


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose model, GPU, regimes, errors and tokens try to become markup."""
    path = tmp_path_factory.mktemp("hostile") / "result"
    write_reports(
        Maker(regimes=(HOSTILE, "chat"), target=f"/models/{HOSTILE}", gpu=HOSTILE, words=(HOSTILE,)).write(path)
    )
    return path
