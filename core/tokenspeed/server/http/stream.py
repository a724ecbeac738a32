"""Server-sent events: a mailbox that merges what a slow client has not read, and the response.

A stream starts with a comment line and repeats it whenever nothing was sent for `keep_alive_s`,
so that proxies keep it open from before prefill on, whatever the scheduler does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from tokenspeed.server.http.unread import Unread, bytes_of
from tokenspeed.server.pieces import join_pieces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    from tokenspeed.errors import CapacityError
    from tokenspeed.server.pieces import Piece

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
MERGED_PIECES = 256
"""Of a reader that is behind: more are made one, so that each costs its text only."""

encode = msgspec.json.Encoder().encode
"""Returns a value as JSON."""
T = TypeVar("T")


def event(body: Any) -> bytes:
    """Encode one event."""
    return b"data: " + encode(body) + b"\n\n"


def named_event(body: dict[str, Any]) -> bytes:
    """Encode one event that is named by its body's type."""
    return b"event: " + str(body["type"]).encode() + b"\n" + event(body)


class Mailbox:
    """Pieces of all choices of a request, merged by choice until the writer takes them.

    Event-loop thread only. Never blocks its producers: what waits is bounded by `unread`.
    """

    def __init__(self, unread: Unread | None = None) -> None:
        self.num_unread_bytes = 0
        self._unread = unread or Unread()
        self._pieces: dict[int, list[Piece]] = {}
        self._error: BaseException | None = None
        self._cut: CapacityError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, piece: Piece) -> None:
        """Add a piece of choice `index`.

        Raises:
            CapacityError: the reader is too far behind; the answer is cut off.
        """
        waiting = self._pieces.setdefault(index, [])
        waiting.append(piece)
        if len(waiting) > 1:  # the reader is behind
            self._count(bytes_of(piece))
        if len(waiting) >= MERGED_PIECES:
            before = sum(map(bytes_of, waiting[1:]))
            waiting[:] = [join_pieces(waiting)]
            self._count(bytes_of(waiting[0]) - before)
        self._wake()
        if self._cut is not None:
            raise self._cut

    def cut(self, error: CapacityError) -> None:
        """Drop what waits, and end with an error."""
        self._cut = error
        self.close()
        self.fail(error)

    def close(self) -> None:
        """Drop what waits: nobody will take it."""
        self._pieces.clear()
        self._count(-self.num_unread_bytes)

    def fail(self, error: BaseException) -> None:
        """End the request: the next take raises `error`, after the pieces before it are taken."""
        self._error = self._error or error
        self._wake()

    def raise_error(self) -> None:
        """Raise the error that ended the request, if one did."""
        if self._error is not None:
            raise self._error

    async def take(self, timeout_s: float | None = None) -> list[tuple[int, Piece]]:
        """Return everything that waits, by choice; an empty list after `timeout_s` of silence."""
        if not self._pieces and self._error is None:
            await self._wait(timeout_s)
        taken = sorted((index, join_pieces(pieces)) for index, pieces in self._pieces.items())
        self._pieces.clear()
        if self.num_unread_bytes:
            self._count(-self.num_unread_bytes)
        if self._error is not None and not taken:
            raise self._error
        return taken

    def _count(self, num_bytes: int) -> None:
        self.num_unread_bytes += num_bytes
        self._unread.add(self, num_bytes)

    async def _wait(self, timeout_s: float | None) -> None:
        # A bare future and a timer: asyncio's events and timeouts cost more than the chunk itself.
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if timeout_s is None else loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EventStream(Response):
    """Sends an iterator of encoded events; `on_close` runs exactly once, however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, on_close: Callable[[], Awaitable[None]]
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events
        self._on_close = on_close

    def render(self, content: Any) -> bytes:
        return b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._write(send))
        finally:
            await self._on_close()

    async def _write(self, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(start)
        async for chunk in self._events:
            if not chunk:  # all that is new is kept back
                continue
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work`, cancelled as soon as the client goes away; None then."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
