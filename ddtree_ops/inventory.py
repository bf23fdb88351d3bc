"""Hosts and how to reach and serve them: ``inventory.yaml`` -> :class:`Host`, each value with its origin.

See ``docs/inventory.md`` for the file. Precedence: command line, environment (``DDTREE_OPS_*``), the host's own entry,
its groups, ``defaults``, what is packaged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from .errors import ConfigError, UsageError
from .inventory_reader import Entries, Settings, parse_setting, read
from .inventory_schema import HOST_FIELDS, Field, field_of
from .model import Value

#: A secret that lies on the host and never travels.
HOST_FILE = "host-file:"


class Secret(Value, frozen=True, kw_only=True):
    """A secret by name: where its value is, never the value."""

    name: str
    source: str  # "env:NAME" or "file:/path" on this machine, "host-file:/path" on the host

    def read(self) -> str:
        """The value, from this machine; ConfigError names what is missing, never a value."""
        kind, _, place = self.source.partition(":")
        if kind == "env" and place in os.environ:
            return os.environ[place]
        if kind == "file":
            try:
                return Path(place).expanduser().read_text("utf-8").rstrip("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"the secret {self.name} cannot be read: {error}", where=self.source)
        if self.source.startswith(HOST_FILE):
            raise ConfigError(f"the secret {self.name} lies on the host and is read there", where=self.source)
        raise ConfigError(
            f"the secret {self.name} is not set", where=self.source, next_step=f"export {place}=… and run again"
        )


class Service(Value, frozen=True, kw_only=True):
    """What the unit of a host serves."""

    unit: str = "sglang-ddtree.service"
    target_model: str = ""
    drafter: str = ""
    host: str = "127.0.0.1"  # bind address
    port: int = 30000
    budget: int = 32
    auto_budget: bool = False
    gpus: tuple[int, ...] = ()
    extra_flags: tuple[str, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    secrets: dict[str, Secret] = msgspec.field(default_factory=dict)
    working_directory: str = ""
    user: str = ""
    readiness_timeout: float = 1800.0
    stop_timeout: float = 120.0


class SshOptions(Value, frozen=True, kw_only=True):
    """How the SSH connection is made; empty values leave it to ssh_config."""

    config: str = ""
    identity_files: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    proxy_jump: str = ""
    agent: bool = True
    connect_timeout: float = 10.0
    accept_host_key: str = ""  # command line only


class Host(Value, frozen=True, kw_only=True):
    """One host with all its settings resolved."""

    name: str
    address: str = ""
    port: int | None = None
    user: str = ""
    transport: Literal["ssh", "local"] = "ssh"
    init: Literal["systemd", "process"] = "systemd"
    become: bool = False
    python: str = ""
    environment: str = ""
    checkouts: tuple[str, ...] = ()
    state_root: str = ""
    takeover: str = ""
    groups: tuple[str, ...] = ()
    service: Service = Service()
    ssh: SshOptions = SshOptions()
    origins: dict[str, str] = msgspec.field(default_factory=dict)


# -- the file --


class Inventory:
    """A read inventory; :meth:`host` and :meth:`select` resolve hosts from it."""

    def __init__(self, path: Path | None = None, entries: Entries | None = None) -> None:
        self.path = path
        self._entries = entries or Entries()

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts in the file's order."""
        return tuple(self._entries.hosts)

    @property
    def beside(self) -> Path | None:
        """The folder whose own playbooks and templates go before the packaged ones."""
        return self.path.parent if self.path else None

    def host(self, name: str | None = None, overrides: Mapping[str, Any] | None = None) -> Host:
        """One host with all its settings.

        Args:
            name: An inventory name, an address of the inventory, any other ``[user@]address[:port]``, or ``local`` for
                this machine. None: the default host.
            overrides: What the command line says, by dotted key (``{"service.budget": 16}``); None values are left out.

        Raises:
            UsageError: no default host can be told. ConfigError: a variable or an override has a wrong value.
        """
        found, settings = self._find(name or self._default())
        layers = [_from_command_line(overrides or {}), _from_environment()]
        if found in self._entries.hosts:
            groups = reversed(self._entries.members[found])
            layers += [self._entries.hosts[found], *(self._entries.groups[group] for group in groups), settings]
        else:
            layers.insert(1, settings)
        layers.append(self._entries.defaults)
        merged: Settings = {}
        for layer in layers:
            for key, setting in layer.items():
                merged.setdefault(key, setting)
        return _build(found, self._entries.members.get(found, ()), merged)

    def select(self, names: Sequence[str] = (), overrides: Mapping[str, Any] | None = None) -> tuple[Host, ...]:
        """The hosts for ``--host`` given any number of times; a group's name stands for its hosts."""
        wanted: list[str | None] = []
        for name in names or (None,):
            members = [host for host, groups in self._entries.members.items() if name in groups]
            wanted += members if name in self._entries.groups else [name]
        return tuple(self.host(name, overrides) for name in dict.fromkeys(wanted))

    def _default(self) -> str:
        named = os.environ.get("DDTREE_OPS_HOST") or self._entries.default_host
        if named:
            return named
        if len(self.names) == 1:
            return self.names[0]
        if not self.names:
            raise UsageError(
                "no host is named, and there is no inventory with one",
                where=str(self.path) if self.path else "looked for: " + ", ".join(map(str, _places())),
                next_step="give --host ADDRESS, or write one: ddtree-ops init --host ADDRESS -o inventory.yaml",
            )
        raise UsageError(
            f"{len(self.names)} hosts are in the inventory and none is the default: {', '.join(self.names)}",
            where=str(self.path),
            next_step="give --host NAME, or set `default_host:` in the inventory",
            details={"hosts": list(self.names)},
        )

    def _find(self, name: str) -> tuple[str, Settings]:
        """The inventory's name for ``name``, or an ad-hoc host with the settings that its spelling holds."""
        if name in self._entries.hosts:
            return name, {"address": (name, "the host's name")}
        for host, settings in self._entries.hosts.items():
            if settings.get("address", ("",))[0] == name:
                return host, {}
        if name == "local":
            return name, {"transport": ("local", "the name local")}
        match = re.fullmatch(r"(?:([^@\s]+)@)?(\[[^\]\s]+\]|[^:\s@/]+|[0-9a-fA-F:]+)(?::(\d+))?", name)
        if match is None:
            raise UsageError(
                f"{name!r} is neither a host of the inventory nor [user@]address[:port]", where="--host",
                why="hosts: " + (", ".join(self.names) or "none"),
            )  # fmt: skip
        user, address, port = match.groups()
        settings = {"address": (address.strip("[]"), "--host")}
        if user:
            settings["user"] = (user, "--host")
        if port:
            settings["port"] = (int(port), "--host")
        return name, settings


