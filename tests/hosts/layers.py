"""Read-only layers for test hosts, made of real material and cached: SGLang wheels, an old checkout, a CPU server.

A layer is a folder that is laid over a host's root, so an installed environment costs a host nothing to start with.
Each one is made *inside* a throw-away host, at its final path and by that host's own Python, pip and git.

Cache: ``DDTREE_CACHE``, else ``~/.cache/ddtree-ops``. ``DDTREE_TEST_WHEELS``: a folder with files already downloaded.
``DDTREE_TEST_LAYER``: a ready CPU layer (tests/sglang_cpu/make_env.sh).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.hosts.lab import Lab, outside_network

ORIGINAL_ENV = dict(os.environ)  # before any fixture made it hermetic: pip needs the user's own index settings
ENVIRONMENT = "/root/ml-env"
CHECKOUT = "/root/sglang"
OLD = "0.5.10.post1"  # the last release without DFLASH; its checkout is the origin story's /root/sglang
WHEELS = ("0.5.13.post1", "0.5.20")
DIRTY = ("sglang/srt/speculative/eagle_worker_v2.py", "sglang/srt/layers/communicator.py")
_ROOT = Path(__file__).parents[2]


def cache() -> Path:
    """The cache folder; made when it is not there."""
    home = Path(ORIGINAL_ENV.get("XDG_CACHE_HOME") or Path(ORIGINAL_ENV.get("HOME") or "~").expanduser() / ".cache")
    path = Path(ORIGINAL_ENV.get("DDTREE_CACHE") or home / "ddtree-ops")
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    with (cache() / f".{name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _distribution(pattern: str, *pip: str) -> Path:
    """A file of the cache or of DDTREE_TEST_WHEELS; downloaded by pip when neither has it."""
    folders = [Path(p) for p in (ORIGINAL_ENV.get("DDTREE_TEST_WHEELS"),) if p] + [cache() / "wheels"]
    for folder in folders:
        for found in sorted(folder.glob(pattern)):
            return found
    with _locked("wheels"), outside_network():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "-d", str(folders[-1]), *pip], check=True, env=ORIGINAL_ENV, stdin=subprocess.DEVNULL)
    return next(iter(sorted(folders[-1].glob(pattern))))


def wheel_file(version: str) -> Path:
    """The wheel of an SGLang release as PyPI has it, for the host's Python 3.11 whatever Python runs the tests."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (34, 28, 17)]
    target = ["--only-binary=:all:", "--python-version=3.11", *platforms, "--platform=any"]
    return _distribution(f"sglang-{version}-*.whl", *target, f"sglang=={version}")


def source_file(version: str = OLD) -> Path:
    """The source distribution of an SGLang release; taken as it is, nothing of it is run."""
    return _distribution(f"sglang-{version}.tar.gz", "--no-binary=:all:", f"sglang=={version}")


