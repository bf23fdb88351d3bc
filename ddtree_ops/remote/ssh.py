"""``transport: ssh``: fabric over paramiko, made strict.

Fabric's own ``Connection`` accepts every host key and reads no known_hosts. Here its client gets the strict policy
before it opens, never a stored key of its own, and a socket that we made: so that each failure has a name, a jump host
is a strict connection too, and nothing waits without a limit.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import fabric
import paramiko

from ..errors import AuthenticationFailed, DdtreeError, HostUnreachable
from ..inventory import Host
from .auth import Keys, allowed_methods
from .host_keys import StrictPolicy
from .sockets import dial, proxy
from .ssh_config import Endpoint, endpoint, jump_endpoint

HANDSHAKE = 20.0  # seconds for each of banner, key exchange, authentication
CHANNEL_OPEN = 15.0
SEND = 60.0  # seconds that one write may be stuck
KEEPALIVE = 15
_RETRIES = (0.5, 1.5)  # pauses after a connection that was closed before authentication (MaxStartups)

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its threads log tracebacks; ours are the messages


class SshStream:
    """A helper on an exec channel; holds the connections that lead there, innermost last."""

    def __init__(self, channel: paramiko.Channel, route: contextlib.ExitStack) -> None:
        self._channel = channel
        self._route = route
        channel.settimeout(SEND)

    def read(self, size: int) -> bytes:
        """Bytes of stdout, ``b""`` at the end."""
        while True:
            try:
                return self._channel.recv(size)
            except TimeoutError:
                continue

    def read_error(self, size: int) -> bytes:
        """Bytes of stderr, ``b""`` at the end."""
        while True:
            try:
                return self._channel.recv_stderr(size)
            except TimeoutError:
                continue

    def write(self, data: bytes) -> None:
        """Send all of ``data``; OSError when the channel is closed or stuck for :data:`SEND` seconds."""
        self._channel.sendall(data)

    def close_input(self) -> None:
        """End of stdin."""
        with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
            self._channel.shutdown_write()

    def wait(self, timeout: float) -> int | None:
        """Exit status, None when the server does not tell in time (or the connection is gone)."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self._channel.exit_status_ready():
                status = self._channel.recv_exit_status()
                return None if status < 0 else status
            if self._channel.closed:
                return None
            time.sleep(0.005)
        return None

    def abandon(self) -> None:
        """Close the channel and every connection of the route."""
        self._route.close()


def open_stream(host: Host, command: str) -> SshStream:
    """Connect to ``host`` and start ``command`` on one exec channel.

    Raises:
        HostUnreachable: DNS, refused, no route, timeout, not an SSH server.
        HostKeyUnknown, HostKeyChanged, AuthenticationFailed: as their names say; nothing was run.
    """
    route = contextlib.ExitStack()
    try:
        transport = _open_route(host, endpoint(host), route, frozenset())
        return SshStream(_start(transport, host, command), route)
    except BaseException:
        route.close()
        raise


def login_is_root(host: Host) -> bool:
    """Whether the account at the host is root by name."""
    return endpoint(host).user == "root"


def _open_route(
    host: Host, target: Endpoint, route: contextlib.ExitStack, passed: frozenset[tuple[str, int]]
) -> paramiko.Transport:
    """A strict connection to ``target``, through its jump hosts; each one is registered in ``route``."""
    via: paramiko.Transport | None = None
    for spec in target.jumps:
        hop = jump_endpoint(spec, host)
        if (hop.address, hop.port) in passed | {(target.address, target.port)}:
            continue  # a wildcard entry that names the jump host for itself
        if via is None:
            via = _open_route(host, hop, route, passed | {(target.address, target.port)})
        else:
            via = _connect(hop, via, route)
    return _connect(target, via, route)


def _connect(target: Endpoint, via: paramiko.Transport | None, route: contextlib.ExitStack) -> paramiko.Transport:
    for pause in (*_RETRIES, None):
        try:
            return _connect_once(target, via, route)
        except _ClosedEarly as early:
            if pause is None or via is not None:
                raise early.error
            time.sleep(pause)
    raise AssertionError("unreachable")


class _ClosedEarly(Exception):
    """The server closed before authentication: the one failure that is safe and useful to repeat."""

    def __init__(self, error: DdtreeError) -> None:
        super().__init__(str(error))
        self.error = error


