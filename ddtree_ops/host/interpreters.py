"""Interpreters on the host: where they are, whether it is safe to start them, and what they say of themselves.

Facts are gathered as root, often, and an interpreter in somebody's home is somebody's program. So one that nobody
named is started only when root or the current user owns it; of the others the disk is read and that is said.
"""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import commands, gitinfo, packages, probe
from .look import Fact, Look, names_in, owner_of, read_text, user_path
from .servicepath import SYSTEM_PATH

_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")


class Candidate:
    """An interpreter that may matter: its path as found, the places that named it, its site-packages by the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.prefix = os.path.dirname(os.path.dirname(path))
        self.sources: List[str] = []
        self.site_packages = site_folders(self.prefix)
        self.answer: Dict[str, Any] = {}

    @property
    def named(self) -> bool:
        """The operator or the system's own units point at it. That somebody runs it is no reason to run it, too."""
        return any(source.startswith(("inventory", "takeover", "unit:")) for source in self.sources)

    @property
    def has_sglang(self) -> bool:
        """Its site-packages install, installed or shadow SGLang."""
        return any(packages.mentions_sglang(folder) for folder in self.site_packages)


def site_folders(prefix: str) -> List[str]:
    """The site-packages folders under ``prefix`` by their usual names, without starting the interpreter."""
    found: List[str] = []
    for pattern in (
        "lib/python3*/site-packages",
        "lib64/python3*/site-packages",
        "lib/python3*/dist-packages",
        "local/lib/python3*/dist-packages",
    ):
        for folder in sorted(glob.glob(os.path.join(glob.escape(prefix), pattern))):
            if os.path.realpath(folder) not in map(os.path.realpath, found):
                found.append(folder)
    return found


def executable_of(named: str) -> str:
    """The interpreter that an inventory means by an environment's folder or an interpreter's path; "" when none."""
    path = user_path(named)
    if not os.path.isdir(path):
        return path if os.path.lexists(path) else ""
    choices = [os.path.join(path, name) for name in ("bin/python", "bin/python3")]
    for exists in (os.path.exists, os.path.lexists):  # a link to nothing is better than none: starting it says why
        for choice in choices:
            if exists(choice):
                return choice
    return ""


def python_in(words: Iterable[str]) -> str:
    """The interpreter that a command line starts: itself, beside its console script, or in the script's first line."""
    for word in words:
        for part in map(str, re.findall(r"/[^\s'\";=]+", word)):
            folder, name = os.path.split(part)
            if _PYTHON.match(name) and os.path.exists(part):
                return part
            if name == "sglang" and os.path.isfile(part):
                return _beside(part) or os.path.join(folder, "python")
    return ""


def _beside(script: str) -> str:
    first = read_text(script, 512).splitlines()[:1]
    words = first[0][2:].split() if first and first[0].startswith("#!") else []
    for word in words[:1]:
        if _PYTHON.match(os.path.basename(word)) and os.path.exists(word):
            return word
    for name in ("python", "python3"):
        candidate = os.path.join(os.path.dirname(script), name)
        if os.path.exists(candidate):
            return candidate
    return ""


def collect_candidates(look: Look, named: Iterable[Tuple[str, str]], folders: Iterable[str]) -> List[Candidate]:
    """All candidates, one per environment: ``named`` as (path, source), and environments that a search found."""
    by_prefix: Dict[str, Candidate] = {}

    def add(path: str, source: str) -> None:
        if path:
            candidate = Candidate(path)
            known = by_prefix.setdefault(os.path.realpath(candidate.prefix), candidate)
            if source not in known.sources:
                known.sources.append(source)

    for path, source in named:
        add(path, source)
    for folder in folders:
        add(executable_of(folder), "search")
    for name in ("python3", "python"):
        add(commands.which(name), "search: PATH")
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(path):
            add(path, "search")
    return [one for one in by_prefix.values() if one.has_sglang or one.sources != ["search"]]


def may_start(candidate: Candidate) -> bool:
    """Named by somebody, or owned by root or by the user that we are."""
    if candidate.named:
        return True
    places = (candidate.path, os.path.dirname(candidate.path))
    return all(owner_of(place)[0] in (-1, 0, os.geteuid()) for place in places)  # -1: nothing there to be started


