"""Where the data folders are: the user's own ones first, else the packaged ones.

``kernels/ patches/ playbooks/ templates/`` lie at the top of the repository and travel inside the wheel as
``ddtree_ops/_data/``. A folder of that name in ``DDTREE_OPS_DATA``, or beside the inventory in use, overrides the
packaged one as a whole; single playbooks and templates can also be named by path.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ConfigError

KINDS = ("kernels", "patches", "playbooks", "templates")
_PACKAGE = Path(__file__).resolve().parent


def packaged_dir(kind: str) -> Path:
    """The folder that came with the program: inside the wheel, or the repository's own in a source checkout."""
    installed = _PACKAGE / "_data" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind


def data_dir(kind: str, beside: Path | None = None) -> Path:
    """The folder in force for ``kind``; ``beside`` is the folder of the inventory in use."""
    if kind not in KINDS:
        raise ValueError(f"unknown data folder {kind!r}")
    own = os.environ.get("DDTREE_OPS_DATA")
    for base in (Path(own) if own else None, beside):
        if base is not None and (base / kind).is_dir():
            return (base / kind).resolve()
    found = packaged_dir(kind)
    if not found.is_dir():
        raise ConfigError(
            f"the data folder {kind}/ is missing",
            where=str(found),
            why="the installation is incomplete",
            next_step="reinstall ddtree-ops, or set DDTREE_OPS_DATA to a folder that has it",
        )
    return found


def example_inventory() -> Path:
    """The inventory that ships with the program, as an example."""
    installed = _PACKAGE / "_data" / "inventory.yaml"
    return installed if installed.is_file() else _PACKAGE.parent / "inventory.yaml"
