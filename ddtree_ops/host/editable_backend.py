"""Build backend of this tree (PEP 660): editable installs only, from what lies beside this file.

``pip install --no-deps --no-build-isolation -e .`` (or uv) puts a ``.pth`` file with the folder of the sources, the
metadata below, and the console scripts into the environment. Nothing is compiled, downloaded or generated. METADATA
and entry_points.txt are those of the copy that this tree was made from.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import zipfile
from typing import Any, Dict, List, Optional, Tuple

HERE = os.path.dirname(os.path.realpath(__file__))


def get_requires_for_build_editable(config_settings: Any = None) -> List[str]:
    """Nothing is needed."""
    return []


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    """Write the ``.dist-info`` folder; returns its name."""
    folder = "%s-%s.dist-info" % identity(HERE)
    os.makedirs(os.path.join(metadata_directory, folder), exist_ok=True)
    for path, data in metadata_files(HERE).items():
        with open(os.path.join(metadata_directory, folder, path), "wb") as handle:
            handle.write(data)
    return folder


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Write the wheel of the editable install; returns its file name."""
    wheel = "%s-%s-py3-none-any.whl" % identity(HERE)
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w") as archive:
        for path, data in wheel_files(HERE).items():
            info = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            info.external_attr = 0o100644 << 16
            archive.writestr(info, data)
    return wheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Refuse: a copy of this tree in site-packages would hide the tree."""
    raise RuntimeError("this tree is for editable installs: pip install --no-deps --no-build-isolation -e %s" % HERE)


def identity(folder: str) -> Tuple[str, str]:
    """Name and version for file names, as METADATA says."""
    known: Dict[str, str] = {}
    with open(os.path.join(folder, "METADATA"), "rb") as handle:
        for raw in handle:
            key, _, value = raw.decode("utf-8", "replace").partition(":")
            if not raw.strip():
                break
            known.setdefault(key.strip().lower(), value.strip())
    if not known.get("name") or not known.get("version"):
        raise RuntimeError("%s/METADATA has no Name or no Version" % folder)
    return known["name"].replace("-", "_"), known["version"].replace("-", "_")


def sources(folder: str) -> str:
    """Absolute folder that holds the package: the entry for ``sys.path``."""
    with open(os.path.join(folder, "editable.json"), "rb") as handle:
        inside = json.loads(handle.read().decode("ascii"))["sources"]
    return os.path.normpath(os.path.join(folder, inside))


def pth_line(path: str) -> str:
    """The line of the ``.pth`` file. Its encoding depends on Python and locale, so other than ASCII is escaped."""
    try:
        path.encode("ascii")
    except UnicodeEncodeError:
        return "import sys; sys.path.append(%s)\n" % ascii(path)
    return path + "\n"


def metadata_files(folder: str) -> Dict[str, bytes]:
    """Files of the ``.dist-info`` folder, without RECORD."""
    files = {"WHEEL": b"Wheel-Version: 1.0\nGenerator: ddtree-ops\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    for name in ("METADATA", "entry_points.txt"):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            with open(path, "rb") as handle:
                files[name] = handle.read()
    return files


def wheel_files(folder: str) -> Dict[str, bytes]:
    """Everything in the wheel by path, RECORD last."""
    stem = "%s-%s" % identity(folder)
    files = {"__editable__.%s.pth" % stem: pth_line(sources(folder)).encode("ascii")}
    for path, data in metadata_files(folder).items():
        files["%s.dist-info/%s" % (stem, path)] = data
    files["%s.dist-info/RECORD" % stem] = record(files, "%s.dist-info/RECORD" % stem)
    return files


def record(files: Dict[str, bytes], own: str) -> bytes:
    """RECORD for ``files`` (path -> bytes) and itself, as real CSV: a path may hold commas."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
        rows.writerow([path, "sha256=" + digest, str(len(data))])
    rows.writerow([own, "", ""])
    return table.getvalue().encode("utf-8", "surrogateescape")
