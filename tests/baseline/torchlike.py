"""Files as ``torch.save`` writes them, made without torch: a zip of a pickle and raw storages."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import sys
import types
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Ints:
    """A tensor of int64 with one row, to be pickled as torch does it."""

    def __init__(self, row: list[int]) -> None:
        self.row = row


class _Storage:
    def __init__(self, key: str, row: list[int]) -> None:
        self.key, self.row = key, row


@contextmanager
def _torch() -> Iterator[types.ModuleType]:
    """Modules whose functions pickle by the names that torch's have."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def rebuild(*_: Any) -> None:
        raise AssertionError("only its name is used")

    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = (
        "torch._utils",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v2",
    )
    long_storage = type("LongStorage", (), {"__module__": "torch"})
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]
    torch.LongStorage = long_storage  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        yield torch
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def save(path: Path, value: Any) -> Path:
    """Write ``value`` to ``path``; :class:`Ints` become tensors of shape [1, n]."""
    storages: list[_Storage] = []
    data = io.BytesIO()
    with _torch() as torch:

        class Pickler(pickle.Pickler):
            def reducer_override(self, found: Any) -> Any:
                if not isinstance(found, Ints):
                    return NotImplemented
                storages.append(_Storage(str(len(storages)), found.row))
                size = (1, len(found.row))
                rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2  # type: ignore[attr-defined]
                empty: Any = collections.OrderedDict()
                return rebuild, (storages[-1], 0, size, (len(found.row), 1), False, empty)

            def persistent_id(self, found: Any) -> Any:
                if not isinstance(found, _Storage):
                    return None
                return ("storage", torch.LongStorage, found.key, "cpu", len(found.row))

        Pickler(data, protocol=2).dump(value)
    root = path.stem
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/data.pkl", data.getvalue())
        archive.writestr(f"{root}/byteorder", "little")
        for storage in storages:
            archive.writestr(f"{root}/data/{storage.key}", struct.pack(f"<{len(storage.row)}q", *storage.row))
        archive.writestr(f"{root}/version", "3\n")
    return path
