"""One choice of an answer: committed tokens in, text pieces out.

Turns the Deltas of one engine request into Pieces: detokenised text with stop strings applied,
the reasoning that a parser split off, logprobs and the finish reason. Pieces add up, so that a slow
client gets fewer, longer ones.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.contracts.parser import ToolCallDelta
from tokenspeed.errors import EngineError, TimeLimitError, ToolCallError
from tokenspeed.tokenizer.answer_text import AnswerText

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.contracts.parser import ParsedDelta
    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.engine.messages import CacheReport, Delta
    from tokenspeed.sampling.params import SamplingParams
    from tokenspeed.server.parsers import GuardedAnswer
    from tokenspeed.tokenizer.tokenizer import Tokenizer

_MAX_CALL_CHARS = 500
"""Of a call that cannot be read: how much of it an error shows."""


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Something new about one choice.

    Args:
        text: new text; may be empty while a character or a stop string is incomplete.
        reasoning: new text that a parser split off as thinking; it stands before `text`.
        tool_calls: what is new about calls, by index; deltas of one call are one here.
        num_tokens: output tokens behind it.
        reasoning_tokens: those of them that came as reasoning.
        logprobs: one entry a token, when asked for.
        prompt_logprobs: one entry a prompt token but the first, once, when asked for.
        cached_tokens: prompt tokens taken from the cache; -1: not known yet.
        drafts: guessed tokens that were verified, and those of them that were right.
        embedding: the hidden state behind the prompt, once, when asked for.
        cache: the rest of what the cache did for the prompt; None: not known yet.
        finish_reason: None while it goes on, else "stop" or "length".
        stop_text: the stop string that ended it.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    num_tokens: int = 0
    reasoning_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = -1
    drafts: tuple[int, int] = (0, 0)
    cache: CacheReport | None = None
    embedding: bytes | None = None
    finish_reason: str | None = None
    stop_text: str = ""

    def __add__(self, later: Piece) -> Piece:
        return join_pieces((self, later))


def join_pieces(pieces: Sequence[Piece]) -> Piece:
    """Add up consecutive pieces of one choice."""
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        text="".join([piece.text for piece in pieces]),
        reasoning="".join([piece.reasoning for piece in pieces]),
        tool_calls=join_calls(tuple(chain.from_iterable([p.tool_calls for p in pieces]))),
        num_tokens=sum([piece.num_tokens for piece in pieces]),
        reasoning_tokens=sum([piece.reasoning_tokens for piece in pieces]),
        logprobs=tuple(chain.from_iterable([piece.logprobs for piece in pieces])),
        prompt_logprobs=tuple(chain.from_iterable([piece.prompt_logprobs for piece in pieces])),
        cached_tokens=max([piece.cached_tokens for piece in pieces], default=-1),
        drafts=(sum([piece.drafts[0] for piece in pieces]), sum([p.drafts[1] for p in pieces])),
        cache=next((piece.cache for piece in pieces if piece.cache is not None), None),
        embedding=next((piece.embedding for piece in pieces if piece.embedding), None),
        finish_reason=next((p.finish_reason for p in reversed(pieces) if p.finish_reason), None),
        stop_text=next((piece.stop_text for piece in reversed(pieces) if piece.stop_text), ""),
    )


def join_calls(calls: tuple[ToolCallDelta, ...]) -> tuple[ToolCallDelta, ...]:
    """Add up deltas of tool calls: one of each call, in the order of their index."""
    if len(calls) < 2:
        return calls
    by_index: dict[int, list[ToolCallDelta]] = {}
    for call in calls:
        by_index.setdefault(call.index, []).append(call)
    return tuple(_joined(by_index[index]) for index in sorted(by_index))


def _joined(deltas: list[ToolCallDelta]) -> ToolCallDelta:
    return ToolCallDelta(
        deltas[0].index,
        next((delta.call_id for delta in deltas if delta.call_id), ""),
        next((delta.name for delta in deltas if delta.name), ""),
        "".join([delta.arguments for delta in deltas]),
    )


def read(parsed: ParsedDelta, *, is_cut: bool = False) -> Piece:
    """Return the Piece of what a parser told.

    Args:
        is_cut: the answer ended by its length: what is unfinished then is no mistake.
    Raises:
        ToolCallError: the model wrote a call that cannot be read.
    """
    if parsed.bad_call is not None and not (is_cut and parsed.bad_call.is_unfinished):
        text = parsed.bad_call.text[:_MAX_CALL_CHARS]
        raise ToolCallError(
            f"the model wrote a tool call that cannot be read: {parsed.bad_call.reason}; it wrote "
            f"{text!r}; ask again, or constrain it with strict tools",
            text=text,
        )
    return Piece(parsed.content, parsed.reasoning, join_calls(parsed.tool_calls))


class TextAssembler:
    """Builds the Pieces of one choice; told of each Delta in order.

    Args:
        params: `stop`, `min_tokens`, `include_stop_text` are applied here.
        stop_token_ids: ids whose own text is not part of the answer when they end it.
        parser: splits reasoning and calls off; None: all text is the answer's.
        shown_ids: special tokens that the parser must see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        stop_token_ids: frozenset[int],
        *,
        parser: GuardedAnswer | None = None,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._parser = parser
        self._text = AnswerText(
            tokenizer,
            stop=params.stop,
            include_stop_text=params.include_stop_text,
            min_tokens=params.min_tokens,
            stop_token_ids=stop_token_ids,
            shown_ids=shown_ids,
        )

    def push(self, delta: Delta) -> Piece:
        """Return what a Delta adds; its `finish_reason` is "stop" when a stop string matched.

        Raises:
            EngineError: the engine gave the request up.
            TimeLimitError: its time is over.
        """
        if delta.finish_reason == "timeout":
            raise TimeLimitError(
                "the request's own time limit (timeout_s) passed before its answer was complete; "
                "allow more time, or ask for fewer tokens"
            )
        if delta.finish_reason in ("error", "abort"):
            raise EngineError(delta.error or f"the engine ended the request: {delta.finish_reason}")
        new = self._whole(delta) if self._parser is None else self._split(delta, self._parser)
        used = new.num_tokens
        return msgspec.structs.replace(
            new,
            logprobs=(delta.logprobs or ())[:used],
            prompt_logprobs=delta.prompt_logprobs or (),
            cached_tokens=delta.cached_tokens,
            drafts=delta.drafts,
            cache=delta.cache,
            embedding=delta.embedding,
            finish_reason="stop" if self._text.is_stopped else delta.finish_reason,
            stop_text=self._text.stop_text,
        )

    def _whole(self, delta: Delta) -> Piece:
        text, used = self._text.push(delta.tokens, finish_reason=delta.finish_reason)
        return Piece(text=text, num_tokens=used)

    def _split(self, delta: Delta, parser: GuardedAnswer) -> Piece:
        """Feed the parser token by token, so that each is counted where its text belongs."""
        pieces = list(self._each_fed(delta, parser))
        if self._text.is_stopped or delta.finish_reason is not None:
            is_cut = delta.finish_reason == "length" and not self._text.is_stopped
            pieces.append(read(parser.finish(), is_cut=is_cut))
        return join_pieces(pieces)

    def _each_fed(self, delta: Delta, parser: GuardedAnswer) -> Iterator[Piece]:
        for token in delta.tokens[:-1]:
            yield self._fed(parser, (token,), None)
            if self._text.is_stopped:
                return
        yield self._fed(parser, delta.tokens[-1:], delta.finish_reason)

    def _fed(
        self, parser: GuardedAnswer, tokens: tuple[int, ...], finish_reason: str | None
    ) -> Piece:
        text, used = self._text.push(tokens, finish_reason=finish_reason)
        parsed, is_reasoning = parser.feed(text)
        return msgspec.structs.replace(
            read(parsed), num_tokens=used, reasoning_tokens=used if is_reasoning else 0
        )