def interrogate(look: Look, candidate: Candidate) -> None:
    """Fill ``candidate.answer`` by starting it once, isolated (``-I -B``); safe to run in a thread."""
    if may_start(candidate):
        candidate.answer = probe.ask(candidate.path, probe.ISOLATED, timeout=look.left(10.0))
    else:
        owner = owner_of(candidate.path)[1]
        candidate.answer = {"error": "not started: it belongs to %s; name it as `environment` to use it" % owner}
    listed = candidate.answer.get("site_packages")
    if listed:
        folders = [str(folder) for folder in listed]
        if candidate.answer.get("user_site"):
            folders.insert(0, str(candidate.answer["user_site"]))
        candidate.site_packages = [folder for folder in folders if os.path.isdir(folder)]


def describe(candidate: Candidate) -> Fact:
    """The candidate as model.Interpreter."""
    answer = candidate.answer
    prefix = str(answer.get("prefix") or candidate.prefix)
    versions = packages.versions(candidate.site_packages)
    first = candidate.site_packages[0] if candidate.site_packages else ""
    return {
        "path": candidate.path,
        "realpath": os.path.realpath(candidate.path),
        "prefix": prefix,
        "version": str(answer.get("version") or configuration(prefix).get("version", "")),
        "abi": str(answer.get("abi") or ""),
        "kind": kind_of(prefix, answer),
        "site_packages": list(candidate.site_packages),
        "has_pip": any(os.path.isdir(os.path.join(folder, "pip")) for folder in candidate.site_packages),
        "pip_version": versions.get("pip", ""),
        "externally_managed": _externally_managed(answer),
        "sources": list(candidate.sources),
        "packages": {name: version for name, version in versions.items() if name != "pip"},
        "enclosing_repository": gitinfo.dot_git_above(prefix),
        "writable": bool(first) and writable(first),
        "builds_kernels": bool(commands.which("ninja", _service_path(candidate.path))),
        "error": str(answer.get("error") or "") if not answer.get("version") else "",
    }


def _service_path(interpreter: str) -> str:
    return "%s:%s" % (os.path.dirname(interpreter), SYSTEM_PATH)


def configuration(prefix: str) -> Dict[str, str]:
    """``pyvenv.cfg`` by key; empty outside of a virtual environment."""
    pairs = (line.partition("=") for line in read_text(os.path.join(prefix, "pyvenv.cfg"), 65536).splitlines())
    found = {key.strip().lower(): value.strip() for key, sign, value in pairs if sign}
    if "version_info" in found:
        found.setdefault("version", found["version_info"])
    return found


def kind_of(prefix: str, answer: Dict[str, Any]) -> str:
    """How the environment was made: "venv", "uv", "conda", "system" or "unknown"."""
    if os.path.isdir(os.path.join(prefix, "conda-meta")):
        return "conda"
    config = configuration(prefix)
    if config:
        return "uv" if "uv" in config else "venv"
    if prefix in ("/usr", "/usr/local") or answer.get("base_prefix") == prefix:
        return "system"
    return "unknown"


def _externally_managed(answer: Dict[str, Any]) -> bool:
    if not answer.get("stdlib") or answer.get("prefix") != answer.get("base_prefix"):
        return False
    return os.path.exists(os.path.join(str(answer["stdlib"]), "EXTERNALLY-MANAGED"))


def writable(folder: str) -> bool:
    """The current user may create files in ``folder`` and its file system is not mounted read-only."""
    try:
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    return not read_only and os.access(folder, os.W_OK | os.X_OK)


def well_known_environments(home: str) -> List[str]:
    """Environments that their makers list or keep in known places: conda, pyenv, uv, pipx."""
    found: List[str] = []
    for line in read_text(os.path.join(home, ".conda/environments.txt"), 65536).splitlines():
        if os.path.isabs(line.strip()):
            found.append(line.strip())
    roots = [os.path.join(home, name) for name in ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba")]
    roots += ["/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/usr/local/conda"]
    for root in roots:
        if os.path.isdir(root):
            found.append(root)
            found += [os.path.join(root, "envs", name) for name in names_in(os.path.join(root, "envs"))]
    for folder in (
        ".pyenv/versions",
        ".local/share/uv/python",
        ".local/share/uv/tools",
        ".local/pipx/venvs",
        ".local/share/pipx/venvs",
        ".virtualenvs",
    ):
        base = os.path.join(home, folder)
        found += [os.path.join(base, name) for name in names_in(base)]
    return found


def pick(candidates: Iterable[Candidate], path: str) -> Optional[Candidate]:
    """The candidate for an interpreter path or an environment's folder."""
    prefix = os.path.realpath(path if os.path.isdir(path) else os.path.dirname(os.path.dirname(path)))
    for candidate in candidates:
        if os.path.realpath(candidate.prefix) == prefix:
            return candidate
    return None
