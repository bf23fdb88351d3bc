"""What in an environment belongs to SGLang: the names that an (un)install may touch, and nothing else."""

from __future__ import annotations

import configparser
import os
import re
from typing import Dict, Iterator, List, Set

from . import packages, snapshots
from .layouts import Layout
from .look import PACKAGE, names_in

#: Files of an editable install: ``__editable__.sglang-0.5.pth``, ``__editable___sglang_0_5_finder.py``.
_EDITABLE = re.compile(r"^__editable__(_|\.)sglang(-|_)[0-9].*(\.pth|_finder\.py)$")
_OWN_NAMES = (PACKAGE, "sglang.egg-link", "sglang.egg-info", "sglang.pth")


def belongs(name: str) -> bool:
    """A name directly in site-packages is SGLang's (not that of ``sglang-router`` or another neighbour)."""
    lowered = name.lower()
    if lowered in _OWN_NAMES or _EDITABLE.match(name) or re.match(r"^sglang-[^/]*\.(dist|egg)-info$", lowered):
        return True
    return is_leftover(name) or name.endswith(".ddtree-ops")  # ... or a write of ours that was cut


def is_leftover(name: str) -> bool:
    """What an interrupted pip leaves of SGLang's folders: it hides ``sglang`` as ``~glang``, ``tools`` as ``~ools``."""
    if not name.startswith("~"):
        return False
    tail = name[1:].lstrip("-~.=%0123456789").lower()
    stem = re.sub(r"-[0-9].*$", "", tail)
    return len(stem) >= 2 and (PACKAGE.endswith(stem) or (stem == tail and "tools".endswith(stem)))


def names(layout: Layout) -> List[str]:
    """Every existing path of SGLang in the environment: packages, metadata, editable files, scripts, leftovers."""
    found: Set[str] = set()
    for site in layout.sites:
        for name in names_in(site):
            if belongs(name):
                found.update(snapshots.tree(os.path.join(site, name)))
        for dist_info in metadata_folders(site):
            found.update(_recorded(site, dist_info, layout.prefix))
            for script in console_scripts(dist_info):
                path = os.path.join(layout.scripts, script)
                if os.path.lexists(path):
                    found.add(path)
    for name in names_in(layout.scripts):
        if name.endswith(".ddtree-ops"):
            found.add(os.path.join(layout.scripts, name))
    return sorted(found)


def traces(layout: Layout) -> List[str]:
    """As :func:`names`, and what installers change beside that: uv's lock file, and the list of develop installs."""
    shared = [os.path.join(layout.prefix, ".lock")]
    for site in layout.sites:
        if os.path.exists(os.path.join(site, "sglang.egg-link")):
            shared.append(os.path.join(site, "easy-install.pth"))
    return names(layout) + [path for path in shared if os.path.isfile(path)]


def metadata_folders(site: str) -> List[str]:
    """The ``sglang-*.dist-info`` folders in ``site``."""
    return [os.path.join(site, name) for name in names_in(site) if re.match(r"^sglang-[^/]*\.dist-info$", name.lower())]


def console_scripts(dist_info: str) -> Dict[str, str]:
    """Console scripts of a distribution: name -> ``module:function``."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read(os.path.join(dist_info, "entry_points.txt"), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    return dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}


def distributions(layout: Layout) -> Dict[str, str]:
    """What ``pip freeze`` would tell apart: metadata folder name -> the site folder it is in."""
    found: Dict[str, str] = {}
    for site in layout.sites:
        for name in names_in(site):
            if name.lower().endswith((".dist-info", ".egg-info", ".egg-link")):
                found[name] = site
    return found


def _recorded(site: str, dist_info: str, prefix: str) -> Iterator[str]:
    """Existing files that RECORD lists (inside the environment only), and the folders that lead to them."""
    real_prefix = os.path.realpath(prefix) + "/"
    inside: Dict[str, bool] = {}
    for row in packages.read_record(dist_info):
        path = os.path.normpath(os.path.join(site, row))
        folder = os.path.dirname(path)
        if folder not in inside:
            inside[folder] = (os.path.realpath(folder) + "/").startswith(real_prefix)
        if inside[folder] and os.path.lexists(path):
            yield path
    for folder in [folder for folder, within in inside.items() if within and folder.startswith(site + "/")]:
        while folder != site and os.path.isdir(folder):
            yield folder
            folder = os.path.dirname(folder)
