"""A client that takes nothing of its answer loses its connection; a slow one keeps it."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from tokenspeed.server.http import connection
from tokenspeed.server.http.connection import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_BYTES = 8 << 20
"""More than the buffers of both sockets hold."""
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def whole(scope: Any, receive: Any, send: Any) -> None:
    """Send one large body."""
    headers = [(b"content-length", str(NUM_BYTES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * NUM_BYTES})


async def streamed(scope: Any, receive: Any, send: Any) -> None:
    """Send it in small pieces."""
    headers = [(b"content-length", str(NUM_BYTES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for left in range(NUM_BYTES - 4096, -1, -4096):
        await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": left > 0})


async def serve(app: Any, client: Any) -> Any:
    """Run a client, in a thread, against a server of this loop."""
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None, log_level=50)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with serving(server, listener):
            return await asyncio.to_thread(client, listener.getsockname())


def serving(server: uvicorn.Server, listener: socket.socket) -> Any:
    class Serving:
        async def __aenter__(self) -> None:
            self.task = asyncio.create_task(server._serve([listener]))
            while not server.started:
                await asyncio.sleep(0.005)

        async def __aexit__(self, *exc_info: object) -> None:
            server.should_exit = server.force_exit = True
            await self.task

    return Serving()


@contextmanager
def asked(address: Any) -> Iterator[socket.socket]:
    """Send the request; do not read."""
    with socket.create_connection(address, timeout=60) as client:
        client.sendall(REQUEST)
        yield client


def read_all(client: socket.socket, pause_s: float = 0.0) -> int:
    """Read to the end of the connection or of the answer; return how many bytes came."""
    num_bytes = 0
    while num_bytes < NUM_BYTES:
        time.sleep(pause_s)
        try:
            data = client.recv(1 << 18)
        except ConnectionResetError:
            break
        if not data:
            break
        num_bytes += len(data)
    return num_bytes


@pytest.mark.parametrize("app", [whole, streamed])
def test_who_takes_nothing_is_cut_off(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.2)
    monkeypatch.setattr(Connection, "num_aborted", 0)

    def stopped(address: Any) -> int:
        with asked(address) as client:
            deadline_s = time.monotonic() + 60
            while not Connection.num_aborted and time.monotonic() < deadline_s:
                time.sleep(0.02)
            return read_all(client)

    assert asyncio.run(serve(app, stopped)) < NUM_BYTES
    assert Connection.num_aborted == 1


@pytest.mark.parametrize("app", [whole, streamed])
def test_who_reads_slowly_gets_all(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_S", 0.5)
    monkeypatch.setattr(Connection, "num_aborted", 0)

    def slow(address: Any) -> int:
        with asked(address) as client:
            return read_all(client, pause_s=0.04)

    assert asyncio.run(serve(app, slow)) >= NUM_BYTES
    assert Connection.num_aborted == 0