def _connect_once(target: Endpoint, via: paramiko.Transport | None, route: contextlib.ExitStack) -> paramiko.Transport:
    policy, keys = StrictPolicy(target), Keys(target)
    sock = _socket(target, via, route)
    route.callback(sock.close)  # paramiko leaves it open when the handshake fails
    connection = fabric.Connection(
        target.address,
        user=target.user,
        port=target.port,
        config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
        forward_agent=False,
        connect_timeout=int(max(target.connect_timeout, HANDSHAKE)),
        connect_kwargs={
            "sock": sock,
            "banner_timeout": HANDSHAKE,
            "auth_timeout": HANDSHAKE,
            "channel_timeout": CHANNEL_OPEN,
            "auth_strategy": keys,
            "transport_factory": lambda made, **options: _transport(made, policy, options),
        },
    )
    connection.client.set_missing_host_key_policy(policy)
    route.callback(connection.client.close)
    try:
        with _named_failures(target, keys):
            connection.open()
    finally:
        keys.close()
    transport: paramiko.Transport = connection.transport
    transport.set_keepalive(KEEPALIVE)
    return transport


def _transport(sock: Any, policy: StrictPolicy, options: dict[str, Any]) -> paramiko.Transport:
    transport = paramiko.Transport(sock, **options)
    security = transport.get_security_options()
    security.key_types = policy.key_types(security.key_types)
    return transport


# -- what failures mean --


@contextlib.contextmanager
def _named_failures(target: Endpoint, keys: Keys) -> Iterator[None]:
    try:
        yield
    except DdtreeError:
        raise
    except paramiko.AuthenticationException as error:
        allowed = allowed_methods(error)
        raise AuthenticationFailed(
            f"{target.where} accepted none of the keys",
            where=target.where,
            why=str(keys.attempts) + (f"; the server allows: {allowed}" if allowed else ""),
            next_step=f"ssh-copy-id -p {target.port} {target.user}@{target.address}, or name the key: "
            "IdentityFile in ssh_config, `ssh: {identity_files: [...]}` in the inventory, or ssh-add it",
            details={"offered": keys.attempts.offered, "skipped": keys.attempts.skipped, "allowed": allowed},
        )
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise HostUnreachable(
            f"{target.where} and this machine share no algorithm: {error}",
            where=target.where,
            next_step=f"ssh -vv -p {target.port} {target.address} lists what the server offers; update its OpenSSH",
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        what = str(error) or type(error).__name__
        raise _ClosedEarly(
            HostUnreachable(
                f"{target.where} answers, but not as an SSH server should: {what}",
                where=target.where,
                why="it is busy (MaxStartups), it hangs, or something else listens on that port",
                next_step=f"ssh -v -p {target.port} {target.user}@{target.address}",
            )
        )


def _socket(target: Endpoint, via: paramiko.Transport | None, route: contextlib.ExitStack) -> Any:
    if via is not None:
        try:
            return via.open_channel("direct-tcpip", (target.address, target.port), ("", 0), timeout=CHANNEL_OPEN)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(f"the jump host cannot reach {target.where}: {error}", where=target.where)
    if target.proxy_command:
        return proxy(target, route)
    return dial(target)


def _start(transport: paramiko.Transport, host: Host, command: str) -> paramiko.Channel:
    """One exec channel with ``command`` running on it."""
    try:
        channel = transport.open_session(timeout=CHANNEL_OPEN)
    except paramiko.ChannelException as error:
        raise HostUnreachable(
            f"{host.name} opens no session: {error.text}",
            where=host.address,
            why="sshd's MaxSessions is used up or 0, or the account may not run commands",
            next_step="see MaxSessions and ForceCommand in the host's sshd_config",
        )
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(f"{host.name} opens no session: {error}", where=host.address)
    # exec_command waits for the server's word without a limit; closing the transport ends that wait
    watchdog = threading.Timer(CHANNEL_OPEN, transport.close)
    watchdog.daemon = True
    watchdog.start()
    try:
        channel.exec_command(command)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(
            f"{host.name} does not run a command: {str(error) or type(error).__name__}",
            where=host.address,
            next_step=f"does `ssh {host.address} true` work?",
        )
    finally:
        watchdog.cancel()
    return channel
