"""Where an environment keeps its packages and scripts, asked of the interpreter itself."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Tuple

from .ops import Work
from .protocol import HostError

_MARK = "@ddtree-layout@"

_SCRIPT = r"""
import json, os, sys, sysconfig
try:
    from importlib import metadata
    pip = metadata.version("pip")
except Exception:
    pip = ""
paths = sysconfig.get_paths()
managed = os.path.join(sysconfig.get_path("stdlib", sysconfig.get_default_scheme() if hasattr(
    sysconfig, "get_default_scheme") else "posix_prefix"), "EXTERNALLY-MANAGED")
out = dict(
    purelib=paths["purelib"], platlib=paths["platlib"], scripts=paths["scripts"],
    prefix=sys.prefix, base_prefix=sys.base_prefix, version=list(sys.version_info[:3]), pip=pip,
    managed=sys.prefix == sys.base_prefix and os.path.exists(managed),
    cache_tag=sys.implementation.cache_tag or "",
)
sys.stdout.write(sys.argv[1] + json.dumps(out) + "\n")
"""


class Layout(NamedTuple):
    """One environment: ``sites`` are its own package folders (purelib, platlib), each once."""

    python: str
    prefix: str
    sites: Tuple[str, ...]
    scripts: str
    version: Tuple[int, int, int]
    pip: Tuple[int, ...]  # () without pip
    externally_managed: bool


def read(work: Work, python: str) -> Layout:
    """Ask ``python`` (isolated, writing nothing). Raises ``no_interpreter`` when it does not answer."""
    ran = work.run([python, "-I", "-B", "-c", _SCRIPT, _MARK], timeout=30.0, step="layout")
    _, mark, body = ran.text().rpartition(_MARK)
    if not mark:
        raise HostError(
            "no_interpreter",
            "the environment's interpreter does not run: %s" % ran.complaint(),
            where=python,
            next="name the right one as `environment` in the inventory",
        )
    answer: Dict[str, Any] = json.loads(body.splitlines()[0])
    sites: List[str] = []
    for site in (answer["purelib"], answer["platlib"]):
        if os.path.realpath(site) not in map(os.path.realpath, sites):
            sites.append(site)
    major, minor, micro = answer["version"]
    return Layout(
        python=python,
        prefix=answer["prefix"],
        sites=tuple(sites),
        scripts=answer["scripts"],
        version=(major, minor, micro),
        pip=_numbers(answer["pip"]),
        externally_managed=bool(answer["managed"]),
    )


def _numbers(version: str) -> Tuple[int, ...]:
    numbers = []
    for part in version.split(".")[:3]:
        digits = "".join(char for char in part if char.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
