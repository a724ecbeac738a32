"""The bodies of one plain completion, with `echo` and integer `logprobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.server.openai.replies import CompletionLogprobs, envelope, prompt_logprobs, usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.server.generation import Generation
    from tokenspeed.server.openai.schemas import CompletionRequest
    from tokenspeed.server.pieces import Piece
    from tokenspeed.tokenizer.tokenizer import Tokenizer


class CompletionReply:
    """Writes the answer of one request, whole or in chunks."""

    def __init__(
        self, request: CompletionRequest, generation: Generation, tokenizer: Tokenizer
    ) -> None:
        self._request = request
        self._generation = generation
        self._tokenizer = tokenizer
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._opened: set[int] = set()
        self.head = envelope(generation.request_id, "text_completion", request.model)

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return a choice, or a chunk's: what is new about it; an echo comes with its first."""
        opens = self._request.echo and index not in self._opened
        self._opened.add(index)
        return {
            "index": index,
            "text": (self._prompt_text(index) if opens else "") + piece.text,
            "logprobs": self._token_logprobs(index, piece, opens=opens),
            "finish_reason": piece.finish_reason,
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the body of a request that does not stream."""
        choices = [self.choice(index, piece) for index, piece in enumerate(pieces)]
        if self._request.prompt_logprobs is not None:
            for choice, piece in zip(choices, pieces, strict=True):
                choice["prompt_logprobs"] = prompt_logprobs(self._tokenizer, piece.prompt_logprobs)
        return {**self.head, "choices": choices, "usage": usage(self._generation.prompts, pieces)}

    def _prompt_text(self, index: int) -> str:
        prompt = self._generation.prompt_of(index)
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(list(prompt.token_ids), skip_special_tokens=False)

    def _token_logprobs(self, index: int, piece: Piece, *, opens: bool) -> dict[str, Any] | None:
        if self._request.logprobs is None:
            return None
        writer = self._logprobs.setdefault(index, CompletionLogprobs(self._tokenizer))
        if not opens:
            return writer.of(piece.logprobs)
        return writer.of(
            (*piece.prompt_logprobs, *piece.logprobs),
            prompt_ids=self._generation.prompt_of(index).token_ids,
            prompt_text=self._prompt_text(index),
        )
