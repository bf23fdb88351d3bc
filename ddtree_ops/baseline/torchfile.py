"""Files of ``torch.save`` without torch and without running anything in them: plain values and integer tensors.

Such a file is a zip with one pickle, and one raw file per tensor storage. The pickle is read by an unpickler that knows
six names and turns every other one into an error, so no code of the file runs: the same promise as torch's
``weights_only=True``, kept here because a controller has no torch.
"""

from __future__ import annotations

import collections
import io
import pickle
import struct
import types
import zipfile
from pathlib import Path
from typing import Any

from ..errors import Refused

MOST_PICKLE = 1 << 30
_STORAGES = {"LongStorage": ("q", 8), "IntStorage": ("i", 4), "ShortStorage": ("h", 2), "CharStorage": ("b", 1)}
_STORAGES |= {"ByteStorage": ("B", 1), "DoubleStorage": ("d", 8), "FloatStorage": ("f", 4)}


class Storage:
    """One tensor's memory, read when it is first needed."""

    def __init__(self, archive: zipfile.ZipFile, name: str, code: str, size: int) -> None:
        self._archive, self._name, self._code, self._size = archive, name, code, size

    def values(self, count: int) -> tuple[Any, ...]:
        """The first ``count`` numbers."""
        if count * self._size > MOST_PICKLE:
            raise ValueError("a tensor of more than 1 GiB")
        data = self._archive.read(self._name)
        if len(data) < count * self._size:
            raise ValueError(f"{self._name} is too short")
        return struct.unpack(f"<{count}{self._code}", data[: count * self._size])


def rebuild(storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Any:
    """A tensor as nested lists."""

    def part(at: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        if not sizes:
            return values[at]
        return [part(at + i * strides[0], sizes[1:], strides[1:]) for i in range(sizes[0])]

    if 0 in size:
        return []
    values = storage.values(offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)))
    return part(offset, tuple(size), tuple(stride))


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("types", "SimpleNamespace"): types.SimpleNamespace,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild,
    ("torch", "Size"): tuple,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(data))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        if module == "torch" and name in _STORAGES:
            return name
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, found: Any) -> Storage:
        word, kind, key = found[:3]
        if word != "storage" or kind not in _STORAGES or not str(key).isdigit():
            raise pickle.UnpicklingError(f"a persistent object of kind {word!r}")
        return Storage(self._archive, f"{self._root}/data/{key}", *_STORAGES[kind])


def load(path: Path) -> Any:
    """The object of a file: numbers, texts, lists, dicts, ``SimpleNamespace``; tensors as nested lists.

    Raises:
        Refused: it holds anything else, or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise _refused(path, "a zip, but not one of torch.save: it has no single data.pkl")
            root = names[0].rsplit("/", 1)[0]
            if f"{root}/byteorder" in archive.namelist() and archive.read(f"{root}/byteorder") != b"little":
                raise _refused(path, "its numbers are not little-endian")
            if archive.getinfo(names[0]).file_size > MOST_PICKLE:
                raise _refused(path, "its pickle is larger than 1 GiB")
            return _Unpickler(archive.read(names[0]), archive, root).load()
    except pickle.UnpicklingError as error:
        raise _refused(path, f"its pickle holds more than plain values: {error}")
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, struct.error, TypeError, IndexError) as error:
        raise _refused(path, f"it is damaged: {error}")


def _refused(path: Path, why: str) -> Refused:
    return Refused(
        "this file is not read",
        where=str(path),
        why=why,
        next_step="nothing of it was run; see docs/baseline.md for the formats that are understood",
        code="not_understood",
    )
