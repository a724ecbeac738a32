"""The sampling parameters of one request. No torch here: API processes use it too."""

from __future__ import annotations

import math

import msgspec

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.contracts.thinking import ThinkingBudget
from tokenspeed.errors import RequestError

MAX_LOGPROBS = 20
MAX_GRAMMAR_CHARS = 1 << 18
"""Of a schema or grammar: what takes longer to compile than anybody waits is longer still."""

MIN_TEMPERATURE = 1e-5
"""Below it an answer is greedy: logits that are divided by less are no finite numbers any more."""
MAX_TOKENS = 2**31 - 1
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (1, MAX_TOKENS),
    "min_tokens": (0, MAX_TOKENS),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
"""Field -> least and greatest value."""
ABOVE_ZERO = frozenset({"top_p"})
"""Fields whose least value is not allowed itself."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose tokens and when to stop.

    Args:
        temperature: 0 is greedy, and so is what is below MIN_TEMPERATURE.
        top_k: keep the k most likely; 0 keeps all.
        top_p: keep the smallest set whose probability reaches p, in (0, 1].
        min_p: drop tokens below min_p times the best one's probability, in [0, 1].
        seed: any 64-bit integer; None: the engine gives one.
        repetition_penalty: > 1 discourages tokens of prompt and output; in [0.01, 100].
        frequency_penalty, presence_penalty: in [-2, 2], over the output.
        logit_bias: token id -> value in [-100, 100] added to its logit.
        max_tokens: output tokens at most; None: what fits into the context.
        min_tokens: no stop before this many output tokens.
        stop: strings that end the output; not part of it unless `include_stop_text`.
        stop_token_ids: token ids that end the output.
        ignore_eos: go on after the model's own end token.
        logprobs: None, or how many top alternatives to return beside each sampled token (0..20).
        prompt_logprobs: the same for prompt tokens; such a request computes its whole prompt.
        grammar: the language that the answer is kept in; it ends only where the language may, and
            there although `min_tokens` are not reached if nothing can follow.
        thinking: how many tokens it may think; None: as many as it likes.
        embeds: return the hidden state behind the prompt too; needs a max_tokens of 1, whose token
            is of no interest.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_text: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None
    thinking: ThinkingBudget | None = None
    embeds: bool = False

    def validate(self, vocab_size: int) -> None:
        """Check every field's range.

        Raises:
            RequestError: names the field, the value and what is allowed.
        """
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None:
                _check_range(name, value, low, high, low_open=name in ABOVE_ZERO)
        _check_range("min_tokens", self.min_tokens, 0, self.max_tokens or MAX_TOKENS)
        for text in self.stop:
            if not text:
                raise RequestError("stop: an empty string; give non-empty strings", param="stop")
        for token_id in self.stop_token_ids:
            _check_range("stop_token_ids", token_id, 0, vocab_size - 1)
        for token_id, value in (self.logit_bias or {}).items():
            _check_range("logit_bias", token_id, 0, vocab_size - 1)
            _check_range("logit_bias", value, -100.0, 100.0)
        if self.grammar is not None:
            _check_grammar(self.grammar, self.ignore_eos)
        if self.embeds and self.max_tokens != 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens}, an embedding needs 1: nothing is generated; set "
                "it to 1",
                param="max_tokens",
            )
        if self.thinking is not None:
            _check_thinking(self.thinking, vocab_size)


def _check_grammar(grammar: GrammarSpec, ignore_eos: bool) -> None:
    if ignore_eos:
        raise RequestError(
            "ignore_eos is true, but an answer in a language ends where the language does; set "
            "ignore_eos to false, or leave out the grammar",
            param="ignore_eos",
        )
    if len(grammar.text) > MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"the grammar has {len(grammar.text)} characters, at most {MAX_GRAMMAR_CHARS} are "
            "allowed; shorten it",
            param="grammar",
        )


def _check_thinking(thinking: ThinkingBudget, vocab_size: int) -> None:
    _check_range("thinking.tokens", thinking.tokens, 0, 2**31 - 1)
    if not all((thinking.close, *thinking.ends)):
        raise RequestError(
            "thinking: a mark without tokens; close and each of ends need one token or more, give "
            "them",
            param="thinking",
        )
    marks = (*thinking.close, *thinking.opens, *thinking.spaces)
    for token_id in (*marks, *(token for end in thinking.ends for token in end)):
        _check_range("thinking", token_id, 0, vocab_size - 1)


def _check_range(
    name: str, value: float, low: float, high: float, *, low_open: bool = False
) -> None:
    too_low = value <= low if low_open else value < low
    if too_low or value > high or not math.isfinite(value):
        bracket = "(" if low_open else "["
        raise RequestError(
            f"{name} is {value}, allowed is {bracket}{low}, {high}]; change or omit it", param=name
        )
