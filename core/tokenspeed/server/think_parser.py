"""Reasoning between `<think>` and `</think>` at the head of an answer: Qwen3, DeepSeek-R1 and kin.

The block may have been opened by the chat template. Newlines around the reasoning and before the
content belong to the format, not to the text: chat templates write them again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import ParsedDelta

if TYPE_CHECKING:
    from tokenspeed.contracts.parser import AnswerStart

OPEN, CLOSE = "<think>", "</think>"
NEWLINES = "\r\n"


class _Place(Enum):
    """Where the next text belongs.

    BEFORE --<think>--> INSIDE --</think>--> AFTER --text--> CONTENT
       `------------- any other text --------------------------^
    """

    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()
    CONTENT = auto()


class ThinkParser:
    """Makes the parser of an answer."""

    markers = (OPEN, CLOSE)
    reasoning_end = CLOSE

    def start(self, start: AnswerStart) -> ThinkAnswer:
        """Begin inside the block where the prompt ends with an open one."""
        return ThinkAnswer(is_open=start.prompt_end.rstrip().endswith(OPEN))


class ThinkAnswer:
    """Splits one answer; holds back only what may still become a tag, and newlines before one."""

    def __init__(self, *, is_open: bool) -> None:
        self._place = _Place.INSIDE if is_open else _Place.BEFORE
        self._has_begun = False
        self._held = ""

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning."""
        return self._place is _Place.INSIDE

    def feed(self, text: str) -> ParsedDelta:
        """Take the next text."""
        self._held += text
        if self._place is _Place.BEFORE:
            self._look_for_block()
        reasoning = self._take_reasoning() if self._place is _Place.INSIDE else ""
        return ParsedDelta(reasoning, self._take_content())

    def finish(self) -> ParsedDelta:
        """Give what was held back: a block that was never closed is reasoning to its end."""
        held, self._held = self._held, ""
        if self._place is _Place.INSIDE:
            return ParsedDelta(reasoning=held.rstrip(NEWLINES))
        return ParsedDelta(content=held if self._place is _Place.BEFORE else "")

    def _look_for_block(self) -> None:
        head = self._held.lstrip()
        if head.startswith(OPEN):
            self._place, self._held = _Place.INSIDE, head[len(OPEN) :]
        elif not OPEN.startswith(head):
            self._place = _Place.CONTENT

    def _take_reasoning(self) -> str:
        if not self._has_begun:
            self._held = self._held.lstrip(NEWLINES)
            self._has_begun = bool(self._held)
        text, close, rest = self._held.partition(CLOSE)
        if close:
            self._place, self._held = _Place.AFTER, rest
            return text.rstrip(NEWLINES)
        text = self._held[: _certain(self._held)]
        self._held = self._held[len(text) :]
        return text

    def _take_content(self) -> str:
        if self._place is _Place.AFTER:
            self._held = self._held.lstrip(NEWLINES)
            if self._held:
                self._place = _Place.CONTENT
        if self._place is not _Place.CONTENT:
            return ""
        text, self._held = self._held, ""
        return text


def _certain(text: str) -> int:
    """Return how much of `text` is reasoning whatever comes: not the head of a tag at its end."""
    end = len(text)
    for length in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-length:]):
            end -= length
            break
    return len(text[:end].rstrip(NEWLINES))
