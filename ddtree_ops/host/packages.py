"""Installed distributions, read from the disk: no interpreter is started and nothing is imported.

Formats: the core metadata, RECORD, INSTALLER and direct_url.json files of PyPA's specifications; ``.egg-link`` and
``.pth`` of setuptools and ``site``. pip renames what it is about to delete to ``~...`` and sometimes leaves it.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from .look import PACKAGE, Fact, names_in, read_bytes, read_text

#: Distributions whose version decides what runs (normalised names).
WATCHED = (
    "torch",
    "sgl-kernel",
    "sglang-kernel",
    "flashinfer-python",
    "transformers",
    "triton",
    "sglang",
    "pip",
    "setuptools",
    "wheel",
    "uv",
)
_FOLDER = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*?)-(?P<version>[0-9][^-]*)(-py[0-9.]+)?\.(dist|egg)-info$")
_EDITABLE_FILE = re.compile(r"^_*(__)?editable__.*%s" % PACKAGE, re.IGNORECASE)


class Recorded(NamedTuple):
    """One row of RECORD: SHA-256 in hex ("" when the row has none) and size in bytes (-1 when it has none)."""

    sha256: str
    size: int


def normalise(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(site_packages: List[str]) -> Dict[str, str]:
    """Version of each watched distribution; the first folder of ``site_packages`` that has it wins."""
    found: Dict[str, str] = {}
    for folder in site_packages:
        for name in names_in(folder):
            match = _FOLDER.match(name)
            if match:
                distribution = normalise(match.group("name"))
                if distribution in WATCHED:
                    found.setdefault(distribution, match.group("version"))
    return found


def is_leftover(name: str) -> bool:
    """``name`` is what an interrupted pip leaves of ``sglang``: ``~glang``, ``~glang-0.5.9.dist-info``."""
    if not name.startswith("~"):
        return False
    stem = name.lstrip("~-").split("-")[0].split(".")[0].lower()
    return len(stem) >= 2 and PACKAGE.endswith(stem)


def speaks_of_sglang(name: str) -> bool:
    """A name in a site-packages folder that has to do with SGLang."""
    lowered = name.lower()
    if lowered in (PACKAGE, PACKAGE + ".egg-link", PACKAGE + ".egg-info") or is_leftover(name):
        return True
    if re.match(r"^%s-[^/]*\.(dist|egg)-info$" % PACKAGE, lowered):
        return True
    return bool(_EDITABLE_FILE.match(name))


def version_in(folder: str) -> Optional[str]:
    """``Version:`` of METADATA or PKG-INFO, None when there is neither or it has none."""
    if os.path.isfile(folder):
        text = read_text(folder, 65536)
    else:
        text = read_text(os.path.join(folder, "METADATA"), 65536) or read_text(os.path.join(folder, "PKG-INFO"), 65536)
    for line in text.splitlines():
        if line.lower().startswith("version:"):
            return line.split(":", 1)[1].strip() or None
        if not line.strip():
            break
    return None


def read_record(dist_info: str) -> Dict[str, Recorded]:
    """RECORD by path (as written: relative to site-packages). Paths may contain commas, so this is real CSV."""
    rows: Dict[str, Recorded] = {}
    text = read_text(os.path.join(dist_info, "RECORD"), 64 << 20)
    try:
        for row in csv.reader(io.StringIO(text)):
            if row and row[0]:
                rows[row[0]] = Recorded(_hex(row[1] if len(row) > 1 else ""), _size(row[2] if len(row) > 2 else ""))
    except csv.Error:
        pass  # a damaged RECORD lists what could be read of it; the check then reports the rest as unrecorded
    return rows


def package_rows(rows: Dict[str, Recorded]) -> Dict[str, Recorded]:
    """The rows of the package folder, by path inside it, without bytecode."""
    prefix = PACKAGE + "/"
    return {
        path[len(prefix) :]: row for path, row in rows.items() if path.startswith(prefix) and not path.endswith(".pyc")
    }


def _hex(field: str) -> str:
    name, _, digest = field.partition("=")
    if name != "sha256":
        return ""
    try:
        return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    except ValueError:
        return ""


def _size(field: str) -> int:
    return int(field) if field.isdigit() else -1


def dist_infos(site_packages: str) -> List[Fact]:
    """Every folder or file in ``site_packages`` that claims to be SGLang's metadata (model.DistInfo)."""
    found = []
    for name in names_in(site_packages):
        lowered = name.lower()
        if lowered == PACKAGE + ".egg-link" or not (speaks_of_sglang(name) and lowered.endswith("-info")):
            continue
        found.append(_dist_info(os.path.join(site_packages, name), name))
    return found


