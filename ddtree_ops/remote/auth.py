"""Authentication by public key: the configured keys first, then the agent's, then the default files.

Every attempt is remembered, so that a failure can say which keys were offered and why others were not. Passwords are
never asked for.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramiko import PasswordRequiredException, PKey, SSHConfig, SSHException
from paramiko.agent import AgentKey, AgentSSH
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey, NoneAuth

from .host_keys import fingerprint
from .ssh_config import Endpoint

AGENT_BUDGET = 1.0  # seconds for the agent to list its keys
AGENT_SIGN_BUDGET = 30.0  # a key may wait for a touch


class Agent(AgentSSH):
    """An SSH agent that must answer within :data:`AGENT_BUDGET`; a stale socket would hang paramiko's own for ever."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(AGENT_BUDGET)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise
        connection.settimeout(AGENT_SIGN_BUDGET)

    def close(self) -> None:
        """Close the connection to the agent."""
        self._close()  # type: ignore[attr-defined]


@dataclass
class Attempts:
    """What was offered, and what could not be."""

    offered: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = ["offered: " + (", ".join(self.offered) or "no key")]
        return "; ".join([*parts, *self.skipped])


class Keys(AuthStrategy):
    """Paramiko's strategy for one connection; ``attempts`` tells afterwards what happened."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(ssh_config=SSHConfig())
        self.endpoint = endpoint
        self.attempts = Attempts()
        self._agent: Agent | None = None

    def get_sources(self) -> Iterator[AuthSource]:
        """The keys in order; at last the method ``none``, whose refusal lists what the server allows."""
        agent_keys = self._agent_keys()
        files = [Path(name) for name in self.endpoint.identity_files if Path(name).is_file()]
        if self.endpoint.explicit_identities:
            for name in self.endpoint.identity_files:
                if not Path(name).is_file():
                    self.attempts.skipped.append(f"{name} does not exist")
        files_first = self.endpoint.explicit_identities or self.endpoint.identities_only
        if files_first:
            yield from self._from_files(files, agent_keys)
        if not self.endpoint.identities_only:
            for key in agent_keys:
                yield self._offer(key, f"agent key {key.comment or fingerprint(key.blob)}")
        if not files_first:
            yield from self._from_files(files, [])
        yield NoneAuth(self.endpoint.user)

    def close(self) -> None:
        """Close the agent's connection."""
        if self._agent is not None:
            self._agent.close()

    def _offer(self, key: PKey, name: str) -> AuthSource:
        self.attempts.offered.append(f"{name} ({key.get_name()})")
        return InMemoryPrivateKey(self.endpoint.user, key)

    def _agent_keys(self) -> list[AgentKey]:
        if not self.endpoint.agent:
            return []
        try:
            self._agent = Agent(self.endpoint.agent)
        except (OSError, SSHException) as error:
            text = "did not answer within 1 s" if isinstance(error, TimeoutError) else str(error)
            self.attempts.skipped.append(f"the agent at {self.endpoint.agent} was left out: {text}")
            return []
        return list(self._agent.get_keys())

    def _from_files(self, files: list[Path], agent_keys: list[AgentKey]) -> Iterator[AuthSource]:
        """Keys of files; one that the agent holds is used through it, which also opens encrypted ones."""
        for path in files:
            held = _public_blob(path)
            through = next((key for key in agent_keys if key.blob == held), None)
            if through is not None:
                agent_keys.remove(through)
                yield self._offer(through, f"{path} through the agent")
                continue
            key = self._load(path)
            if key is not None:
                yield self._offer(key, str(path))

    def _load(self, path: Path) -> PKey | None:
        try:
            key = PKey.from_path(path)  # with its certificate, where PATH-cert.pub exists
        except PasswordRequiredException:
            self.attempts.skipped.append(f"{path} is encrypted and no agent holds it (ssh-add {path})")
        except Exception as error:  # paramiko and cryptography raise many kinds for a file that is no key
            text = "is encrypted and no agent holds it" if _encrypted(error) else f"cannot be read: {error}"
            self.attempts.skipped.append(f"{path} {text}")
        else:
            return key
        return None


def _encrypted(error: Exception) -> bool:
    return isinstance(error, TypeError) and "password" in str(error).lower()


def _public_blob(path: Path) -> bytes | None:
    import base64

    try:
        return base64.b64decode(Path(f"{path}.pub").read_text("utf-8").split()[1])
    except (OSError, ValueError, IndexError):
        return None


def allowed_methods(error: Any) -> str:
    """What the server would accept, as far as the failed attempts told."""
    for item in reversed(list(getattr(error, "result", []) or [])):
        allowed = getattr(item.result, "allowed_types", None)
        if allowed:
            return ", ".join(allowed)
    return ""
