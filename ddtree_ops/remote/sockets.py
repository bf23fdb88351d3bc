"""The byte stream below an SSH connection: a TCP connection, or a ProxyCommand; each failure with its name."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess

from ..errors import HostUnreachable
from .ssh_config import Endpoint


def dial(target: Endpoint) -> socket.socket:
    """A TCP connection to ``target``, made within its ``connect_timeout``."""
    try:
        sock = socket.create_connection((target.address, target.port), timeout=target.connect_timeout)
    except socket.gaierror as error:
        raise HostUnreachable(
            f"the name {target.address} is not known: {error.strerror}",
            where=target.where,
            next_step="give an address, or HostName in ssh_config",
        )
    except TimeoutError:
        raise HostUnreachable(
            f"no answer from {target.address}:{target.port} within {target.connect_timeout:.0f} s",
            where=target.where,
            why="the host is down, or a firewall drops the packets",
            next_step=f"ssh -v -p {target.port} {target.user}@{target.address}",
        )
    except OSError as error:
        routing = error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
        raise HostUnreachable(
            f"{target.address}:{target.port} cannot be reached: {error.strerror or error}",
            where=target.where,
            next_step="is the network up (a VPN, a ProxyJump)?"
            if routing
            else f"is sshd up there, and is {target.port} its port?",
        )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def proxy(target: Endpoint, route: contextlib.ExitStack) -> socket.socket:
    """The ProxyCommand on one end of a socket pair: unlike paramiko's own it notices the end and honours timeouts."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(  # the user's own ssh_config names this command, and sees its errors, as with ssh
        ["/bin/sh", "-c", f"exec {target.proxy_command}"], stdin=theirs.fileno(), stdout=theirs.fileno()
    )
    theirs.close()

    def end() -> None:
        ours.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return
        process.terminate()
        process.wait()

    route.callback(end)
    return ours
