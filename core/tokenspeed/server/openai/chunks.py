"""A streamed answer of the chat and completions API: chunks as events, usage, the closing mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tokenspeed.server.http.errors import OPENAI, stream_error
from tokenspeed.server.http.stream import COMMENT, DONE, encode, event
from tokenspeed.server.openai.replies import usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.server.answer import Taken
    from tokenspeed.server.generation import Generation
    from tokenspeed.server.openai.schemas import ChatRequest, CompletionRequest
    from tokenspeed.server.pieces import Piece


class Bodies(Protocol):
    """Writes the bodies of one kind of answer."""

    head: dict[str, Any]

    def choice(self, index: int, piece: Piece) -> dict[str, Any]: ...

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]: ...


class ChunkReply:
    """Writes one answer, whole or as a stream of chunks."""

    keep_alive = COMMENT

    def __init__(
        self, request: ChatRequest | CompletionRequest, generation: Generation, bodies: Bodies
    ) -> None:
        options = request.stream_options
        self._wants_usage = options is not None and options.include_usage
        extra: dict[str, Any] = {"usage": None} if self._wants_usage else {}
        # All chunks are alike but for their choice: the rest is written once.
        empty = event({**bodies.head, "choices": [], **extra})
        before, mark, self._after = empty.rpartition(b'"choices":[')
        self._before = before + mark
        self._generation = generation
        self._bodies = bodies

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream."""
        return self._bodies.whole(pieces)

    def begin(self, first: Taken) -> bytes:
        """Return what opens the stream."""
        return COMMENT

    def more(self, taken: Taken) -> bytes:
        """Return the chunks of what is new: one write for all."""
        choices = [encode(self._bodies.choice(index, piece)) for index, piece in taken]
        return b"".join([self._before + choice + self._after for choice in choices])

    def end(self, pieces: Sequence[Piece]) -> bytes:
        """Return what closes a stream whose choices have all ended."""
        if not self._wants_usage:
            return DONE
        counts = usage(
            self._generation.prompts,
            pieces,
            counts_reasoning=self._generation.parser is not None,
        )
        return event({**self._bodies.head, "choices": [], "usage": counts}) + DONE

    def fail(self, error: BaseException) -> bytes:
        """Return the last event of a stream that failed."""
        return event(stream_error(error, OPENAI))
