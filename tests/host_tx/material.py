"""Small environments with a small SGLang in them, installed the way pip leaves it: scripts, RECORD, bytecode."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddtree_ops.host import hashing, roothash, tx
from ddtree_ops.host.protocol import HostError, dispatch

VERSION = "0.5.20"
INFO = f"sglang-{VERSION}.dist-info"
COMMA = "srt/layers/configs/E=64,N=128,device_name=H200.json"
FILES = {
    "__init__.py": "VALUE = 'wheel'\n",
    "_version.py": f"__version__ = '{VERSION}'\n",
    "cli/main.py": "def main():\n    print('hello')\n",
    "srt/__init__.py": "",
    "srt/speculative/__init__.py": "",
    "srt/speculative/spec_info.py": "ALGORITHMS = ['DFLASH', 'EAGLE']\n",
    "srt/speculative/dflash_worker_v2.py": "class DFlashWorkerV2:\n    pass\n",
    COMMA: "{}\n",
}


def digest(data: bytes | str) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below ``folder``."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return folder


def row(path: str, data: bytes) -> list[str]:
    """A row of RECORD."""
    encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return [path, f"sha256={encoded}", str(len(data))]


class Environment:
    """A virtual environment (without pip unless asked) with SGLang as pip would have installed it."""

    def __init__(self, prefix: Path, pip: Path | None = None) -> None:
        if pip is None:
            venv.create(prefix, with_pip=False, symlinks=True)
        else:
            shutil.copytree(pip, prefix, symlinks=True)
        self.prefix = prefix
        self.python = prefix / "bin" / "python"
        self.site = next(prefix.glob("lib/python3*/site-packages"))
        self.package = self.site / "sglang"

    def install(self, files: Mapping[str, str | bytes] = FILES) -> Environment:
        """Install the small SGLang: package, a stray top-level folder, console script, metadata, RECORD, bytecode."""
        content = {f"sglang/{path}": data.encode() if isinstance(data, str) else data for path, data in files.items()}
        content["tools/helper.py"] = b"HELPER = 1\n"
        content[f"{INFO}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {VERSION}\n\nLong text\n".encode()
        content[f"{INFO}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content[f"{INFO}/entry_points.txt"] = b"[console_scripts]\nsglang = sglang.cli.main:main\n"
        content[f"{INFO}/INSTALLER"] = b"pip\n"
        script = f"#!{self.python}\nfrom sglang.cli.main import main\nmain()\n".encode()
        content["../../../bin/sglang"] = script
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerows(row(path, data) for path, data in content.items())
        rows.writerow([f"{INFO}/RECORD", "", ""])
        for path, data in {**content, f"{INFO}/RECORD": table.getvalue().encode()}.items():
            write(self.site, {path: data})
        (self.prefix / "bin/sglang").chmod(0o755)
        subprocess.run(
            [self.python, "-m", "compileall", "-q", str(self.package)],
            check=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        return self

    def ask(self, code: str, **env: str) -> str:
        """Output of ``code`` under this interpreter, in a neutral folder, writing no bytecode."""
        done = subprocess.run(
            [self.python, "-B", "-c", code],
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", **env},
            check=False,
        )
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


class Driver:
    """The controller's part, in this process: the verbs of one host."""

    def __init__(self, state_root: Path, scope: Mapping[str, Any]) -> None:
        self.state_root = state_root
        self.scope = dict(scope)
        self.events: list[dict[str, Any]] = []
        self.run = 0

    def call(self, verb: str, **params: Any) -> dict[str, Any]:
        """Run a verb."""
        return dispatch(verb, params, self.events.append)

    def begin(self, run_id: str = "", **more: Any) -> dict[str, Any]:
        """``tx_begin`` with this host's state folder and scope."""
        self.run += 1
        given = {"run_id": run_id or f"run-{self.run}", "state_root": str(self.state_root), "who": "me@here"}
        return self.call("tx_begin", **{**given, "message": "a test", "scope": self.scope, **more})

    def do(self, op: str, **params: Any) -> dict[str, Any]:
        """``tx_do``."""
        return self.call("tx_do", op=op, params=params)

    def commit(self, **deployment: Any) -> dict[str, Any]:
        """``tx_commit``."""
        return self.call("tx_commit", deployment=deployment)

    def abort(self) -> dict[str, Any]:
        """``tx_abort``."""
        return self.call("tx_abort", reason="the test says so")

    def back(self, verb: str = "rollback", **more: Any) -> dict[str, Any]:
        """``rollback``, ``recover`` or ``purge``."""
        return self.call(verb, state_root=str(self.state_root), who="me@here", **more)

    def root(self) -> str:
        """The root hash now, every byte read."""
        return str(self.call("root_hash", scope=self.scope)["root"])

    def fails(self, verb: str, *args: Any, **params: Any) -> HostError:
        """The error that a call ends with; it is one with a code, never a bug."""
        try:
            result = getattr(self, verb)(*args, **params)
        except HostError as error:
            return error
        raise AssertionError(f"{verb} did not fail: {result}")


def close_open_transaction() -> None:
    """Forget a transaction that a failing test left open, as the end of its process would."""
    if tx._Open.tx is not None:
        tx._close(tx._Open.tx)


def derive_and_install(
    driver: Driver, environment: Environment, installer: str = "self", **more: Any
) -> dict[str, Any]:
    """The usual steps of a deploy, without git: tree, payload, patch, editable install."""
    tree = driver.do("derive_tree", release_id=f"{VERSION}-abc", package_dir=str(environment.package))
    old, new = FILES["srt/speculative/spec_info.py"], "ALGORITHMS = ['DFLASH', 'EAGLE', 'DDTREE']\n"
    definition = "CANONICAL = 17\n"
    driver.do(
        "write_files",
        root=tree["package_dir"],
        files=[
            {"path": "srt/speculative/ddtree/__init__.py", "text": "", "sha256": digest(""), "before": ""},
            {
                "path": "srt/speculative/ddtree/definition.py",
                "text": definition,
                "sha256": digest(definition),
                "before": "",
            },
            {"path": "srt/speculative/spec_info.py", "text": new, "sha256": digest(new), "before": digest(old)},
        ],
    )
    done = driver.do("install_editable", python=str(environment.python), tree=tree["tree"], installer=installer, **more)
    return {**tree, "install": done}


def strict_manifest(*roots: Path) -> dict[str, Any]:
    """Everything about each name under ``roots``, mtimes and link counts of files and mtimes of folders included."""
    found: dict[str, Any] = {}
    for root in roots:
        for folder, folders, files in os.walk(root):
            for name in ["", *folders, *files] if folder == str(root) else [*folders, *files]:
                path = Path(folder) / name
                status = path.lstat()
                entry: list[Any] = [oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns]
                if path.is_symlink():
                    entry.append(os.readlink(path))
                elif path.is_file():
                    entry += [status.st_nlink, hashing.of_file(str(path))]
                found[str(path)] = entry
    return found


def measure(prefix: Path) -> roothash.Manifest:
    """The list behind the root hash of an environment."""
    return roothash.measure({"environment": str(prefix)}, hashing.HashCache())


PYTHON = sys.executable
