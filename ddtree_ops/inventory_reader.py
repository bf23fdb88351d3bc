"""Reading ``inventory.yaml``: every mistake of a file is reported at once, each with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from .errors import ConfigError
from .inventory_schema import HOST_FIELDS, OWN_FLAGS, TOP, Field, field_of, looks_secret, nearest

Setting = tuple[Any, str]  # value, origin
Settings = dict[str, Setting]  # by dotted key: "service.port", "service.environment.HF_HOME"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass
class Entries:
    """A checked file: the settings of each part by dotted key."""

    defaults: Settings = field(default_factory=dict)
    groups: dict[str, Settings] = field(default_factory=dict)
    hosts: dict[str, Settings] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)  # host -> its groups, later ones win
    default_host: str = ""


def read(text: str, name: str) -> Entries:
    """Check and flatten the text of an inventory; ``name`` is the file's name for messages.

    Raises:
        ConfigError: with every mistake of the file, each as ``file:line: key: what, what is allowed``.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name} is not YAML: {what}", where=f"{name}:{line}", next_step="mend that line")
    reader = Reader(name)
    entries = reader.document(root)
    reader.finish()
    return entries


def parse_setting(key: str, text: str, origin: str) -> Any:
    """A value given as text (environment or command line) for the dotted ``key``, checked like one of the file."""
    reader = Reader(origin, lines=False)
    found = reader.scalar_text(key, text)
    reader.finish()
    return found


