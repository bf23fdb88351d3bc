"""What ssh_config says about a host, as one frozen :class:`Endpoint`.

Read are the system file and the user's file, or one file alone where the user named it. ``Include`` is followed
(paramiko's parser does not). Nothing of it can weaken the check of host keys: ``StrictHostKeyChecking`` is not read.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..inventory import Host

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
USER_CONFIG = "~/.ssh/config"
_DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_INCLUDE = re.compile(r"^\s*include[\s=]\s*(.+?)\s*$", re.IGNORECASE)
_SECTION = re.compile(r"^\s*(host|match)[\s=]", re.IGNORECASE)
_INCLUDE_DEPTH = 16


@dataclass(frozen=True)
class Endpoint:
    """Where and how one SSH connection goes; paths are absolute, ``jumps`` are in order from here to there."""

    alias: str
    address: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    explicit_identities: bool = False
    agent: str = ""  # path of the agent's socket, "" for none
    jumps: tuple[str, ...] = ()
    proxy_command: str = ""
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str = ""
    connect_timeout: float = 10.0
    accept_host_key: str = ""

    @property
    def known_name(self) -> str:
        """The host's name in known_hosts: ``host``, or ``[host]:port`` off the default port."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"

    @property
    def where(self) -> str:
        """For messages: ``user@address:port``, with the alias where it differs."""
        text = f"{self.user}@{self.address}:{self.port}"
        return text if self.alias in ("", self.address) else f"{text} ({self.alias})"


def endpoint(host: Host) -> Endpoint:
    """The endpoint of an inventory host: the inventory's own values go before those of ssh_config."""
    ssh = host.ssh
    found = lookup(host.address, ssh.config)
    return _endpoint(
        found,
        alias=host.address,
        user=host.user,
        port=host.port,
        identities=ssh.identity_files,
        known_hosts=ssh.known_hosts,
        jump=ssh.proxy_jump,
        use_agent=ssh.agent,
        timeout=ssh.connect_timeout,
        accept=ssh.accept_host_key,
    )


def jump_endpoint(spec: str, host: Host) -> Endpoint:
    """The endpoint of one hop of a ProxyJump (``[user@]host[:port]`` or ``ssh://``), with its own ssh_config entry."""
    match = re.fullmatch(r"(?:ssh://)?(?:([^@]+)@)?(\[[^\]]+\]|[^:]+)(?::(\d+))?/?", spec.strip())
    if match is None:
        raise ConfigError(f"ProxyJump {spec!r} is not [user@]host[:port]", where=f"ssh_config for {host.address}")
    user, name, port = match.groups()
    name = name.strip("[]")
    return _endpoint(
        lookup(name, host.ssh.config),
        alias=name,
        user=user or "",
        port=int(port) if port else None,
        known_hosts=host.ssh.known_hosts,
        use_agent=host.ssh.agent,
        timeout=host.ssh.connect_timeout,
        accept=host.ssh.accept_host_key,
    )


def lookup(name: str, config: str = "") -> dict[str, str | list[str]]:
    """The options of ssh_config for ``name``; ``config`` is the only file read where it is given.

    Raises:
        ConfigError: the named file cannot be read, or a file cannot be parsed.
    """
    from paramiko import SSHConfig

    if config and not Path(config).expanduser().is_file():
        raise ConfigError("the ssh_config file does not exist", where=config, next_step="check --ssh-config")
    paths = [Path(config).expanduser()] if config else [Path(USER_CONFIG).expanduser(), SYSTEM_CONFIG]
    text = "\n".join(_resetting(path) for path in paths if path.is_file())
    try:
        return dict(SSHConfig.from_text(text).lookup(name))
    except Exception as error:  # paramiko raises bare Exception and several of its own
        raise ConfigError(f"ssh_config cannot be read: {error}", where=", ".join(map(str, paths)))


def _resetting(path: Path) -> str:
    return "Host *\n" + "\n".join(_included(path, path.parent, 0))


def _included(path: Path, folder: Path, depth: int) -> Iterator[str]:
    """Lines of ``path`` with its includes in place (relative ones are looked up in ``folder``, as ssh does)."""
    if depth > _INCLUDE_DEPTH:
        raise ConfigError("Include is nested too deep", where=str(path))
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"ssh_config cannot be read: {error.strerror}", where=str(path))
    section = "Host *"
    for line in text.splitlines():
        match = _INCLUDE.match(line)
        if match is None:
            section = line if _SECTION.match(line) else section
            yield line
            continue
        for pattern in shlex.split(match[1]):
            base = Path(pattern).expanduser()
            for name in sorted(glob.glob(str(base if base.is_absolute() else folder / base))):
                yield from _included(Path(name), folder, depth + 1)
        yield section  # what follows belongs to our section again, not to the last one of the included file


def _endpoint(
    found: dict[str, str | list[str]],
    *,
    alias: str,
    user: str,
    port: int | None,
    identities: tuple[str, ...] = (),
    known_hosts: tuple[str, ...] = (),
    jump: str = "",
    use_agent: bool = True,
    timeout: float = 10.0,
    accept: str = "",
) -> Endpoint:
    def one(key: str, default: str = "") -> str:
        value = found.get(key, default)
        return value if isinstance(value, str) else default

    address = one("hostname", alias)
    number = port or int(one("port", "22"))
    login = user or one("user") or getpass.getuser()
    tokens = {
        "%h": address,
        "%n": alias,
        "%p": str(number),
        "%r": login,
        "%u": getpass.getuser(),
        "%d": str(Path.home()),
    }
    listed = found.get("identityfile") or []
    explicit = identities or tuple([listed] if isinstance(listed, str) else listed)
    jump = jump or one("proxyjump")
    return Endpoint(
        alias=alias,
        address=address,
        port=number,
        user=login,
        identity_files=tuple(_path(name, tokens) for name in explicit or _DEFAULT_IDENTITIES),
        identities_only=one("identitiesonly").lower() == "yes",
        explicit_identities=bool(explicit),
        agent=_agent(one("identityagent"), tokens) if use_agent else "",
        jumps=tuple(hop.strip() for hop in jump.split(",")) if jump and jump.lower() != "none" else (),
        proxy_command="" if jump or one("proxycommand").lower() == "none" else one("proxycommand"),
        known_hosts=_known_hosts(known_hosts, one("userknownhostsfile"), one("globalknownhostsfile"), tokens),
        host_key_alias=one("hostkeyalias"),
        connect_timeout=float(one("connecttimeout") or timeout),
        accept_host_key=accept,
    )


def _known_hosts(own: tuple[str, ...], user: str, system: str, tokens: dict[str, str]) -> tuple[str, ...]:
    names = [
        *(own or shlex.split(user) or _DEFAULT_KNOWN_HOSTS),
        *(shlex.split(system) or _GLOBAL_KNOWN_HOSTS),
    ]
    return tuple(_path(name, tokens) for name in names if name.lower() != "none")


def _agent(configured: str, tokens: dict[str, str]) -> str:
    if configured.lower() == "none":
        return ""
    if configured.startswith("$"):
        return os.environ.get(configured[1:].strip("{}"), "")
    if configured and configured != "SSH_AUTH_SOCK":
        return _path(configured, tokens)
    return os.environ.get("SSH_AUTH_SOCK", "")


def _path(name: str, tokens: dict[str, str]) -> str:
    text = re.sub(r"%[hnprud%]", lambda found: tokens.get(found[0], "%"), name)
    return str(Path(text).expanduser())
