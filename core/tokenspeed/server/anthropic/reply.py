"""The answer to a messages request: one body, or events in Anthropic's order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import ToolCallError
from tokenspeed.server.conversation.sealed import pack, sign
from tokenspeed.server.counts import counts_of
from tokenspeed.server.http.errors import ANTHROPIC, stream_error
from tokenspeed.server.http.stream import named_event
from tokenspeed.server.parts_of_answer import PartStream, parts_of
from tokenspeed.server.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.server.answer import Taken
    from tokenspeed.server.anthropic.schemas import MessagesRequest
    from tokenspeed.server.generation import Generation
    from tokenspeed.server.parts_of_answer import Change, Part

_STARTS = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}


class MessagesReply:
    """Writes the answer of one request.

    message_start (content_block_start content_block_delta* content_block_stop)* message_delta
    message_stop; ping in silence; error ends it anywhere.
    """

    keep_alive = named_event({"type": "ping"})

    def __init__(self, request: MessagesRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._parts = PartStream()
        display = request.thinking.display if request.thinking is not None else None
        self._is_thinking_shown = display != "omitted"

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream."""
        (piece,) = pieces
        content = [self._block(part) for part in parts_of(piece)]
        return {
            **self._message(content, piece),
            **self._ended(piece),
            "context_management": {"applied_edits": []},
        }

    def begin(self, first: Taken) -> bytes:
        """Return the opening; its usage has the prompt where the cache's part is known by now.

        Clients keep a count of the opening where message_delta says 0, so a token must not change
        its place between the two.
        """
        known = sum((piece for _, piece in first), Piece())
        message = self._message([], known)
        if known.cache is None:
            message["usage"]["input_tokens"] = 0
        return named_event({"type": "message_start", "message": message})

    def more(self, taken: Taken) -> bytes:
        """Return the events of what is new."""
        changes = (change for _, piece in taken for change in self._parts.push(piece))
        return b"".join(map(self._event, changes))

    def end(self, pieces: Sequence[Piece]) -> bytes:
        """Return what closes the stream; its usage counts for the whole."""
        (piece,) = pieces
        delta = {
            "type": "message_delta",
            "delta": self._ended(piece),
            "usage": self._usage(piece),
            "context_management": {"applied_edits": []},
        }
        closing = b"".join(map(self._event, self._parts.finish()))
        return closing + named_event(delta) + named_event({"type": "message_stop"})

    def fail(self, error: BaseException) -> bytes:
        """Return the last event of a stream that failed."""
        return named_event(stream_error(error, ANTHROPIC))

    def _message(self, content: list[dict[str, Any]], piece: Piece) -> dict[str, Any]:
        return {
            "id": self._generation.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(piece),
        }

    def _ended(self, piece: Piece) -> dict[str, Any]:
        stop = piece.stop_text or None
        return {"stop_reason": _stop_reason(piece), "stop_sequence": stop}

    def _usage(self, piece: Piece) -> dict[str, Any]:
        """Count tokens; those that the cache keeps now count as created where marks ask for it."""
        counts = counts_of(self._generation.prompts[0], piece)
        created = counts.written if self._request.has_marks else 0
        return {
            "input_tokens": counts.prompt - counts.cached - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.output,
            "output_tokens_details": {"thinking_tokens": counts.reasoning},
            **counts.truth,
        }

    def _event(self, change: Change) -> bytes:
        part = change.part
        match change.what:
            case "open":
                start = _STARTS.get(part.kind) or _tool_use(part, {})
                return _block_event("content_block_start", part, content_block=start)
            case "grow":
                delta = self._delta(part, change.text)
                return _block_event("content_block_delta", part, delta=delta) if delta else b""
            case "close":
                signature = b""
                if part.kind == "reasoning":
                    delta = {"type": "signature_delta", "signature": self._signature(part)}
                    signature = _block_event("content_block_delta", part, delta=delta)
                return signature + _block_event("content_block_stop", part)

    def _delta(self, part: Part, text: str) -> dict[str, Any] | None:
        if part.kind == "text":
            return {"type": "text_delta", "text": text}
        if part.kind == "call":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": "thinking_delta", "thinking": text} if self._is_thinking_shown else None

    def _block(self, part: Part) -> dict[str, Any]:
        if part.kind == "text":
            return {"type": "text", "text": part.text}
        if part.kind == "call":
            return _tool_use(part, _input(part))
        shown = part.text if self._is_thinking_shown else ""
        return {"type": "thinking", "thinking": shown, "signature": self._signature(part)}

    def _signature(self, part: Part) -> str:
        """Seal thinking; what is not shown is packed, so that it comes back all the same."""
        return sign(part.text) if self._is_thinking_shown else pack(part.text)


def _block_event(kind: str, part: Part, **fields: Any) -> bytes:
    return named_event({"type": kind, "index": part.number, **fields})


def _tool_use(part: Part, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": arguments}


def _input(part: Part) -> dict[str, Any]:
    """Read the arguments of a call, which parsers have made sure of, unless the answer was cut."""
    try:
        read = json.loads(part.text) if part.text.strip() else {}
    except ValueError:
        read = None
    if isinstance(read, dict):
        return read
    raise ToolCallError(
        f"the model's call of {part.name!r} has arguments that are no JSON object: it wrote "
        f"{part.text[:500]!r}; ask again, with a larger max_tokens if the answer was cut",
        text=part.text,
    )


def _stop_reason(piece: Piece) -> str:
    if piece.finish_reason == "length":
        return "max_tokens"
    if piece.tool_calls:
        return "tool_use"
    return "stop_sequence" if piece.stop_text else "end_turn"