def _layer(lab: Lab, name: str, recipe: str, inputs: list[Path], target: str) -> Path:
    """The cached layer made by running ``recipe`` (sh) on a host whose ``target`` folder is the layer's own.

    The inputs lie in /in on that host. The cache key covers the recipe and the inputs' names and sizes.
    """
    facts = [recipe, target, *(f"{p.name} {p.stat().st_size}" for p in inputs)]
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    done = cache() / "layers" / f"{name}-{key}"
    with _locked(done.name):
        if done.is_dir():
            return done
        part = done.with_name(f"{done.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        inside = part / target.lstrip("/")
        inside.mkdir(parents=True)
        (part / "root").mkdir(exist_ok=True)
        (part / "root").chmod(0o700)  # a layer's folder replaces the image's: sshd wants /root closed
        binds = [f"{inside}:{target}:rw", *(f"{p.parent}:/in/{i}" for i, p in enumerate(inputs))]
        host = lab.add(binds=binds)
        try:
            paths = [f"/in/{i}/{p.name}" for i, p in enumerate(inputs)]
            host.run(["sh", "-euc", recipe, "sh", *paths], timeout=300)
        finally:
            lab.remove(host)
        part.rename(done)
    return done


def wheel_layer(lab: Lab, version: str, prefix: str = ENVIRONMENT) -> Path:
    """A virtual environment with one SGLang wheel and nothing else (no torch), as pip installs it."""
    recipe = (
        f'python3 -m venv {prefix}; {prefix}/bin/python -m pip install -q --no-index --no-deps --no-compile "$1" 2>&1;'
        f" {prefix}/bin/python -m pip show -q sglang"
    )
    return _layer(lab, f"wheel-{version}", recipe, [wheel_file(version)], prefix)


def empty_env_layer(lab: Lab, prefix: str = ENVIRONMENT) -> Path:
    """A virtual environment without SGLang."""
    return _layer(lab, "empty-env", f"python3 -m venv {prefix}", [], prefix)


def checkout_recipe(place: str, version: str = OLD) -> str:
    """Shell text that makes the dirty checkout in the empty folder ``place`` from the source distribution ``$1``."""
    return f"""
cd {place}
git init -q -b main .; git config user.name operator; git config user.email operator@example.invalid
mkdir python; tar xzf "$1" -C python --strip-components=1 --no-same-owner
printf '%s\\n' '__pycache__/' '*.egg-info/' > .gitignore
git add -A; git commit -qm 'Release {version}'; git tag v{version}
printf '\\n# operator: trace acceptance per layer\\nTRACE_ACCEPTANCE = True\\n' >> python/{DIRTY[0]}
sed -i '1i # operator: all-reduce fusion is off on this box' python/{DIRTY[1]}
git status --porcelain | sort | tr '\\n' '|' | grep -qF ' M python/{DIRTY[1]}| M python/{DIRTY[0]}|'
"""


def checkout_layer(lab: Lab, version: str = OLD) -> Path:
    """/root/sglang: a git checkout of a release (its tag is there), with two files that somebody is working on."""
    recipe = checkout_recipe(CHECKOUT, version)
    return _layer(lab, f"checkout-{version}", recipe, [source_file(version)], CHECKOUT)


def lab_layer() -> Path:
    """/root/lab and /root/models as the repository has them now: CPU run-time patches and the trained pair.

    Laid over the CPU environment, so that a change here does not rebuild that.
    """
    parts = {"lab/stubs": "sglang_cpu/stubs", "lab/runtime": "sglang_cpu/runtime", "models/pytiny": "models/pytiny"}
    tests = _ROOT / "tests"
    files = {
        f"root/{place}/{path.relative_to(tests / source)}": path
        for place, source in parts.items()
        for path in sorted((tests / source).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    digest = hashlib.sha256()
    for name, path in files.items():
        digest.update(name.encode() + b"\0" + path.read_bytes())
    done = cache() / "layers" / f"lab-{digest.hexdigest()[:12]}"
    with _locked("lab"):
        if not done.is_dir():
            part = done.with_name(f"{done.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            for name, path in files.items():
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, part / name)
            (part / "root").chmod(0o700)
            part.rename(done)
    return done


def cpu_obstacle() -> str | None:
    """Why no CPU layer can be made on this machine, or None: its Python must be the one of the hosts (Debian 12)."""
    if ORIGINAL_ENV.get("DDTREE_TEST_LAYER"):
        return None
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "there is no /usr/bin/python3"
    return None if found.strip() == "3.11" else f"/usr/bin/python3 is {found.strip()}, and the test hosts have 3.11"


def cpu_layer() -> Path:
    """A whole SGLang 0.5.20 that serves on a CPU (tests/sglang_cpu/make_env.sh); put ``lab_layer()`` over it."""
    ready = ORIGINAL_ENV.get("DDTREE_TEST_LAYER")
    if ready:
        return Path(ready)
    with outside_network():
        done = subprocess.run(
            ["bash", str(_ROOT / "tests/sglang_cpu/make_env.sh"), str(cache() / "layers" / "cpu")],
            env=ORIGINAL_ENV,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"make_env.sh: exit {done.returncode} (its words are above)")
    return Path(done.stdout.split()[-1])


def cpu_service(port: int = 30000, lab: str = "/root/lab", models: str = "/root/models/pytiny") -> dict[str, Any]:
    """The ``service:`` part of an inventory entry for a host with the CPU layer: what a GPU host would not need."""
    return {
        "target_model": f"{models}/target",
        "drafter": f"{models}/draft",
        "port": port,
        "budget": 16,
        "extra_flags": [
            *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "bfloat16"),
            *("--mem-fraction-static", "0.3", "--max-total-tokens", "4096"),
        ],
        "environment": {
            "PYTHONPATH": f"{lab}/stubs:{lab}/runtime",
            "SGLANG_USE_CPU_ENGINE": "1",
            "TRITON_INTERPRET": "1",
            "HF_HUB_OFFLINE": "1",
            "DDTREE_ALLOW_CPU": "1",
        },
    }


def hashes(root: Path) -> dict[str, str]:
    """Content hash or link target of everything below ``root``, byte code left out."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        elif path.is_file() and path.suffix != ".pyc":
            with path.open("rb") as stream:
                found[str(path)] = hashlib.sha256(stream.read()).hexdigest()
    return found
