"""Runs a Generation to its HTTP response: one JSON body, or a stream of events.

The same for every API: a Reply of the API's room writes the bytes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from starlette.responses import Response

from tokenspeed.server.http.errors import JsonResponse
from tokenspeed.server.http.stream import EventStream, unless_disconnected
from tokenspeed.server.piece_sum import PieceSum

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from starlette.types import Receive

    from tokenspeed.server.generation import Generation
    from tokenspeed.server.metrics import Metrics
    from tokenspeed.server.pieces import Piece

START_GRACE_S = 1.0
"""How long a stream waits for news of every choice before its 200: a refusal keeps its status."""

Taken: TypeAlias = "list[tuple[int, Piece]]"
"""What is new, as (choice, piece)."""


class Reply(Protocol):
    """Writes one answer in the form of one API; `begin`, `more`..., `end` make a stream."""

    @property
    def keep_alive(self) -> bytes:
        """Return what is sent when nothing was for a while."""
        ...

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream, from each choice's whole Piece."""
        ...

    def begin(self, first: Taken) -> bytes:
        """Return what opens a stream, before `first` is written; it may be empty."""
        ...

    def more(self, taken: Taken) -> bytes:
        """Return what is new, choice by choice."""
        ...

    def end(self, pieces: Sequence[Piece]) -> bytes:
        """Return what closes a stream, from each choice's whole Piece."""
        ...

    def fail(self, error: BaseException) -> bytes:
        """Return the last event of a stream that failed."""
        ...


class Answerer:
    """Answers generations; the engine is told to abort the moment a client goes away."""

    def __init__(self, metrics: Metrics, *, keep_alive_s: float) -> None:
        self._metrics = metrics
        self._keep_alive_s = keep_alive_s

    async def respond(
        self, receive: Receive, generation: Generation, reply: Reply, *, streams: bool
    ) -> Response:
        """Start the generation and return its response.

        Raises:
            TokenSpeedError: the engine refused it or failed it before anything was sent.
        """
        if not streams:
            return await self.whole(receive, generation, lambda pieces: _body(reply, pieces))
        generation.start()
        try:
            return await self._stream(receive, generation, reply)
        except BaseException:
            await self._close(generation)
            raise

    async def whole(
        self,
        receive: Receive,
        generation: Generation,
        write: Callable[[Sequence[Piece]], Awaitable[Response]],
    ) -> Response:
        """Start the generation and return its response, written when all choices have ended.

        Raises:
            TokenSpeedError: the engine refused it or failed it.
        """
        generation.start()
        try:
            pieces = await unless_disconnected(receive, generation.collect())
        finally:
            await self._close(generation)
        # Nobody reads the 499: the client is gone.
        return await write(pieces) if pieces is not None else Response(None, 499)

    async def _stream(self, receive: Receive, generation: Generation, reply: Reply) -> Response:
        first = await unless_disconnected(receive, _first_news(generation))
        events = self._events(generation, reply, first or [])
        return EventStream(events, on_close=lambda: self._close(generation))

    async def _events(
        self, generation: Generation, reply: Reply, taken: Taken
    ) -> AsyncIterator[bytes]:
        """Encode what arrives until every choice has ended; keep-alives fill the silence."""
        sums = [PieceSum() for _ in range(generation.num_choices)]
        yield reply.begin(taken)
        try:
            while True:
                for index, piece in taken:
                    sums[index].add(piece)
                # One write for all: more of them after a client left would each be logged.
                yield reply.more(taken)
                if all(choice.has_ended for choice in sums):
                    break
                taken = await generation.mailbox.take(self._keep_alive_s)
                if not taken:
                    yield reply.keep_alive
        except Exception as error:
            yield reply.fail(error)
            return
        yield reply.end([choice.total() for choice in sums])

    async def _close(self, generation: Generation) -> None:
        if await generation.close():
            self._metrics.aborted.inc()


async def _body(reply: Reply, pieces: Sequence[Piece]) -> Response:
    return JsonResponse(reply.whole(pieces))


async def _first_news(generation: Generation) -> list[tuple[int, Piece]]:
    """Wait until every choice was heard of, but not longer than `START_GRACE_S`.

    Raises:
        TokenSpeedError: a choice was refused; the pieces of others are dropped.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + START_GRACE_S
    news: list[tuple[int, Piece]] = []
    while len({index for index, _ in news}) < generation.num_choices:
        left_s = deadline_s - loop.time()
        if left_s <= 0:
            break
        news += await generation.mailbox.take(left_s)
    generation.mailbox.raise_error()
    return news
