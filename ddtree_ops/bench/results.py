"""Result folders: write them line by line, read them back, say clearly what is wrong with a damaged one.

``rows.jsonl`` is append-only and synced per line, so that a run that is killed keeps every round that was finished; a
torn last line is what such an end leaves, and is dropped. All other files are replaced atomically. The types are in
:mod:`.schema`, the way from rows to cells in :mod:`.summarise`; both are re-exported here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..jsontext import json_bytes
from .schema import (
    FILES,
    SCHEMA_VERSION,
    Acceptance,
    AcceptanceCell,
    Auto,
    Budget,
    Cell,
    Client,
    Comparison,
    Conditions,
    Cost,
    DepthCount,
    Gate,
    Gates,
    IdentityPair,
    IdentityReport,
    Interval,
    Manifest,
    ModelOf,
    Offline,
    OfflinePoint,
    Percentiles,
    Plan,
    Prediction,
    Request,
    RoundRow,
    Summary,
    Verdict,
)
from .summarise import acceptance, judged, summarise

__all__ = [
    "FILES",
    "SCHEMA_VERSION",
    "Acceptance",
    "AcceptanceCell",
    "Auto",
    "Budget",
    "Cell",
    "Client",
    "Comparison",
    "Conditions",
    "Cost",
    "DepthCount",
    "Folder",
    "Gate",
    "Gates",
    "IdentityPair",
    "IdentityReport",
    "Interval",
    "Manifest",
    "ModelOf",
    "Offline",
    "OfflinePoint",
    "Percentiles",
    "Plan",
    "Prediction",
    "Request",
    "RoundRow",
    "Summary",
    "Verdict",
    "acceptance",
    "create",
    "judged",
    "open_folder",
    "summarise",
]

ROWS = "rows.jsonl"


class Folder:
    """One result folder. Use :func:`create` for a new one and :func:`open_folder` for one that exists."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.torn = 0  # bytes of a last line that was cut off by the end of an earlier run
        self._mended = False

    def append(self, row: RoundRow) -> None:
        """Add one round; returns when it is on disk."""
        path = self.path / ROWS
        if not self._mended:
            self.torn, self._mended = _cut_torn_line(path), True
        with path.open("ab") as file:
            file.write(json_bytes(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> tuple[RoundRow, ...]:
        """All finished rounds. Raises :class:`ConfigError` with the line of a damaged one, if it is not the last."""
        return _read_rows(self.path / ROWS)

    def save(self, name: str, value: Any) -> Path:
        """Replace ``<name>.json`` (a name of :data:`~.schema.FILES`) atomically; returns its path."""
        if name not in FILES:
            raise KeyError(f"{name}: not a file of a result folder")
        return self.write(f"{name}.json", json_bytes(value, indent=2))

    def write(self, name: str, data: bytes) -> Path:
        """Replace any file of the folder atomically, e.g. ``report.md``; returns its path."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
        return path

    def load(self, name: str) -> Any:
        """``<name>.json`` decoded, or None when the run did not write it. Raises :class:`ConfigError` if damaged."""
        path = self.path / f"{name}.json"
        return _decode_file(path, FILES[name]) if path.exists() else None

    @property
    def summary(self) -> Summary | None:
        """``summary.json``."""
        found: Summary | None = self.load("summary")
        return found

    @property
    def identity(self) -> IdentityReport | None:
        """``identity.json``."""
        found: IdentityReport | None = self.load("identity")
        return found

    @property
    def acceptance(self) -> Acceptance | None:
        """``acceptance.json``."""
        found: Acceptance | None = self.load("acceptance")
        return found

    @property
    def costs(self) -> tuple[Cost, ...]:
        """``costs.json``; empty when there is none."""
        found: tuple[Cost, ...] | None = self.load("costs")
        return found or ()

    @property
    def gates(self) -> Gates | None:
        """``gates.json``."""
        found: Gates | None = self.load("gates")
        return found

    @property
    def auto(self) -> Auto | None:
        """``auto.json``."""
        found: Auto | None = self.load("auto")
        return found

    @property
    def offline(self) -> Offline | None:
        """``offline.json``."""
        found: Offline | None = self.load("offline")
        return found

    def document(self) -> dict[str, Any]:
        """Everything but the rows as one JSON-ready document, for ``--json``."""
        found: dict[str, Any] = {"path": str(self.path), "manifest": msgspec.to_builtins(self.manifest)}
        for name in FILES:
            if name != "manifest" and (value := self.load(name)) is not None:
                found[name] = msgspec.to_builtins(value)
        return found


def create(path: Path, manifest: Manifest) -> Folder:
    """A new result folder. Raises :class:`ConfigError` when there is one already, or it cannot be written."""
    if (path / "manifest.json").exists():
        raise ConfigError(
            "there already is a result in this folder",
            where=str(path),
            next_step=f"go on with it: --resume {path}; or name another folder with --out",
        )
    folder = Folder(path, manifest)
    try:
        path.mkdir(parents=True, exist_ok=True)
        folder.save("manifest", manifest)
        (path / ROWS).touch()
    except OSError as error:
        raise ConfigError(f"the results cannot be written: {error.strerror}", where=str(path)) from error
    return folder


def open_folder(path: Path) -> Folder:
    """A result folder that exists. Raises :class:`ConfigError`: what is missing or damaged, and where."""
    manifest = path / "manifest.json"
    if not manifest.exists():
        raise ConfigError(
            "this is no result folder: it has no manifest.json",
            where=str(path),
            next_step="give a folder that `ddtree-ops bench --out` wrote",
        )
    return Folder(path, _decode_file(manifest, Manifest))


def _decode_file(path: Path, kind: Any) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"a result cannot be read: {error.strerror}", where=str(path)) from error
    _check_version(data, path)
    return _decode(data, kind, str(path))


def _check_version(data: bytes, path: Path) -> None:
    """Before the strict decoding, so that a newer file is called newer and not damaged."""
    try:
        version = json.loads(data).get("schema_version", SCHEMA_VERSION)
    except (ValueError, AttributeError):
        return
    if version != SCHEMA_VERSION:
        raise ConfigError(
            f"schema_version {version!r}: this version of the tool reads {SCHEMA_VERSION}",
            where=str(path),
            next_step="read it with the version of ddtree-ops that its manifest.json names",
        )


def _decode(data: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(
            "a result file is damaged",
            where=where,
            why=str(error),
            next_step="take it from a copy, or measure again into another folder",
        ) from error


def _read_rows(path: Path) -> tuple[RoundRow, ...]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"the rows cannot be read: {error.strerror}", where=str(path)) from error
    complete, tail = lines[:-1], lines[-1]
    found = [_decode(line, RoundRow, f"{path}:{number}") for number, line in enumerate(complete, 1) if line.strip()]
    return (*found, *_whole(tail))


def _whole(tail: bytes) -> Iterable[RoundRow]:
    """A last line without its newline: kept if it is whole."""
    try:
        return [msgspec.json.decode(tail, type=RoundRow)] if tail.strip() else []
    except msgspec.DecodeError:
        return []


def _cut_torn_line(path: Path) -> int:
    """Make the file end with a newline; returns how many bytes of a torn line were dropped."""
    try:
        data = path.read_bytes() if path.stat().st_size else b""
    except FileNotFoundError:
        return 0
    if not data or data.endswith(b"\n"):
        return 0
    tail = data[data.rfind(b"\n") + 1 :]
    with path.open("r+b") as file:
        if _whole(tail):
            file.seek(0, os.SEEK_END)
            file.write(b"\n")
            return 0
        file.truncate(len(data) - len(tail))
    return len(tail)
