"""Response bodies of the OpenAI API: whole answers, stream chunks, usage, logprobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tokenspeed.tokenizer.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.pieces import Piece
    from tokenspeed.tokenizer.tokenizer import Tokenizer


def envelope(request_id: str, kind: str, model: str) -> dict[str, Any]:
    """Return the fields that every body and chunk of a request starts with."""
    return {"id": request_id, "object": kind, "created": int(time.time()), "model": model}


def usage(
    prompts: Sequence[Prompt], pieces: Sequence[Piece], *, counts_reasoning: bool = False
) -> dict[str, Any]:
    """Count tokens; a prompt with several choices counts once, with its best cache hit.

    Beside OpenAI's fields, `prompt_tokens_details` says what the cache did not do and why. Guesses
    of a speculator are told as OpenAI tells predicted tokens.

    Args:
        counts_reasoning: a parser told reasoning apart; say how many tokens it was.
    """
    per_prompt = len(pieces) // len(prompts)
    prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    completion_tokens = sum(piece.num_tokens for piece in pieces)
    best = [
        max(pieces[i * per_prompt : (i + 1) * per_prompt], key=lambda piece: piece.cached_tokens)
        for i in range(len(prompts))
    ]
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": _cache_details(best),
    }
    details: dict[str, int] = {}
    if counts_reasoning:
        details["reasoning_tokens"] = sum(piece.reasoning_tokens for piece in pieces)
    drafted, accepted = (sum(piece.drafts[i] for piece in pieces) for i in range(2))
    if drafted:
        details["accepted_prediction_tokens"] = accepted
        details["rejected_prediction_tokens"] = drafted - accepted
    if details:
        counts["completion_tokens_details"] = details
    return counts


def _cache_details(best: Sequence[Piece]) -> dict[str, Any]:
    """Say what the cache did for each prompt, from the piece of its best choice."""
    details: dict[str, Any] = {"cached_tokens": sum(max(0, item.cached_tokens) for item in best)}
    reports = [piece.cache for piece in best if piece.cache is not None]
    if len(reports) < len(best):
        return details
    again = sum(report.recomputed for report in reports)
    details["cache_write_tokens"] = again + sum(report.created for report in reports)
    details["recomputed_tokens"] = again
    details["match_ends"] = [
        {"position": report.match_end, "reason": report.reason} for report in reports
    ]
    return details


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the `logprobs` object of a chat choice."""
    content = []
    for entry in entries:
        top = [_chat_token(tokenizer, token_id, value) for token_id, value in entry.top]
        content.append(
            {**_chat_token(tokenizer, entry.token_id, entry.logprob), "top_logprobs": top}
        )
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token_id),
        "logprob": finite(logprob),
        "bytes": list(tokenizer.token_bytes(token_id)),
    }


def finite(logprob: float) -> float:
    """Return a logprob as JSON can carry it: -inf is shown as -9999, as OpenAI does."""
    return max(logprob, -9999.0)


class CompletionLogprobs:
    """Builds the `logprobs` object of one plain completion, which counts text offsets."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._offset = 0

    def of(
        self,
        entries: Sequence[TokenLogprobs],
        *,
        prompt_ids: Sequence[int] = (),
        prompt_text: str = "",
    ) -> dict[str, Any]:
        """Return the object for the next tokens.

        Args:
            prompt_ids: tokens of the echoed prompt; the first has no logprob, and `entries` begins
                with those of the others.
            prompt_text: the echoed text.
        """
        tokens: list[str] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets = self._prompt_offsets(prompt_ids, prompt_text)
        if prompt_ids:
            tokens.append(self._tokenizer.token_text(prompt_ids[0]))
            values.append(None)
            tops.append(None)
        for entry in entries:
            tokens.append(self._tokenizer.token_text(entry.token_id))
            values.append(finite(entry.logprob))
            tops.append(self._top(entry))
        for entry in entries[max(0, len(prompt_ids) - 1) :]:
            offsets.append(self._offset)
            self._offset += len(self._detokenizer.push((entry.token_id,)))
        return {
            "tokens": tokens,
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _prompt_offsets(self, ids: Sequence[int], text: str) -> list[int]:
        """Return where each token begins in `text`; special tokens may be spelled in it or not."""
        detokenizer = Detokenizer(self._tokenizer)
        offsets: list[int] = []
        position = 0
        for token in ids:
            offsets.append(position)
            new = detokenizer.push((token,))
            if token in self._tokenizer.special_token_ids:
                spelled = self._tokenizer.token_text(token)
                new = spelled if text.startswith(spelled, position) else ""
            position = min(len(text), position + len(new))
        self._offset += len(text)
        return offsets

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        pairs = entry.top or ((entry.token_id, entry.logprob),)
        return {self._tokenizer.token_text(token): finite(value) for token, value in pairs}


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]
) -> list[dict[str, Any] | None]:
    """Return the `prompt_logprobs` extension: null for the first token, then id -> values."""
    result: list[dict[str, Any] | None] = [None]
    for entry in entries:
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(entry.top, start=1)}
        ranked.setdefault(entry.token_id, (entry.logprob, entry.rank))
        result.append(
            {
                str(token): {
                    "logprob": finite(value),
                    "rank": rank,
                    "decoded_token": tokenizer.token_text(token),
                }
                for token, (value, rank) in ranked.items()
            }
        )
    return result
