"""A relay on loopback between client and sshd that delays, counts, and can cut after any byte."""

from __future__ import annotations

import contextlib
import heapq
import socket
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What went through: bytes each way, and flights (bursts of the client that follow something from the server)."""

    to_server: int = 0
    to_client: int = 0
    flights: int = 0
    last: str = field(default="", repr=False)

    def count(self, direction: str, size: int) -> None:
        """Account for one piece."""
        if direction == "server":
            self.to_server += size
            self.flights += self.last != "server"
        else:
            self.to_client += size
        self.last = direction


class Relay:
    """``with Relay(port) as relay:`` listens on ``relay.port`` and passes everything on to ``port``.

    Args:
        delay: Seconds for each direction, so a round trip takes twice that.
        cut_after: Bytes to the server after which the connection is dropped; None: never.
        stall: Instead of dropping it, pass nothing more to the server, as a firewall that lost its state does.
    """

    def __init__(self, port: int, delay: float = 0.0, cut_after: int | None = None, stall: bool = False) -> None:
        self.stall = stall
        self.target = port
        self.delay = delay
        self.cut_after = cut_after
        self.traffic = Traffic()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(8)
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        """Where to connect."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Drop every connection, with what is on its way."""
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open += [client, server]
            for source, sink, direction in ((client, server, "server"), (server, client, "client")):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _last_words(self, sink: socket.socket, data: bytes) -> None:
        if not self.stall:
            with contextlib.suppress(OSError):
                sink.sendall(data)
            self.cut()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        waiting: list[tuple[float, int, bytes]] = []
        ready = threading.Condition()

        def deliver() -> None:
            while True:
                with ready:
                    while not waiting:
                        ready.wait()
                    due, _, data = heapq.heappop(waiting)
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    if not data:
                        sink.shutdown(socket.SHUT_WR)
                        return
                    sink.sendall(data)
                except OSError:
                    return

        threading.Thread(target=deliver, daemon=True).start()
        number = 0
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if direction == "server" and self.cut_after is not None:
                room = self.cut_after - self.traffic.to_server
                if len(data) > room:
                    self._last_words(sink, data[:room])
                    return
            with self._lock:
                self.traffic.count(direction, len(data))
            number += 1
            with ready:
                heapq.heappush(waiting, (time.monotonic() + self.delay, number, data))
                ready.notify()
            if not data:
                return
