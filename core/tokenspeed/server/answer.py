"""Runs a Generation to its HTTP response: one JSON body, or a stream of events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from starlette.responses import Response

from tokenspeed.server.http.errors import JsonResponse, stream_error
from tokenspeed.server.http.stream import COMMENT, DONE, EventStream, event, unless_disconnected
from tokenspeed.server.openai.replies import usage
from tokenspeed.server.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.types import Receive

    from tokenspeed.server.generation import Generation
    from tokenspeed.server.metrics import Metrics
    from tokenspeed.server.openai.schemas import ChatRequest, CompletionRequest

START_GRACE_S = 1.0
"""How long a stream waits for news of every choice before its 200: a refusal keeps its status."""


class Reply(Protocol):
    """Writes the bodies of one kind of answer."""

    head: dict[str, Any]

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]: ...

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]: ...


class Answerer:
    """Answers generations; the engine is told to abort the moment a client goes away."""

    def __init__(self, metrics: Metrics, *, keep_alive_s: float) -> None:
        self._metrics = metrics
        self._keep_alive_s = keep_alive_s

    async def respond(
        self,
        receive: Receive,
        body: ChatRequest | CompletionRequest,
        generation: Generation,
        reply: Reply,
    ) -> Response:
        """Start the generation and return its response.

        Raises:
            TokenSpeedError: the engine refused it or failed it before anything was sent.
        """
        generation.start()
        try:
            if body.stream:
                return await self._stream(receive, body, generation, reply)
            pieces = await unless_disconnected(receive, generation.collect())
        except BaseException:
            await self._close(generation)
            raise
        await self._close(generation)
        # Nobody reads the 499: the client is gone.
        return JsonResponse(reply.whole(pieces)) if pieces is not None else Response(None, 499)

    async def _stream(
        self,
        receive: Receive,
        body: ChatRequest | CompletionRequest,
        generation: Generation,
        reply: Reply,
    ) -> Response:
        first = await unless_disconnected(receive, _first_news(generation))
        wants_usage = body.stream_options is not None and body.stream_options.include_usage
        events = self._events(generation, reply, first or [], wants_usage=wants_usage)
        return EventStream(events, on_close=lambda: self._close(generation))

    async def _events(
        self,
        generation: Generation,
        reply: Reply,
        taken: list[tuple[int, Piece]],
        *,
        wants_usage: bool,
    ) -> AsyncIterator[bytes]:
        """Encode what arrives until every choice has ended; comments fill the silence."""
        extra: dict[str, Any] = {"usage": None} if wants_usage else {}
        whole = [Piece()] * generation.num_choices
        yield COMMENT
        try:
            while True:
                for index, piece in taken:
                    whole[index] += piece
                # One write for all: more of them after a client left would each be logged.
                chunks = (event({**reply.chunk(i, piece), **extra}) for i, piece in taken)
                yield b"".join(chunks)
                if all(piece.finish_reason for piece in whole):
                    break
                taken = await generation.mailbox.take(self._keep_alive_s)
                if not taken:
                    yield COMMENT
        except Exception as error:
            yield event(stream_error(error))
            return
        if wants_usage:
            counts = usage(
                generation.prompts, whole, counts_reasoning=generation.parser is not None
            )
            yield event({**reply.head, "choices": [], "usage": counts})
        yield DONE

    async def _close(self, generation: Generation) -> None:
        if await generation.close():
            self._metrics.aborted.inc()


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
