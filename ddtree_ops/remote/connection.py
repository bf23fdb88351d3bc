"""The one door to a host: :func:`connect`."""

from __future__ import annotations

import os
import secrets
import sys

from ..errors import HostUnreachable
from ..inventory import Host
from . import bundle, startup
from .channel import Link, OnEvent, Stream
from .local import LocalStream


def connect(host: Host, *, on_event: OnEvent | None = None) -> Link:
    """Start the program on ``host`` and return the conversation with it, a context manager.

    One connection, one channel, one process on the host; nothing is written there. Whether the program runs at all is
    known with the first call.

    Args:
        on_event: Receives events of calls that name no listener of their own, and warnings about the connection.

    Raises:
        HostUnreachable: or one of its kinds (host key, authentication), before anything was run.
    """
    nonce = secrets.token_hex(8)
    if host.transport == "local":
        stream: Stream = LocalStream(startup.command(host, os.geteuid() == 0))
        first = sys.executable
    else:
        from . import ssh

        if not host.address:
            raise HostUnreachable(f"{host.name} has no address", next_step="give `address:` in the inventory")
        stream = ssh.open_stream(host, startup.command(host, ssh.login_is_root(host)))
        first = ""
    program = bundle.bundle()
    link = Link(
        stream,
        nonce,
        host.name,
        program=program,
        on_event=on_event,
        startup_failure=lambda status, stderr, noise: startup.failure(host, status, stderr, noise),
    )
    try:
        return link.start(startup.preamble(host, nonce, program, first))
    except BaseException:
        link.close()
        raise
