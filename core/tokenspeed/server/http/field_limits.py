"""Refuses overlong fields of a JSON body by counting bytes, before they become Python objects.

A body may have tens of MiB. Each field arrives as the bytes that the JSON scanner found for it.
The quotes say how many texts it holds; with the texts taken out, brackets and commas say how many
values. What passes costs no more to decode and check than an honest request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import RequestError
from tokenspeed.tokenizer.chat import MAX_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

MAX_PROMPTS = 256
MAX_STOP_TOKEN_IDS = 1024
MAX_BIASES = 65_536
MAX_OTHER_BYTES = 1 << 20
"""JSON bytes of any field but the ones that carry text and token ids."""
_TEXT = re.compile(rb'"[^"]*"')
_BACKSLASHES = re.compile(rb"\\*")
_WINDOW_BYTES = 1 << 18
_MIN_DETOKENIZED = 65_536
_SHORT_BYTES = 65_536
_VALUES_A_MESSAGE = 16
_TURNS = ("messages", "input")
_LONG_FIELDS = frozenset({"prompt", "tokens", "system", "instructions", "tools", *_TURNS})


@dataclass(frozen=True, slots=True)
class FieldLimits:
    """How much one field may hold, for one model.

    Args:
        max_prompt_tokens: longest prompt.
        max_context_tokens: longest context.
    """

    max_prompt_tokens: int
    max_context_tokens: int

    def check_raw(self, name: str, raw: bytes) -> None:
        """Refuse a field by its JSON text.

        Raises:
            RequestError: it holds more than can ever be of use; names it and the numbers.
        """
        if len(raw) <= _SHORT_BYTES:
            return
        if name not in _LONG_FIELDS:
            _check_count(name, len(raw), MAX_OTHER_BYTES, "bytes")
        elif name not in ("tokens", "prompt"):
            _check_values(name, raw, MAX_MESSAGES * _VALUES_A_MESSAGE, "values")
        elif name == "tokens":
            _check_values(name, raw, self.max_detokenized, "token ids")
        elif raw[:1] == b"[":
            self._check_prompts(raw)

    def check_lengths(self, given: dict[str, Any]) -> None:
        """Refuse decoded lists that are too long, before each item is looked at.

        Raises:
            RequestError: names the field and the numbers.
        """
        _check_length("tokens", given.get("tokens"), self.max_detokenized, "token ids")
        _check_length("stop_token_ids", given.get("stop_token_ids"), MAX_STOP_TOKEN_IDS, "ids")
        _check_length("logit_bias", given.get("logit_bias"), MAX_BIASES, "token ids")
        for name in _TURNS:
            messages = given.get(name)
            if isinstance(messages, list) and messages and type(messages[0]) is int:
                continue  # token ids to embed: the model says how many
            _check_length(name, messages, MAX_MESSAGES, "messages")
            for index, message in enumerate(messages if isinstance(messages, list) else ()):
                content = message.get("content") if isinstance(message, dict) else None
                _check_length(f"{name}.{index}.content", content, MAX_MESSAGES, "parts")

    @property
    def max_detokenized(self) -> int:
        """Token ids that /detokenize takes."""
        return max(self.max_context_tokens, _MIN_DETOKENIZED)

    def _check_prompts(self, raw: bytes) -> None:
        counts = _counts(raw)
        _check_count("prompt", counts.texts, MAX_PROMPTS, "prompts")
        values, lists = counts.commas + 1, counts.lists - 1
        if counts.texts or lists:
            _check_count("prompt", lists or values, MAX_PROMPTS, "prompts")
            _check_count("prompt", values, MAX_PROMPTS * self.max_prompt_tokens, "token ids")
        else:
            self.check_prompt_tokens(values)

    def check_prompt_tokens(self, count: int, param: str = "prompt") -> None:
        """Refuse a prompt of more tokens than ever fit.

        Agents know by the words "prompt is too long: N tokens > M maximum" and "maximum context
        length is N tokens" that they must compact their conversation.

        Raises:
            RequestError: with the code of the OpenAI API for that.
        """
        if count > self.max_prompt_tokens:
            raise RequestError(
                f"prompt is too long: {count} tokens > {self.max_prompt_tokens} maximum. This "
                f"model's maximum context length is {self.max_context_tokens} tokens, and {param} "
                f"has {count} tokens; reduce the length of the {param}",
                param=param,
                code="context_length_exceeded",
            )


def _check_values(name: str, raw: bytes, most: int, unit: str) -> None:
    counts = _counts(raw)
    _check_count(name, counts.texts, most, unit)
    # Of two values beside each other a comma stands between; others are nested.
    _check_count(name, counts.commas + counts.lists + counts.objects, most, unit)


@dataclass(slots=True)
class _Counts:
    """What a JSON text holds: texts, and how often a mark stands outside of them."""

    texts: int = 0
    commas: int = 0
    lists: int = 0
    objects: int = 0


def _counts(raw: bytes) -> _Counts:
    """Count in windows: one long scan would hold the interpreter."""
    counts, num_quotes = _Counts(), 0
    for window in _windows(raw):
        plain = b'"' * (num_quotes % 2) + _without_escapes(window)
        num_quotes += plain.count(b'"') - num_quotes % 2
        outside = _TEXT.sub(b"", plain).partition(b'"')[0]  # behind the last one a text goes on
        counts.commas += outside.count(b",")
        counts.lists += outside.count(b"[")
        counts.objects += outside.count(b"{")
    counts.texts = num_quotes // 2
    return counts


def _windows(raw: bytes) -> Iterator[bytes]:
    """Cut a JSON text, at no place within an escape."""
    start = 0
    while start < len(raw):
        end = start + _WINDOW_BYTES
        if raw[end - 1 : end] == b"\\":
            match = _BACKSLASHES.match(raw, end)
            end = (match.end() if match else end) + 1
        yield raw[start:end]
        start = end


def _without_escapes(raw: bytes) -> bytes:
    """Drop escaped backslashes and quotes: each quote that is left begins or ends a text."""
    return raw.replace(b"\\\\", b"").replace(b'\\"', b"")


def _check_length(name: str, value: Sized | Any, most: int, unit: str) -> None:
    if isinstance(value, list | dict):
        _check_count(name, len(value), most, unit)


def _check_count(name: str, count: int, most: int, unit: str) -> None:
    if count > most:
        raise RequestError(
            f"{name} holds {count} {unit} or more, at most {most} are allowed; send fewer",
            param=name,
        )
