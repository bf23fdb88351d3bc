"""Hosts and how to reach and serve them: ``inventory.yaml`` -> :class:`Host`, each value with its origin.

See ``docs/inventory.md`` for the file. Precedence: command line, environment (``DDTREE_OPS_*``), the host's own entry,
its groups, ``defaults``, what is packaged.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from .errors import ConfigError
from .model import Value


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
        if kind == "host-file":
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
