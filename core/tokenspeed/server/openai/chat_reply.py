"""The bodies of one chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.server.openai.replies import chat_logprobs, envelope, prompt_logprobs, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.parser import ToolCallDelta
    from tokenspeed.server.generation import Generation
    from tokenspeed.server.openai.schemas import ChatRequest
    from tokenspeed.server.pieces import Piece
    from tokenspeed.tokenizer.tokenizer import Tokenizer


class ChatReply:
    """Writes the answer of one request, whole or in chunks."""

    def __init__(self, request: ChatRequest, generation: Generation, tokenizer: Tokenizer) -> None:
        self._generation = generation
        self._tokenizer = tokenizer
        self._wants_logprobs = request.logprobs
        self._is_parsed = generation.parser is not None
        self._opened: set[int] = set()
        self._called: set[int] = set()
        self.head = envelope(generation.request_id, "chat.completion.chunk", request.model)

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a chunk's choice: what is new about it; its first names the role."""
        delta: dict[str, Any] = {}
        if index not in self._opened:
            self._opened.add(index)
            delta["role"] = "assistant"
            delta["content"] = piece.text
        elif piece.text:
            delta["content"] = piece.text
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.tool_calls:
            delta["tool_calls"] = [self._call_delta(index, call) for call in piece.tool_calls]
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(piece),
            "finish_reason": self._finish_reason(piece, called=index in self._called),
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream."""
        choices = [
            {
                "index": index,
                "message": self._message(piece),
                "logprobs": self._logprobs(piece),
                "finish_reason": self._finish_reason(piece, called=bool(piece.tool_calls)),
            }
            for index, piece in enumerate(pieces)
        ]
        body = {
            **self.head,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(self._generation.prompts, pieces, counts_reasoning=self._is_parsed),
        }
        if self._generation.params.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, pieces[0].prompt_logprobs)
        return body

    def _message(self, piece: Piece) -> dict[str, Any]:
        content = None if piece.tool_calls and not piece.text else piece.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if piece.tool_calls:
            message["tool_calls"] = [
                {"id": call.call_id, "type": "function", "function": _function(call)}
                for call in piece.tool_calls
            ]
        if self._is_parsed:
            message["reasoning_content"] = piece.reasoning or None
        return message

    def _call_delta(self, index: int, call: ToolCallDelta) -> dict[str, Any]:
        """Write what is new about a call; its id, type and name come with its first delta."""
        self._called.add(index)
        if not call.call_id:
            return {"index": call.index, "function": {"arguments": call.arguments}}
        opening = {"index": call.index, "id": call.call_id, "type": "function"}
        return {**opening, "function": _function(call)}

    def _finish_reason(self, piece: Piece, *, called: bool) -> str | None:
        return "tool_calls" if called and piece.finish_reason == "stop" else piece.finish_reason

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if not self._wants_logprobs:
            return None
        return chat_logprobs(self._tokenizer, piece.logprobs)


def _function(call: ToolCallDelta) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}
