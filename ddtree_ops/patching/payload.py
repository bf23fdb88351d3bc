"""The payload: the new files that carry the code, and the identity of a build."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import ConfigError
from ..resources import data_dir
from .recipe import Recipe
from .series import Series
from .text import has_crlf, sha256

BUILD_FILE = "_build.json"
_SKIPPED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"}


@dataclass(frozen=True)
class Payload:
    """Files by path relative to the payload's folder, and the folder's place in the package."""

    target: str
    files: Mapping[str, bytes]

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Path relative to the payload's folder -> SHA-256."""
        return {path: sha256(data) for path, data in sorted(self.files.items())}

    @cached_property
    def hash(self) -> str:
        """SHA-256 over ``<path> NUL <sha256> LF``, sorted."""
        return sha256(b"".join(f"{path}\0{digest}\n".encode() for path, digest in sorted(self.hashes.items())))

    def placed(self) -> dict[str, bytes]:
        """Path relative to the package root -> bytes."""
        return {f"{self.target}/{path}": data for path, data in sorted(self.files.items())}


def load_payload(recipe: Recipe, kernels: Path | None = None) -> Payload:
    """Read the payload's folder (``kernels/ddtree``), bytecode and caches left out.

    Raises:
        ConfigError: the folder is missing or holds something that does not belong there.
    """
    folder = (kernels or data_dir("kernels")) / recipe.payload.source
    if not (folder / "__init__.py").is_file():
        raise ConfigError(
            "the payload is missing",
            where=str(folder),
            why="no __init__.py in it",
            next_step="reinstall ddtree-ops, or set DDTREE_OPS_DATA to a folder that has kernels/",
        )
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if _SKIPPED.intersection(relative.parts) or path.suffix == ".pyc" or path.name == BUILD_FILE:
            continue
        if path.is_symlink():
            raise ConfigError("a link in the payload", where=str(path), next_step="replace it by the file")
        if path.is_file():
            files[relative.as_posix()] = _checked(path)
    return Payload(recipe.payload.target, files)


def build_id(base_hash: str, series: Series | str, payload: Payload) -> str:
    """Identity of what is deployed: SHA-256 over base content, series (or the patch's hash) and payload."""
    patch = series if isinstance(series, str) else series.hash
    text = f"ddtree-ops build 1\nbase {base_hash}\npatch {patch}\npayload {payload.hash}\n"
    return hashlib.sha256(text.encode()).hexdigest()


def release_id(release: str, build: str) -> str:
    """Name of a derived tree: ``<release>-<first 12 hex of the build id>``."""
    return f"{release}-{build[:12]}"


def build_json(
    *,
    base_hash: str,
    series: Series | str,
    payload: Payload,
    patched: Mapping[str, str],
    release: str,
    spec: str,
    tool_version: str,
    series_name: str = "",
) -> bytes:
    """``_build.json`` beside the payload: what the beacon reports and attestation compares.

    ``patched`` maps SGLang's patched files, relative to the package root, to the SHA-256 that they now have; ``files``
    in the result holds them together with the payload's. ``series_name`` names a series that is given by its hash.
    """
    build = build_id(base_hash, series, payload)
    placed = {f"{payload.target}/{path}": digest for path, digest in payload.hashes.items()}
    document = {
        "schema": 1,
        "build_id": build,
        "release_id": release_id(release, build),
        "release": release,
        "spec": spec,
        "series": series_name or (series if isinstance(series, str) else series.name),
        "series_hash": series if isinstance(series, str) else series.hash,
        "base_hash": base_hash,
        "payload_hash": payload.hash,
        "tool_version": tool_version,
        "files": {**placed, **patched},
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _checked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".py" and has_crlf(data):
        raise ConfigError(
            "a payload file has CRLF line endings",
            where=str(path),
            why="new files are written with LF",
            next_step="check it out again without line ending conversion",
        )
    return data
