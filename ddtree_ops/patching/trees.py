"""Pristine trees on the controller: a wheel, an unpacked wheel, or a checkout; read only.

A tree answers for files relative to the package root (``sglang/``), whatever it is made of.
"""

from __future__ import annotations

import base64
import csv
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ..errors import ConfigError, Refused
from .text import sha256

PACKAGE = "sglang"
_GENERATED = "_version.py"  # written by the build; a checkout of the same release has another one or none


@dataclass(frozen=True)
class Tree:
    """A copy of the package: ``read`` gives a file's bytes or ``None``; ``recorded`` is what RECORD promises."""

    origin: str
    version: str
    read: Callable[[str], bytes | None]
    hashes: Callable[[], Mapping[str, str]]
    recorded: Mapping[str, str] = field(default_factory=dict)

    def pristine(self, paths: tuple[str, ...]) -> dict[str, bytes]:
        """The bytes of those of ``paths`` that exist.

        Raises:
            Refused: a file differs from the wheel's RECORD, so this is no pristine tree.
        """
        found = {path: data for path in paths if (data := self.read(path)) is not None}
        for path, data in found.items():
            if self.recorded and self.recorded.get(path) != sha256(data):
                raise Refused(
                    f"{path} is not what the wheel's RECORD says",
                    where=self.origin,
                    why="a series is only made from a pristine release",
                    next_step="unpack the wheel again",
                )
        return found


def content_hash(files: Mapping[str, str]) -> str:
    """One hash for the content of a package copy.

    ``files`` maps paths relative to the package root to SHA-256 (lower-case hex). What counts: every ``*.py`` except
    ``_version.py`` (written by the build) and anything under ``__pycache__``; so compiled modules and the platform do
    not. The hash is SHA-256 over ``<path> NUL <sha256> LF`` for each file, sorted by the path's UTF-8 bytes.
    """
    counted = sorted(
        (path.encode("utf-8", "surrogateescape"), digest) for path, digest in files.items() if counts(path)
    )
    return sha256(b"".join(path + b"\0" + digest.encode() + b"\n" for path, digest in counted))


def open_tree(path: Path) -> Tree:
    """Open a wheel file, a folder with an unpacked wheel, a checkout of SGLang, or the package folder itself.

    Raises:
        ConfigError: when the path is none of these.
    """
    if path.is_file() and zipfile.is_zipfile(path):
        return _wheel(path)
    for package in (path / PACKAGE, path / "python" / PACKAGE, path):
        if (package / "srt").is_dir():
            return _folder(package)
    raise ConfigError(
        "this is no SGLang",
        where=str(path),
        why="neither a wheel nor a folder with sglang/srt or python/sglang/srt",
        next_step="name a wheel (pip download --no-deps sglang==<release>), an unpacked wheel or a checkout",
    )


def parse_record(text: str) -> dict[str, str]:
    """RECORD as ``path relative to the package root -> SHA-256 (hex)``, for the package's hashed files."""
    hashes: dict[str, str] = {}
    for row in csv.reader(io.StringIO(text)):
        if len(row) == 3 and row[0].startswith(f"{PACKAGE}/") and row[1].startswith("sha256="):
            digest = row[1].removeprefix("sha256=")
            raw = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
            hashes[row[0].removeprefix(f"{PACKAGE}/")] = raw.hex()
    return hashes


def counts(path: str) -> bool:
    """Whether a file (path relative to the package root) is part of :func:`content_hash`."""
    parts = PurePosixPath(path)
    return parts.suffix == ".py" and path != _GENERATED and "__pycache__" not in parts.parts


def _wheel(path: Path) -> Tree:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        record = next((name for name in names if name.endswith(".dist-info/RECORD")), "")
        recorded = parse_record(archive.read(record).decode()) if record else {}

    def read(relative: str) -> bytes | None:
        name = f"{PACKAGE}/{relative}"
        if name not in names:
            return None
        with zipfile.ZipFile(path) as archive:
            return archive.read(name)

    return Tree(str(path), _version_of(record), read, lambda: recorded, recorded)


def _folder(package: Path) -> Tree:
    record = next(iter(sorted(package.parent.glob(f"{PACKAGE}-*.dist-info/RECORD"))), None)
    recorded = parse_record(record.read_text(encoding="utf-8")) if record else {}

    def read(relative: str) -> bytes | None:
        file = package / relative
        return file.read_bytes() if file.is_file() else None

    def hashes() -> Mapping[str, str]:
        found = (file for file in package.rglob("*.py") if file.is_file())
        names = {file.relative_to(package).as_posix(): file for file in found}
        return {name: sha256(file.read_bytes()) for name, file in names.items() if counts(name)}

    version = _version_of(record.parent.name + "/RECORD" if record else "")
    return Tree(str(package), version, read, (lambda: recorded) if recorded else hashes, recorded)


def _version_of(record: str) -> str:
    folder = record.split("/")[0]
    return folder.removesuffix(".dist-info").partition("-")[2]
