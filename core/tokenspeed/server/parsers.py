"""The parsers of a server's chat answers, as requests use them; guarded against mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import ToolChoice
from tokenspeed.contracts.parser import (
    PROMPT_END_CHARS,
    REASONING,
    TOOL_CALLS,
    AnswerParser,
    AnswerStart,
    ParsedDelta,
    Parser,
    ThinkingForm,
    ToolCallDelta,
)
from tokenspeed.contracts.thinking import ThinkingBudget
from tokenspeed.errors import EngineError, plugin_code, shown, told
from tokenspeed.parsers.together import Together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tokenspeed.contracts.conversation import Tool
    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.tokenizer.tokenizer import Tokenizer

ANY_CALL = ToolChoice()
SPACES = (" ", "\n", "\n\n", "\r\n")
"""What a model may write before it opens its thinking."""
NONE = "none"


class AnswerFormat:
    """What splits answers: one parser, or two that work together.

    Args:
        pin: PLUGIN/NAME of it, or of both, for errors.
        parses: what it splits off, of `PARSES`.
    """

    def __init__(self, pin: str, parser: Parser, parses: Iterable[str] = (REASONING,)) -> None:
        self.pin = pin
        self.parses = frozenset(parses)
        self._parser = parser
        # Read once, at the start: a fault in them is no request's.
        self._markers = tuple(parser.markers)
        self._reasoning_end = str(getattr(parser, "reasoning_end", ""))
        self._structures = bool(getattr(parser, "structures", False))
        self._thinking: ThinkingForm | None = getattr(parser, "thinking", None)

    def shown_ids(self, tokenizer: Tokenizer, *, reads_calls: bool = True) -> frozenset[int]:
        """Return the special tokens that the parser must see in an answer's text.

        Args:
            reads_calls: calls are looked for; if not, their marks stay out of the text.
        """
        ids = {tokenizer.backend.token_to_id(mark) for mark in self._marks(reads_calls)}
        return frozenset(tokenizer.special_token_ids & ids)

    def _marks(self, reads_calls: bool) -> tuple[str, ...]:
        if not reads_calls and isinstance(self._parser, Together):
            return self._parser.thoughts
        is_needed = reads_calls or REASONING in self.parses
        # One that reads both finds its way by the marks of both, whatever it was chosen for.
        return self._markers if is_needed or self._reasoning_end else ()

    def start(
        self,
        prompt: str | None,
        *,
        tools: tuple[Tool, ...] = (),
        tool_choice: ToolChoice = ANY_CALL,
    ) -> GuardedAnswer:
        """Begin an answer to a prompt."""
        end = (prompt or "")[-PROMPT_END_CHARS:]
        start = AnswerStart(prompt_end=end, tools=tools, tool_choice=tool_choice)
        return GuardedAnswer(self.pin, lambda: self._parser.start(start))

    def language_start(self, prompt: str | None, *, of_calls: bool = False) -> str:
        """Return the mark behind which a grammar holds; "": from the first token on.

        Args:
            of_calls: the grammar is that of `structure`.
        """
        mark = self._reasoning_end
        covers_all = of_calls and not isinstance(self._parser, Together)
        return "" if covers_all or (prompt or "").rstrip().endswith(mark) else mark

    @property
    def thinking(self) -> ThinkingForm | None:
        """Return how thinking is written; None: it cannot be bounded."""
        return self._thinking if REASONING in self.parses else None

    def budget(
        self, tokens: int, prompt: str | None, tokenizer: Tokenizer, *, reads_calls: bool
    ) -> ThinkingBudget | None:
        """Return a budget in tokens of this model; None: nothing is thought behind this prompt.

        Args:
            reads_calls: calls are looked for: one ends the thinking too.
        """
        form, end = self.thinking, (prompt or "").rstrip()
        if form is None or (not form.is_repeated and end.endswith(form.ends)):
            return None

        def ids(text: str) -> tuple[int, ...]:
            return tuple(tokenizer.encode(text, add_special_tokens=False))

        spaces = [found[0] for found in map(ids, SPACES) if len(found) == 1]
        calls: tuple[str, ...] = getattr(self._parser, "opens", ()) if reads_calls else ()
        return ThinkingBudget(
            tokens,
            close=ids(form.close),
            ends=tuple(map(ids, (*form.ends, *calls))),
            opens=ids(form.opens),
            spaces=tuple(spaces),
            is_open=end.endswith(form.opens),
            is_repeated=form.is_repeated,
        )

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of an answer whose calls obey their schemas; None: it has none.

        Raises:
            EngineError: the parser failed; names the plugin.
        """
        if not self._structures:
            return None
        try:
            with plugin_code():
                return self._parser.structure(tools, choice)
        except Exception as error:
            raise _failed(self.pin, "structure", error) from error


@dataclass(frozen=True, slots=True)
class ChosenParsers:
    """What a server parses its answers with.

    Args:
        form: None: answers are left as they are.
        pins: what it parses -> PLUGIN/NAME, or "none".
        refusal: why tools that may be called are refused, and what to do; "": they are not.
    """

    form: AnswerFormat | None = None
    pins: tuple[tuple[str, str], ...] = ((TOOL_CALLS, NONE), (REASONING, NONE))
    refusal: str = ""


class GuardedAnswer:
    """One answer's parser; what goes wrong in it fails this request and names the plugin."""

    def __init__(self, pin: str, start: Callable[[], AnswerParser]) -> None:
        self._pin = pin
        try:
            with plugin_code():
                self._answer = start()
        except Exception as error:
            raise _failed(pin, "start", error) from error

    def feed(self, text: str) -> tuple[ParsedDelta, bool]:
        """Take the next text; return what is certain, and whether it was fed as reasoning."""
        try:
            with plugin_code():
                was_reasoning = self._answer.is_reasoning
                parsed = _checked(self._answer.feed(text))
                return parsed, was_reasoning or self._answer.is_reasoning
        except Exception as error:
            raise _failed(self._pin, "feed", error) from error

    def finish(self) -> ParsedDelta:
        """Return what was held back."""
        try:
            with plugin_code():
                return _checked(self._answer.finish())
        except Exception as error:
            raise _failed(self._pin, "finish", error) from error


def _checked(parsed: object) -> ParsedDelta:
    if not isinstance(parsed, ParsedDelta):
        raise TypeError(f"{shown(parsed)} is no ParsedDelta")
    if not isinstance(parsed.content, str) or not isinstance(parsed.reasoning, str):
        raise TypeError(f"{shown(parsed)} holds something else than text")
    if not all(isinstance(call, ToolCallDelta) for call in parsed.tool_calls):
        raise TypeError(f"{shown(parsed)} holds a call that is no ToolCallDelta")
    return parsed


def _failed(pin: str, step: str, error: Exception) -> EngineError:
    return EngineError(
        f"parser {pin} failed at {step}: {told(error)}; this is a mistake of "
        "the plugin: report it to its author, or serve without the parser"
    )
