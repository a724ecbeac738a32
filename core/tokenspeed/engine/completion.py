"""One offline answer while it grows: deltas in, text out, stop strings applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.tokenizer.answer_text import AnswerText

if TYPE_CHECKING:
    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.engine.messages import Delta, Submit
    from tokenspeed.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished answer.

    Args:
        text: without special tokens, and without what ended it unless `include_stop_text`.
        token_ids: all output tokens, the one that ended it included.
        finish_reason: "stop", "length", "timeout", or "error" (see `error`).
        cached_tokens: prompt tokens taken from the cache.
        logprobs, prompt_logprobs: when asked for; prompt entries start at the second token.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


class Completion:
    """Builds one RequestOutput; told of every delta of its request in order."""

    def __init__(
        self, submit: Submit, prompt_token_ids: tuple[int, ...], tokenizer: Tokenizer
    ) -> None:
        params = submit.params
        self.request_id = submit.request_id
        self.finish_reason: str | None = None
        self.embedding: bytes | None = None
        self._prompt_token_ids = prompt_token_ids
        self._answer = AnswerText(
            tokenizer,
            stop=params.stop,
            include_stop_text=params.include_stop_text,
            min_tokens=params.min_tokens,
            stop_token_ids=submit.stop_token_ids,
        )
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
        self._cached_tokens = 0
        self._error: str | None = None

    def push(self, delta: Delta) -> str:
        """Take a delta and return the new text; sets `finish_reason` at the end."""
        self._cached_tokens = max(self._cached_tokens, delta.cached_tokens)
        self.embedding = delta.embedding or self.embedding
        self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        self._error = delta.error
        new, used = self._answer.push(delta.tokens, finish_reason=delta.finish_reason)
        self._token_ids += delta.tokens[:used]
        self._logprobs += (delta.logprobs or ())[:used]
        self.finish_reason = "stop" if self._answer.is_stopped else delta.finish_reason
        self._text.append(new)
        return new

    def output(self) -> RequestOutput:
        """Return the finished answer."""
        assert self.finish_reason is not None, "the answer goes on"
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=self._prompt_token_ids,
            text="".join(self._text),
            token_ids=tuple(self._token_ids),
            finish_reason=self.finish_reason,
            cached_tokens=self._cached_tokens,
            logprobs=tuple(self._logprobs) or None,
            prompt_logprobs=self._prompt_logprobs,
            error=self._error,
        )
