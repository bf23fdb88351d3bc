"""YAML read strictly into typed values; an error names file, line, key and what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import yaml

from ..errors import ConfigError, DdtreeError

T = TypeVar("T")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]|\[\.\.\.\]")
_FIELD = re.compile(r"`([^`]+)`")


class Document:
    """One YAML document with the line of every key and item."""

    def __init__(self, text: str, origin: str, error: type[DdtreeError] = ConfigError) -> None:
        self.origin = origin
        self.error = error
        loader = yaml.SafeLoader(text)
        try:
            self._root = loader.get_single_node()
            if self._root is not None:
                self._refuse_duplicates(self._root)
            self.data: Any = None if self._root is None else loader.construct_document(self._root)
        except yaml.MarkedYAMLError as problem:
            mark = problem.problem_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise error(
                f"not valid YAML: {problem.problem or problem.context}",
                where=f"{origin}{line}",
                next_step="correct the file",
            ) from problem
        except yaml.YAMLError as problem:
            raise error(f"not valid YAML: {problem}", where=origin, next_step="correct the file") from problem
        finally:
            loader.dispose()

    def convert(self, kind: type[T]) -> T:
        """The document as ``kind``; unknown keys and wrong types are errors with their line."""
        try:
            return msgspec.convert(self.data, kind, strict=True)
        except msgspec.ValidationError as problem:
            self._invalid(problem, kind)

    def fail(self, what: str, path: str, *, why: str = "", next_step: str = "") -> NoReturn:
        """Raise an error that points at ``path`` (for example ``$.edits[2].file``)."""
        raise self.error(
            what,
            where=f"{self.origin}:{self.line(path)}: {path.removeprefix('$').lstrip('.') or '(top level)'}",
            why=why,
            next_step=next_step or "correct the file",
        )

    def line(self, path: str) -> int:
        """1-based line of the key or item that ``path`` names; of the nearest parent when it is absent."""
        node = self._root
        line = node.start_mark.line if node is not None else 0
        for key, index in ((m.group(1), m.group(2)) for m in _STEP.finditer(path)):
            if isinstance(node, yaml.MappingNode) and key is not None:
                found = next((pair for pair in node.value if pair[0].value == key), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line, found[1]
            elif isinstance(node, yaml.SequenceNode) and index is not None and int(index) < len(node.value):
                node = node.value[int(index)]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1

    def _refuse_duplicates(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                name = str(key.value)
                if name in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {name!r} occurs twice (first in line {seen[name]})",
                        problem_mark=key.start_mark,
                    )
                seen[name] = key.start_mark.line + 1
                self._refuse_duplicates(value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._refuse_duplicates(item)

    def _invalid(self, problem: msgspec.ValidationError, kind: type[Any]) -> NoReturn:
        message, _, path = str(problem).partition(" - at ")
        path = path.strip("`") or "$"
        unknown = _FIELD.search(message) if "unknown field" in message else None
        if unknown:
            path = f"{path}.{unknown.group(1)}"
        self.fail(message[:1].lower() + message[1:], path, why=_allowed(kind, path) if unknown else "")


def _allowed(kind: Any, path: str) -> str:
    """The keys allowed where ``path`` points, for an unknown key's error."""
    for key, _ in [(m.group(1), m.group(2)) for m in _STEP.finditer(path)][:-1]:
        if key is not None and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
            kind = fields.get(key)
        kind = _element(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "allowed keys: " + ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
    return ""


def _element(kind: Any) -> Any:
    """``Thing`` for ``tuple[Thing, ...]`` and ``Thing | None``; other kinds as they are."""
    structs = [
        arg for arg in getattr(kind, "__args__", ()) if isinstance(arg, type) and issubclass(arg, msgspec.Struct)
    ]
    return structs[0] if structs else kind


def read_document(path: Path, error: type[DdtreeError] = ConfigError) -> Document:
    """Read a YAML file; a missing or unreadable one is an error with its path."""
    try:
        return Document(path.read_text(encoding="utf-8"), str(path), error)
    except OSError as problem:
        raise error(
            f"cannot read the file: {problem.strerror}", where=str(path), next_step="check the path"
        ) from problem
    except UnicodeDecodeError as problem:
        raise error(
            "the file is not UTF-8", where=str(path), why=str(problem), next_step="restore the file"
        ) from problem
