"""Small real copies of a package named sglang, installed in every style by the real pip and setuptools, offline."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddtree_ops.host import facts as host_facts
from ddtree_ops.model import Copy, Facts, Resolution

SPEC_INFO = "class SpeculativeAlgorithm(Enum):\n    DFLASH = auto()\n    EAGLE = auto()\n"
DDTREE = SPEC_INFO + "    DDTREE = auto()\n"
OURS = DDTREE + "\n    def worker(self):\n        from sglang.srt.speculative.ddtree import hook\n"
V1 = "class DFlashWorker:\n    pass\n"
V2 = "class DFlashWorkerV2:\n    pass\n"


def package(version: str = "0.5.20") -> dict[str, str]:
    """Files of a small SGLang with DFLASH v2, by path; importing it fails."""
    return {
        "__init__.py": "raise RuntimeError('facts must not import the package')\n",
        "_version.py": f"__version__ = version = '{version}'\n",
        "srt/__init__.py": "",
        "srt/server_args.py": "class ServerArgs: ...\n",
        "srt/speculative/__init__.py": "",
        "srt/speculative/spec_info.py": SPEC_INFO,
        "srt/speculative/dflash_worker_v2.py": V2,
        "srt/layers/configs/E=64,N=128,device_name=H200.json": "{}\n",
        "launch_server.py": "",
    }


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files below ``folder``."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def wheel(folder: Path, files: Mapping[str, str], version: str = "0.5.20") -> Path:
    """A wheel with a true RECORD."""
    info = f"sglang-{version}.dist-info"
    content = {f"sglang/{path}": text.encode() for path, text in files.items()}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n".encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        table.writerow([path, f"sha256={digest}", len(data)])
    table.writerow([f"{info}/RECORD", "", ""])
    content[f"{info}/RECORD"] = rows.getvalue().encode()
    target = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return target


class Environment:
    """A virtual environment without pip; the test's own pip installs into it."""

    def __init__(self, prefix: Path) -> None:
        venv.create(prefix, with_pip=False, symlinks=True)
        self.prefix = prefix
        self.python = prefix / "bin" / "python"
        self.site = next(prefix.glob("lib/python3*/site-packages"))

    def install(self, distribution: Path) -> None:
        """Install a wheel file with pip, offline and without dependencies."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "-q"]
        _run([*pip, "install", "--no-index", "--no-deps", "--no-compile", str(distribution)])

    def unpack(self, distribution: Path) -> None:
        """Install a wheel file as installers do, without the two seconds that pip takes to start."""
        with zipfile.ZipFile(distribution) as archive:
            archive.extractall(self.site)

    def with_wheel(self, files: Mapping[str, str] | None = None, version: str = "0.5.20") -> Environment:
        """Install a small SGLang as a wheel."""
        self.unpack(wheel(self.prefix.parent, files or package(version), version))
        return self

    def editable(self, project: Path) -> None:
        """``pip install -e``, by setuptools' own backend of the test's interpreter (no build isolation, no network)."""
        out = project / "editable-wheel"
        out.mkdir()
        code = f"from setuptools import build_meta; build_meta.build_editable({str(out)!r})"
        _run([sys.executable, "-c", code], cwd=project)
        self.install(next(out.glob("*.whl")))


def checkout(folder: Path, files: Mapping[str, str], *, style: str = "flat") -> Path:
    """A git checkout with the project in ``python/``; ``style`` "flat" (import hook) or "src" (path entry)."""
    project = folder / "python"
    inner = "src/sglang" if style == "src" else "sglang"
    write(project / inner, files)
    where = 'package-dir = {"" = "src"}' if style == "src" else 'packages = ["sglang"]'
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "sglang"\nversion = "0.5.20"\n[tool.setuptools]\n{where}\n'
    )
    (folder / ".gitignore").write_text("__pycache__/\n*.egg-info/\nbuild/\neditable-wheel/\n")
    git(folder, "init", "-q", "-b", "main", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "release")
    return folder


def git(folder: Path, *words: str) -> str:
    """Run git as nobody in particular."""
    who = ["-c", "user.name=operator", "-c", "user.email=operator@example.invalid", "-c", "protocol.file.allow=always"]
    return _run(["git", *who, *words], cwd=folder)


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def collect(root: Path, **params: Any) -> Facts:
    """``facts`` for a machine of which only ``root`` is searched, through JSON as over the wire."""
    request: dict[str, Any] = {
        "roots": [str(root)],
        "state_root": str(root / "state"),
        "our_unit": "sglang-ddtree.service",
    }
    request.update({key: str(value) if isinstance(value, Path) else value for key, value in params.items()})
    answer = host_facts.collect(json.loads(json.dumps(request)), lambda event: None)
    return msgspec.convert(json.loads(json.dumps(answer)), Facts)


def live(facts: Facts, context: str = "service", environment: Environment | None = None) -> Resolution:
    """The one answer in that context (for that environment)."""
    found = [
        one
        for one in facts.resolutions
        if one.context == context and (environment is None or one.interpreter == str(environment.python))
    ]
    assert len(found) == 1, found
    return found[0]


def copy_in(facts: Facts, folder: Path) -> Copy:
    """The one copy whose package folder is ``folder``."""
    found = [one for one in facts.copies if one.root == str(folder)]
    assert len(found) == 1, [one.root for one in facts.copies]
    return found[0]


def manifest(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything below ``root``: kind, mode, times and content, to prove that nothing was touched."""
    found: dict[str, tuple[Any, ...]] = {}
    for folder, names, files in os.walk(os.fsencode(root)):
        for name in [b".", *names, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = b""
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as handle:
                    content = hashlib.sha256(handle.read()).digest()
            found[os.fsdecode(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, status.st_ctime_ns, content)
    return found
