"""Runs a reader of a format as an `AnswerParser`, and collects what it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import BadToolCall, ParsedDelta, ToolCallDelta
from tokenspeed.parsers.source import BadCall, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.parsers.source import Emit, Steps

    Script = Callable[[Source, "Told"], Steps[None]]

SPACES = " \t\r\n"
NOTHING = ParsedDelta()


class EndOfAnswer(Exception):
    """A reader wants nothing more, however much follows."""


class Told:
    """What a reader has told since it was last asked."""

    def __init__(self) -> None:
        self.is_reasoning = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[int, str, str]] = []
        self._arguments: list[list[str]] = []

    def content(self, text: str) -> None:
        """Tell text of the answer."""
        self._content.append(text)

    def reasoning(self, text: str) -> None:
        """Tell text of the thinking."""
        self._reasoning.append(text)

    def call(self, index: int, call_id: str, name: str) -> None:
        """Tell that a call begins."""
        self._calls.append((index, call_id, name))
        self._arguments.append([])

    def arguments(self, index: int, text: str) -> None:
        """Tell the next piece of the arguments of the call that began last."""
        if not self._calls:
            self.call(index, "", "")
        self._arguments[-1].append(text)

    def take(self, bad_call: BadToolCall | None = None) -> ParsedDelta:
        """Return it as one delta, with one entry a call, and forget it."""
        if not (self._content or self._reasoning or self._calls or bad_call):
            return NOTHING
        calls = tuple(
            ToolCallDelta(*call, "".join(texts))
            for call, texts in zip(self._calls, self._arguments, strict=True)
        )
        delta = ParsedDelta("".join(self._reasoning), "".join(self._content), calls, bad_call)
        for told in (self._content, self._reasoning, self._calls, self._arguments):
            told.clear()
        return delta


class ScriptedAnswer:
    """One answer, read by a script; whatever follows the script's end is left out."""

    def __init__(self, script: Script) -> None:
        self._source = Source()
        self._told = Told()
        self._steps: Steps[None] | None = script(self._source, self._told)
        next(self._steps)  # up to where it waits: `is_reasoning` is known before any text

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next is reasoning."""
        return self._told.is_reasoning

    def feed(self, text: str) -> ParsedDelta:
        """Take the next text."""
        return self._go_on(text)

    def finish(self) -> ParsedDelta:
        """Say that the text is over."""
        self._source.end()
        return self._go_on("")

    def _go_on(self, text: str) -> ParsedDelta:
        if self._steps is None:
            return NOTHING
        self._source.feed(text)
        bad_call = None
        try:
            next(self._steps)
        except (StopIteration, EndOfAnswer):
            self._steps = None
        except BadCall as bad:
            self._steps = None
            text = self._source.recorded(with_rest=bad.is_unfinished)
            bad_call = BadToolCall(str(bad), text, bad.is_unfinished)
        return self._told.take(bad_call)


class Stretch:
    """Passes text on without some characters at its ends.

    Args:
        head: characters to drop at the beginning.
        tail: characters to hold back at the end, until it is known whether more follows.
        before: stands before the first text that is passed on.
    """

    def __init__(self, emit: Emit, *, head: str = "", tail: str = "", before: str = "") -> None:
        self._emit = emit
        self._head = head
        self._tail = tail
        self._held = before
        self._has_begun = False
        self.has_told = False

    def feed(self, text: str) -> None:
        """Take the next text."""
        if not self._has_begun:
            text = text.lstrip(self._head)
        if not text:
            return
        self._has_begun = True
        solid = text.rstrip(self._tail)
        if solid:
            self._emit(self._held + solid)
            self._held, self.has_told = "", True
        self._held += text[len(solid) :]

    def end(self, *, keeps_tail: bool = False) -> None:
        """Drop what is held back, or pass it on."""
        if keeps_tail and self._has_begun and self._held:
            self._emit(self._held)
        self._held = ""