def load(path: str | Path | None = None) -> Inventory:
    """Read ``path`` (from ``--inventory``), else ``DDTREE_OPS_INVENTORY``, ``./inventory.yaml`` or the user's own.

    Without any of them the inventory is empty and hosts are given by address.

    Raises:
        ConfigError: the named file is missing, or holds mistakes (all of them are reported).
    """
    named = path or os.environ.get("DDTREE_OPS_INVENTORY")
    found = Path(named).expanduser() if named else next((place for place in _places() if place.is_file()), None)
    if found is None:
        return Inventory()
    try:
        text = found.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"the inventory cannot be read: {why}", where=str(found), next_step="check --inventory")
    return Inventory(found, read(text, str(found)))


def user_inventory() -> Path:
    """Where the user's own inventory lies."""
    from platformdirs import user_config_path

    return user_config_path("ddtree-ops") / "inventory.yaml"


def _places() -> tuple[Path, ...]:
    return Path("inventory.yaml"), user_inventory()


# -- resolving --


def _from_command_line(overrides: Mapping[str, Any]) -> Settings:
    settings: Settings = {}
    for key, value in overrides.items():
        if value is None:
            continue
        if key not in _COMMAND_LINE_ONLY and field_of(key) is None:
            raise ValueError(f"no setting {key!r}")
        plain = isinstance(value, str) and key not in _COMMAND_LINE_ONLY
        settings[key] = (parse_setting(key, value, "command line") if plain else value, "command line")
    return settings


def _from_environment() -> Settings:
    settings: Settings = {}
    for key in _KEYS:
        variable = "DDTREE_OPS_" + key.upper().replace(".", "_")
        if os.environ.get(variable):
            value = parse_setting(key, os.environ[variable], f"${variable}")
            items = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
            settings.update({name: (item, f"${variable}") for name, item in items.items()})
    return settings


def _build(name: str, groups: tuple[str, ...], settings: Settings) -> Host:
    values: dict[str, Any] = {"name": name, "groups": groups, "service": {}, "ssh": {}}
    for key, (value, _) in settings.items():
        head, _, rest = key.partition(".")
        inner, _, item = rest.partition(".")
        if not rest:
            values[head] = value
        elif item:
            is_secret = inner == "secrets"
            values[head].setdefault(inner, {})[item] = Secret(name=item, source=value) if is_secret else value
        else:
            values[head][inner] = value
    if values.get("transport") == "local":
        values.pop("address", None)
    origins = {key: origin for key, (_, origin) in settings.items()}
    return Host(
        **{**values, "service": Service(**values["service"]), "ssh": SshOptions(**values["ssh"]), "origins": origins}
    )


def shown(host: Host) -> list[tuple[str, Any, str]]:
    """Every setting of a host as (dotted key, value, origin), for ``config show --origin``; secrets by source only."""
    rows: list[tuple[str, Any, str]] = [("name", host.name, "")]
    for key in (*_KEYS, *_COMMAND_LINE_ONLY):
        value: Any = host
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, dict) and value:
            for name, item in sorted(value.items()):
                text = item.source if isinstance(item, Secret) else item
                rows.append((f"{key}.{name}", text, host.origins.get(f"{key}.{name}", "packaged")))
        elif value or key not in _COMMAND_LINE_ONLY:
            rows.append((key, value, host.origins.get(key, "packaged")))
    return rows


_COMMAND_LINE_ONLY = ("ssh.accept_host_key",)
_KEYS = tuple(
    key
    for head, found in HOST_FIELDS.items()
    for key in ([head] if isinstance(found, Field) else [f"{head}.{inner}" for inner in found])
)
