"""The wheel works alone: data folders inside, nothing read from a source checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from this checkout with the installed build backend."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


def test_wheel_carries_the_data_folders(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "ddtree_ops/_data/kernels/ddtree/hook.py",
        "ddtree_ops/_data/patches/recipe.yaml",
        "ddtree_ops/_data/playbooks/deploy.yaml",
        "ddtree_ops/_data/templates/sglang-ddtree.service.j2",
        "ddtree_ops/_data/inventory.yaml",
    ):
        assert wanted in names
    assert any(name.startswith("ddtree_ops/_data/patches/sglang-0.5.20/") for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".safetensors"))]


@pytest.mark.parametrize(
    "arguments",
    [["patch", "check"], ["patch", "show", "0.5.20"], ["config", "show", "--host", "pro6000"], ["deploy", "--help"]],
    ids=lambda words: "-".join(words),
)
def test_installed_wheel_runs_in_an_empty_folder(wheel: Path, tmp_path: Path, arguments: list[str]) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import ddtree_ops.cli as cli;"
        "print(cli.__file__, file=sys.stderr); cli.main()"
    )
    inventory = [] if arguments[0] != "config" else ["--inventory", str(site / "ddtree_ops/_data/inventory.yaml")]
    done = subprocess.run(
        [sys.executable, "-c", code, str(site), *arguments, *inventory],
        cwd=empty,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert str(site) in done.stderr, "the wheel's own copy must be the one that ran"
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert not list(empty.iterdir())
