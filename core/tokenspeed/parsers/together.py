"""A parser of reasoning and one of calls, from different offers, as one parser.

The calls are read from what the first leaves as content. Models also call without closing their
reasoning: a call inside it ends it.

   text --> reasoning --content--> calls
                |                    ^
                `--- a call opens ---'   tried: if a call really begins there, the reasoning is
                                         over; if not, the mark is part of the thoughts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import ParsedDelta, looks_for_calls
from tokenspeed.parsers.script import ScriptedAnswer
from tokenspeed.parsers.source import Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokenspeed.contracts.conversation import Tool, ToolChoice
    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.contracts.parser import AnswerParser, AnswerStart, Parser, ThinkingForm
    from tokenspeed.parsers.script import Told
    from tokenspeed.parsers.source import Source, Steps

TRIED_CHARS = 2048
"""How far a mark inside reasoning is read until it must have named a call."""


class Together:
    """Makes the parser of an answer; a call in the reasoning begins with one of `opens`."""

    def __init__(self, reasoning: Parser, calls: Parser) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self.thoughts = reasoning.markers
        # Parsers of before these existed do not say them.
        self.opens: tuple[str, ...] = getattr(calls, "opens", ())
        self.reasoning_end: str = getattr(reasoning, "reasoning_end", "")
        self.thinking: ThinkingForm | None = getattr(reasoning, "thinking", None)
        self.structures: bool = getattr(calls, "structures", False)
        self.markers = tuple(dict.fromkeys((*reasoning.markers, *calls.markers)))

    def start(self, start: AnswerStart) -> AnswerParser:
        """Begin an answer in both."""
        is_asked = looks_for_calls(start.tools, start.tool_choice)
        return TogetherAnswer(
            self._reasoning.start(start),
            lambda: self._calls.start(start),
            opens=self.opens if is_asked else (),
            thoughts=self.thoughts,
        )

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of the calls."""
        return self._calls.structure(tools, choice)


class TogetherAnswer:
    """One answer.

    Args:
        start_calls: begins reading calls.
        thoughts: marks of the reasoning: dropped once a call has ended it.
    """

    def __init__(
        self,
        reasoning: AnswerParser,
        start_calls: Callable[[], AnswerParser],
        *,
        opens: tuple[str, ...],
        thoughts: tuple[str, ...],
    ) -> None:
        self._reasoning = reasoning
        self._start_calls = start_calls
        self._calls = start_calls()
        self._opens = Marks(*opens) if opens else None
        self._thoughts = thoughts
        self._held = ""
        self._trial: AnswerParser | None = None
        self._num_tried = 0
        self._content: AnswerParser | None = None

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next is reasoning."""
        return self._content is None and self._reasoning.is_reasoning

    def feed(self, text: str) -> ParsedDelta:
        """Take the next text."""
        if self._content is not None:
            return self._without_thoughts(self._calls.feed(text))
        if self._opens is None:
            return self._passed(self._reasoning.feed(text))
        self._held += text
        return added(self._look(self._opens, is_over=False))

    def finish(self) -> ParsedDelta:
        """Say that the text is over."""
        deltas = list(self._look(self._opens, is_over=True)) if self._opens else []
        if self._content is None:
            deltas += [self._passed(self._reasoning.finish()), self._calls.finish()]
        else:
            deltas += [self._without_thoughts(self._calls.finish()), self._content.finish()]
        return added(deltas)

    def _look(self, opens: Marks, *, is_over: bool) -> Iterable[ParsedDelta]:
        """Feed the reasoning what is held, up to a call that ends it."""
        while self._held and self._content is None:
            found = opens.pattern.match(self._held)
            if found is None:
                yield self._pass_on(self._num_before(opens, is_over=is_over))
                if not opens.pattern.match(self._held):
                    return
            elif not self._reasoning.is_reasoning:
                yield self._pass_on(found.end())
            else:
                tried = self._try(is_over=is_over)
                if tried is None:
                    return
                yield tried if self._content is not None else self._pass_on(found.end())

    def _num_before(self, opens: Marks, *, is_over: bool) -> int:
        """Return how much of the held text comes before what is or may become a mark."""
        found = opens.pattern.search(self._held)
        if found is not None:
            return found.start()
        return len(self._held) - (0 if is_over else opens.held(self._held, 0))

    def _pass_on(self, count: int) -> ParsedDelta:
        text, self._held = self._held[:count], self._held[count:]
        return self._passed(self._reasoning.feed(text))

    def _passed(self, parsed: ParsedDelta) -> ParsedDelta:
        """Read the calls in what the reasoning leaves as content."""
        calls = self._calls.feed(parsed.content) if parsed.content else ParsedDelta()
        return added((ParsedDelta(reasoning=parsed.reasoning), calls))

    def _try(self, *, is_over: bool) -> ParsedDelta | None:
        """Read the held text as a call; None: it is not known yet whether it is one.

        If it is, `_content` is set; if not, the delta says nothing.
        """
        if self._trial is None:
            self._trial, self._num_tried = self._start_calls(), 0
        text = self._held[self._num_tried : TRIED_CHARS]
        self._num_tried += len(text)
        parsed = self._trial.feed(text)
        if parsed.tool_calls:
            return self._end_reasoning(self._trial, parsed)
        is_none = parsed.bad_call is not None or bool(parsed.content)
        if not (is_none or is_over or self._num_tried == TRIED_CHARS):
            return None
        self._trial = None
        return ParsedDelta()

    def _end_reasoning(self, calls: AnswerParser, parsed: ParsedDelta) -> ParsedDelta:
        marks = Marks(*self._thoughts)
        self._content = ScriptedAnswer(lambda source, told: _drop(source, told, marks))
        self._calls = calls
        rest = calls.feed(self._held[self._num_tried :])
        self._held = ""
        thoughts = ParsedDelta(reasoning=self._reasoning.finish().reasoning)
        return added((thoughts, self._without_thoughts(added((parsed, rest)))))

    def _without_thoughts(self, parsed: ParsedDelta) -> ParsedDelta:
        """Drop the marks of the reasoning that stand in content after it was over."""
        assert self._content is not None
        content = self._content.feed(parsed.content).content
        return ParsedDelta(parsed.reasoning, content, parsed.tool_calls, parsed.bad_call)


def _drop(source: Source, told: Told, marks: Marks) -> Steps[None]:
    while (yield from source.until(marks, told.content)):
        pass


def added(deltas: Iterable[ParsedDelta]) -> ParsedDelta:
    """Return deltas that follow each other as one."""
    told = tuple(deltas)
    if len(told) == 1:
        return told[0]
    return ParsedDelta(
        reasoning="".join(delta.reasoning for delta in told),
        content="".join(delta.content for delta in told),
        tool_calls=tuple(call for delta in told for call in delta.tool_calls),
        bad_call=next((delta.bad_call for delta in told if delta.bad_call), None),
    )