class Reader:
    """Walks YAML nodes, collects mistakes, and gives back settings."""

    def __init__(self, name: str, lines: bool = True) -> None:
        self.name = name
        self.lines = lines
        self.mistakes: list[str] = []

    def finish(self) -> None:
        """Raise one ConfigError for all mistakes, if there are any."""
        if not self.mistakes:
            return
        where, _, what = self.mistakes[0].partition(": ")
        count = len(self.mistakes)
        text = what if count == 1 else f"{count} mistakes\n  " + "\n  ".join(self.mistakes)
        raise ConfigError(
            text,
            where=where,
            next_step="docs/inventory.md lists every key; `ddtree-ops config show --origin` shows what is in force",
            details={"mistakes": self.mistakes},
        )

    def document(self, root: yaml.Node | None) -> Entries:
        """The whole file."""
        entries = Entries()
        for key, _, value in self._pairs(root, "", TOP):
            if key == "default_host":
                entries.default_host = str(self._text(key, value) or "")
            elif key == "defaults":
                entries.defaults = self._settings(value, key)
            elif key == "groups":
                for group, _, body in self._named(value, key):
                    entries.groups[group] = self._settings(body, f"{key}.{group}")
            else:
                for host, _, body in self._named(value, key):
                    entries.hosts[host] = self._settings(body, f"{key}.{host}", host=True)
        self._references(entries, root)
        return entries

    def scalar_text(self, key: str, text: str) -> Any:
        """``text`` as YAML for the dotted ``key``."""
        found = field_of(key)
        if found is None:
            self.mistakes.append(f"{self.name}: {key}: no such key")
            return None
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError:
            node = None
        if node is None or found.kind in ("string", "path", "choice"):
            node = yaml.ScalarNode("tag:yaml.org,2002:str", text)
        return self._value(found, key, node)

    # -- structure --

    def _mistake(self, node: yaml.Node | None, key: str, what: str) -> None:
        mark = getattr(node, "start_mark", None)
        line = f":{mark.line + 1}" if self.lines and mark is not None else ""
        self.mistakes.append(f"{self.name}{line}: {key}: {what}")

    def _pairs(
        self, node: yaml.Node | None, at: str, allowed: tuple[str, ...] | None
    ) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Keys and values of a mapping: each key once, and only ``allowed`` ones (None: any)."""
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null")):
            return
        if not isinstance(node, yaml.MappingNode):
            self._mistake(node, at or "file", "must be a mapping of " + (", ".join(allowed) if allowed else "names"))
            return
        seen: dict[str, int] = {}
        for key_node, value in node.value:
            key = str(key_node.value)
            path = f"{at}.{key}" if at else key
            if key_node.tag.endswith(":merge"):
                self._mistake(key_node, path, "merge keys are not supported; use `groups` or `defaults`")
            elif key in seen:
                what = "duplicate host name" if at == "hosts" else "duplicate key"
                self._mistake(key_node, path, f"{what}, first on line {seen[key]}")
            elif allowed is not None and key not in allowed:
                self._mistake(key_node, path, f"unknown key{nearest(key, allowed)}; allowed: {', '.join(allowed)}")
            else:
                seen[key] = key_node.start_mark.line + 1
                yield key, key_node, value

    def _named(self, node: yaml.Node, at: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        for name, key_node, body in self._pairs(node, at, None):
            if _NAME.fullmatch(name):
                yield name, key_node, body
            else:
                self._mistake(key_node, f"{at}.{name}", "a name has letters, digits, dots, - and _ only")

    def _settings(self, node: yaml.Node, at: str, host: bool = False) -> Settings:
        settings: Settings = {}
        allowed = (*HOST_FIELDS, "groups") if host else tuple(HOST_FIELDS)
        for key, _, value in self._pairs(node, at, allowed):
            if key == "groups":
                names = self._list(value, f"{at}.groups", "a list of group names", self._text)
                self._store(settings, "groups", names, value)
                continue
            found = HOST_FIELDS[key]
            if isinstance(found, Field):
                self._store(settings, key, self._value(found, f"{at}.{key}", value), value)
                continue
            for inner, _, inner_value in self._pairs(value, f"{at}.{key}", tuple(found)):
                name = f"{key}.{inner}"
                self._store(settings, name, self._value(found[inner], f"{at}.{name}", inner_value), inner_value)
        return settings

    def _store(self, settings: Settings, key: str, value: Any, node: yaml.Node) -> None:
        if value is None:
            return
        mark = getattr(node, "start_mark", None)
        origin = f"{self.name}:{mark.line + 1}" if mark is not None else self.name
        if isinstance(value, dict):
            for name, item in value.items():
                settings[f"{key}.{name}"] = (item, origin)
        else:
            settings[key] = (value, origin)

    def _references(self, entries: Entries, root: yaml.Node | None) -> None:
        for host, settings in entries.hosts.items():
            names, origin = settings.pop("groups", ((), ""))
            entries.members[host] = tuple(names)
            for name in names:
                if name not in entries.groups:
                    known = ", ".join(entries.groups) or "none"
                    self.mistakes.append(
                        f"{origin}: hosts.{host}.groups: no group {name!r}{nearest(name, entries.groups)}; "
                        f"groups: {known}"
                    )
        for name in entries.groups.keys() & entries.hosts.keys():
            self._mistake(root, f"groups.{name}", "a host has the same name")
        if entries.default_host and entries.default_host not in entries.hosts:
            known = ", ".join(entries.hosts) or "none"
            hint = nearest(entries.default_host, entries.hosts)
            self._mistake(root, "default_host", f"no host {entries.default_host!r}{hint}; hosts: {known}")

    # -- values --

    def _value(self, found: Field, at: str, node: yaml.Node) -> Any:
        """The value of ``node`` for a field, None after a mistake (or for an empty value)."""
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null") and found.kind != "string":
            return None
        if found.kind in ("integer", "number"):
            return self._number(found, at, node)
        if found.kind == "boolean":
            value = _scalar(node)
            return value if isinstance(value, bool) else self._wrong(node, at, found.doc)
        if found.kind in ("string", "path", "choice"):
            return self._string(found, at, node)
        if found.kind == "integers":
            return self._list(node, at, found.doc, lambda path, item: self._number(found, path, item, whole=True))
        if found.kind in ("strings", "paths", "flags"):
            check: Callable[[str, yaml.Node], Any] = {"strings": self._text, "paths": self._absolute}.get(
                found.kind, self._flag
            )
            return self._list(node, at, found.doc, check)
        return self._map(found, at, node)

    def _wrong(self, node: yaml.Node, at: str, doc: str) -> None:
        shown = f" {node.value!r}" if isinstance(node, yaml.ScalarNode) else " a " + _kind(node)
        self._mistake(node, at, f"must be {doc}, not{shown}")

    def _number(self, found: Field, at: str, node: yaml.Node, whole: bool = False) -> int | float | None:
        value = _scalar(node)
        whole = whole or found.kind == "integer"
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not good or not found.low <= value <= found.high:
            self._wrong(node, at, "a whole number from 0" if found.kind == "integers" else found.doc)
            return None
        return value if whole else float(value)

    def _string(self, found: Field, at: str, node: yaml.Node) -> str | None:
        value = self._text(at, node, found.doc)
        if value is None:
            return None
        if found.kind == "path":
            return self._absolute(at, node)
        bad_choice = found.choices and value not in found.choices
        if bad_choice or (found.pattern and not re.fullmatch(found.pattern, value)):
            hint = nearest(value, found.choices) if found.choices else ""
            self._wrong(node, at, found.doc + hint)
            return None
        return value

    def _text(self, at: str, node: yaml.Node, doc: str = "text") -> str | None:
        """Text; numbers are taken as they are written, true/yes/null are mistakes because YAML reads them otherwise."""
        plain = isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("str", "int", "float")
        if not plain or "\0" in node.value or "\n" in node.value:
            quote = "; quote it" if isinstance(node, yaml.ScalarNode) and node.value else ""
            self._wrong(node, at, doc + quote)
            return None
        return str(node.value)

    def _absolute(self, at: str, node: yaml.Node) -> str | None:
        value = self._text(at, node, "an absolute path on the host")
        if value is not None and not value.startswith("/"):
            self._wrong(node, at, "an absolute path on the host")
            return None
        return value.rstrip("/") or "/" if value is not None else None

    def _flag(self, at: str, node: yaml.Node) -> str | None:
        value = self._text(at, node)
        name = (value or "").partition("=")[0]
        if name in OWN_FLAGS:
            self._mistake(node, at, f"{name} {OWN_FLAGS[name]}")
            return None
        return value

    def _list(
        self, node: yaml.Node, at: str, doc: str, item: Callable[[str, yaml.Node], Any]
    ) -> tuple[Any, ...] | None:
        if not isinstance(node, yaml.SequenceNode):
            self._wrong(node, at, doc)
            return None
        return tuple(
            value for number, child in enumerate(node.value) if (value := item(f"{at}[{number}]", child)) is not None
        )

    def _map(self, found: Field, at: str, node: yaml.Node) -> dict[str, str] | None:
        values = {}
        for name, key_node, child in self._pairs(node, at, None):
            path = f"{at}.{name}"
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self._mistake(key_node, path, "is no name of an environment variable")
                continue
            value = self._text(path, child, "text")
            if value is None:
                continue
            if found.kind == "secrets":
                self._secret(path, child, value)
            elif looks_secret(name, value):
                advice = f"write `secrets: {{{name}: env:{name}}}` and set it in the environment"
                self._mistake(child, path, f"looks like a secret and may not stand here; {advice}")
            values[name] = value
        return values

    def _secret(self, at: str, node: yaml.Node, value: str) -> None:
        if not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+|host-file:/.+", value):
            self._mistake(
                node,
                at,
                "must say where the value is: env:NAME, file:PATH (here) or host-file:/PATH (on the host); "
                "a value itself may not stand here",
            )


def _scalar(node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        return None
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (ValueError, yaml.YAMLError):
        return None


def _kind(node: yaml.Node) -> str:
    return "list" if isinstance(node, yaml.SequenceNode) else "mapping"