def _dist_info(path: str, name: str) -> Fact:
    url, editable = _direct_url(path)
    rows = read_record(path)
    recorded = package_rows(rows)
    editable = editable or any(_EDITABLE_FILE.match(row) for row in rows if "/" not in row)
    version = version_in(path)
    notes = []
    if name.startswith("~"):
        notes.append("leftover of an interrupted pip run")
    if os.path.isdir(path) and not names_in(path):
        notes.append("empty")
    elif version is None:
        notes.append("no version")
    elif not rows and name.endswith(".dist-info"):
        notes.append("no RECORD: pip cannot uninstall it")
    return {
        "path": path,
        "version": version,
        "editable": editable,
        "url": url,
        "installer": read_text(os.path.join(path, "INSTALLER"), 200).strip(),
        "recorded": len(recorded),
        "note": ", ".join(notes),
    }


def _direct_url(dist_info: str) -> Tuple[str, bool]:
    raw = read_bytes(os.path.join(dist_info, "direct_url.json"), 65536)
    try:
        document = json.loads(raw.decode("utf-8")) if raw else {}
    except ValueError:
        return "", False
    if not isinstance(document, dict):
        return "", False
    folder = document.get("dir_info")
    return str(document.get("url") or ""), bool(isinstance(folder, dict) and folder.get("editable"))


def path_entries(site_packages: str) -> Dict[str, str]:
    """Folders that ``.pth`` files of ``site_packages`` add to ``sys.path``, each with the file that does."""
    entries: Dict[str, str] = {}
    for name in names_in(site_packages):
        if not name.endswith(".pth") or name.startswith("."):
            continue
        path = os.path.join(site_packages, name)
        for line in read_text(path, 1 << 20).splitlines():
            line = line.rstrip()
            if line and not line.startswith(("#", "import ", "import\t")):
                entries.setdefault(os.path.normpath(os.path.join(site_packages, line)), path)
    return entries


def egg_link(site_packages: str) -> str:
    """The folder that ``sglang.egg-link`` points to, "" when there is none."""
    lines = read_text(os.path.join(site_packages, PACKAGE + ".egg-link"), 65536).splitlines()
    return os.path.normpath(os.path.join(site_packages, lines[0].strip())) if lines and lines[0].strip() else ""


_MAPPING = re.compile(r"['\"]%s['\"]\s*:\s*(['\"])(?P<path>.+?)\1" % PACKAGE)


def finder_target(site_packages: str) -> Tuple[str, str]:
    """Package folder and finder file of a setuptools import-hook editable install, ("", "") when there is none."""
    for name in names_in(site_packages):
        if name.endswith("_finder.py") and _EDITABLE_FILE.match(name):
            match = _MAPPING.search(read_text(os.path.join(site_packages, name)))
            if match:
                return match.group("path"), os.path.join(site_packages, name)
    return "", ""


def mentions_sglang(site_packages: str) -> bool:
    """Something in ``site_packages`` installs, installed or shadows SGLang: one listing and its ``.pth`` files."""
    if any(speaks_of_sglang(name) for name in names_in(site_packages)):
        return True
    return any(os.path.isdir(os.path.join(entry, PACKAGE)) for entry in path_entries(site_packages))
