"""Many streams read at the least cost: raw sockets, one epoll, no JSON.

Knows HTTP/1.1 as far as this server's answers need it, and counts events by their `data: ` lines.
"""

from __future__ import annotations

import json
import select
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

RECEIVE_BYTES = 1 << 16
TIMEOUT_S = 10.0


def request_bytes(path: str, body: bytes) -> bytes:
    """Return a POST request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Streams:
    """Open streams of one server, all of one request.

    Args:
        received: of each stream, all that came, when `keeps` is set.
    """

    def __init__(self, port: int, path: str, body: dict[str, Any], num_streams: int) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self.num_events = 0
        self.num_reads = 0
        raw = request_bytes(path, json.dumps(body).encode())
        for _ in range(num_streams):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(raw)
            connection.setblocking(False)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection, select.EPOLLIN)

    def wait_all(self, mark: bytes = b"data: ") -> dict[int, float]:
        """Wait until every stream brought an event; return when each one's first came."""
        seen: dict[int, float] = {}
        give_up_s = time.monotonic() + TIMEOUT_S
        while len(seen) < len(self._sockets):
            for fileno, data in self.read(give_up_s - time.monotonic()):
                if mark in data:
                    seen.setdefault(fileno, time.monotonic())
            if time.monotonic() > give_up_s:
                missing = len(self._sockets) - len(seen)
                raise RuntimeError(f"{missing} streams are silent for {TIMEOUT_S} s")
        return seen

    def read(self, timeout_s: float) -> Sequence[tuple[int, bytes]]:
        """Return what has come, a read a stream; wait for the first."""
        found = []
        for fileno, _ in self._poll.poll(max(0.0, timeout_s)):
            data = self._sockets[fileno].recv(RECEIVE_BYTES)
            if not data or data.startswith(b"HTTP/1.1 4"):
                raise RuntimeError(f"the server ended a stream: {data.decode()}")
            self.num_reads += 1
            self.num_events += data.count(b"data: ")
            found.append((fileno, data))
        return found

    def close(self) -> None:
        """Leave."""
        self._poll.close()
        for connection in self._sockets.values():
            connection.close()
