"""The response object: what was asked, how it stands, and what came of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tokenspeed.server.counts import counts_of
from tokenspeed.server.responses.items import COMPLETED, INCOMPLETE

if TYPE_CHECKING:
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.pieces import Piece
    from tokenspeed.server.responses.schemas import ResponsesRequest

_ECHOED = frozenset(
    {"model", "temperature", "top_p", "tool_choice", "parallel_tool_calls", "metadata"}
)
_ECHOED_OR_NULL = (
    "instructions",
    "previous_response_id",
    "max_output_tokens",
    "reasoning",
)


class BodyWriter:
    """Writes the object of one response, again and again as it goes on."""

    def __init__(self, request: ResponsesRequest, response_id: str, *, is_stored: bool) -> None:
        self.response_id = response_id
        shown = request.model_dump(include={*_ECHOED, *_ECHOED_OR_NULL}, exclude_none=True)
        self._fixed = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "background": False,
            **dict.fromkeys(_ECHOED_OR_NULL),
            **shown,
            "tools": [tool.model_dump(exclude_unset=True) for tool in request.tools],
            "prompt_cache_key": request.prompt_cache_key or None,
            "service_tier": "default",
            "store": is_stored,
            "text": {"format": request.format or {"type": "text"}},
            "top_logprobs": 0,
            "truncation": "disabled",
        }

    def begun(self, status: str) -> dict[str, Any]:
        """Return the object before anything came of it."""
        return {
            **self._fixed,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }

    def failed(self, code: str, message: str) -> dict[str, Any]:
        """Return the object of a response that failed."""
        return {**self.begun("failed"), "error": {"code": code, "message": message}}

    def finished(
        self, prompt: Prompt, piece: Piece, output: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the object at its end, from the answer's whole Piece."""
        body = self.begun(status_of(piece)) | {"output": output, "usage": _usage(prompt, piece)}
        if body["status"] == INCOMPLETE:
            return {**body, "incomplete_details": {"reason": "max_output_tokens"}}
        return {**body, "completed_at": int(time.time())}


def status_of(piece: Piece) -> str:
    """Return how an answer ended."""
    return INCOMPLETE if piece.finish_reason == "length" else COMPLETED


def _usage(prompt: Prompt, piece: Piece) -> dict[str, Any]:
    counts = counts_of(prompt, piece)
    return {
        "input_tokens": counts.prompt,
        "input_tokens_details": {
            "cached_tokens": counts.cached,
            "cache_write_tokens": counts.written,
            **counts.truth,
        },
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.prompt + counts.output,
    }
