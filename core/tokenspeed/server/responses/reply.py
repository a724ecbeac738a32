"""The answer to a responses request: one body, or events in OpenAI's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.server.http.errors import OPENAI, stream_error
from tokenspeed.server.http.stream import named_event
from tokenspeed.server.parts_of_answer import PartStream, parts_of
from tokenspeed.server.responses.body import status_of
from tokenspeed.server.responses.items import COMPLETED, IN_PROGRESS, content_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.server.answer import Taken
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.parts_of_answer import Change, Part
    from tokenspeed.server.pieces import Piece
    from tokenspeed.server.responses.body import BodyWriter
    from tokenspeed.server.responses.items import ItemWriter

    Keep = Callable[[dict[str, Any]], None]

_TEXTS = {"text": "response.output_text", "reasoning": "response.reasoning_text"}
_ARGUMENTS = "response.function_call_arguments"


class EventWriter:
    """Writes events, each with the next sequence number."""

    def __init__(self, body: BodyWriter) -> None:
        self._body = body
        self._number = -1

    def event(self, kind: str, **fields: Any) -> bytes:
        """Return one event."""
        self._number += 1
        return named_event({"type": kind, "sequence_number": self._number, **fields})

    def opening(self) -> bytes:
        """Return the events that open a stream."""
        body = self._body.begun(IN_PROGRESS)
        created = self.event("response.created", response=body)
        return created + self.event("response.in_progress", response=body)

    def failure(self, error: BaseException) -> bytes:
        """Return the event that ends a stream which failed."""
        told = stream_error(error, OPENAI)["error"]
        body = self._body.failed(told["code"] or "server_error", told["message"])
        return self.event("response.failed", response=body)


class ResponsesReply:
    """Writes the answer of one request.

    response.created response.in_progress (output_item.added ... output_item.done)*
    response.completed or .incomplete; response.failed ends it anywhere.

    Args:
        keep: is given the finished body before the client is; None: nothing is stored.
    """

    def __init__(
        self, prompt: Prompt, body: BodyWriter, items: ItemWriter, *, keep: Keep | None
    ) -> None:
        self._prompt = prompt
        self._body = body
        self._items = items
        self._keep = keep
        self._events = EventWriter(body)
        self._parts = PartStream()

    @property
    def keep_alive(self) -> bytes:
        """Return an event: clients of this API measure silence in events, not in bytes."""
        return self._events.event("keepalive")

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream."""
        (piece,) = pieces
        return self._finished(piece, parts_of(piece))

    def begin(self, first: Taken) -> bytes:
        """Return the opening."""
        return self._events.opening()

    def more(self, taken: Taken) -> bytes:
        """Return the events of what is new."""
        changes = (change for _, piece in taken for change in self._parts.push(piece))
        return b"".join(self._changed(change, COMPLETED) for change in changes)

    def end(self, pieces: Sequence[Piece]) -> bytes:
        """Return what closes the stream: the last event holds the whole body."""
        (piece,) = pieces
        status = status_of(piece)
        closing = b"".join(self._changed(change, status) for change in self._parts.finish())
        body = self._finished(piece, self._parts.parts)
        return closing + self._events.event(f"response.{status}", response=body)

    def fail(self, error: BaseException) -> bytes:
        """Return the last event of a stream that failed."""
        return self._events.failure(error)

    def _finished(self, piece: Piece, parts: Sequence[Part]) -> dict[str, Any]:
        last = status_of(piece)
        output = [
            self._items.item(part, last if part is parts[-1] else COMPLETED) for part in parts
        ]
        body = self._body.finished(self._prompt, piece, output)
        if self._keep is not None:
            self._keep(body)
        return body

    def _changed(self, change: Change, status: str) -> bytes:
        part = change.part
        if change.what == "open":
            return self._opened(part)
        if change.what == "close":
            return self._closed(part, status)
        if part.kind == "call":
            return self._of(part, f"{_ARGUMENTS}.delta", delta=change.text)
        return self._of_text(part, "delta", delta=change.text)

    def _opened(self, part: Part) -> bytes:
        item = self._items.item(part, IN_PROGRESS)
        added = self._events.event(
            "response.output_item.added", output_index=part.number, item=item
        )
        return added if part.kind == "call" else added + self._content(part, "added", "")

    def _closed(self, part: Part, status: str) -> bytes:
        if part.kind == "call":
            item = self._items.item(part, status)
            named = {"name": item["name"], "arguments": part.text}
            filled = self._of(part, f"{_ARGUMENTS}.done", **named)
        else:
            filled = self._of_text(part, "done", text=part.text)
            filled += self._content(part, "done", part.text)
            item = self._items.item(part, status)
        return filled + self._events.event(
            "response.output_item.done", output_index=part.number, item=item
        )

    def _content(self, part: Part, what: str, text: str) -> bytes:
        kind = f"response.content_part.{what}"
        return self._of(part, kind, content_index=0, part=content_part(part, text))

    def _of_text(self, part: Part, what: str, **fields: Any) -> bytes:
        logprobs: dict[str, Any] = {"logprobs": []} if part.kind == "text" else {}
        return self._of(part, f"{_TEXTS[part.kind]}.{what}", content_index=0, **fields, **logprobs)

    def _of(self, of: Part, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._items.id_of(of), "output_index": of.number}
        return self._events.event(kind, **place, **fields)
