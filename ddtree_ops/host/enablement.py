"""Enablement as the links that it is, so that the way back restores exactly these links and not similar ones."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from . import systemd

ROOT = "/etc/systemd/system"
_FOLDERS = (".wants", ".requires", ".upholds")


def links(unit: str, root: str = ROOT) -> List[Dict[str, str]]:
    """The links under ``root`` that enable ``unit``: in wants/requires folders, and aliases of it; sorted by path."""
    found: List[Dict[str, str]] = []
    for folder in [root] + [entry.path for entry in _scan(root) if entry.name.endswith(_FOLDERS)]:
        for entry in _scan(folder):
            if not entry.is_symlink():
                continue
            target = os.readlink(entry.path)
            if entry.name == unit or os.path.basename(target) == unit:
                found.append({"path": entry.path, "target": target})
    return sorted(found, key=lambda link: link["path"])


def folders(root: str = ROOT) -> List[str]:
    """The wants/requires folders that exist: one that appears later is removed again on the way back."""
    return sorted(entry.path for entry in _scan(root) if entry.name.endswith(_FOLDERS))


def snapshot(unit: str) -> Dict[str, Any]:
    """What :func:`restore` needs."""
    return {"unit": unit, "links": links(unit), "folders": folders()}


def restore(before: Dict[str, Any]) -> None:
    """Make the links what they were; safe to repeat."""
    unit = str(before["unit"])
    wanted = {str(link["path"]): str(link["target"]) for link in before["links"]}
    for link in links(unit):
        if wanted.get(link["path"]) != link["target"]:
            os.unlink(link["path"])
    for path, target in wanted.items():
        if not os.path.islink(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(target, path)
    for folder in folders():
        if folder not in before["folders"]:
            try:
                os.rmdir(folder)
            except OSError:
                pass  # somebody else's link lives there now
    systemd.daemon_reload()


def _scan(folder: str) -> List["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
