"""The reasoning parser of a server: chosen by `--reasoning-parser`, guarded against mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import ToolChoice
from tokenspeed.contracts.parser import (
    PROMPT_END_CHARS,
    REASONING,
    AnswerParser,
    AnswerStart,
    ParsedDelta,
    Parser,
)
from tokenspeed.errors import CapabilityError, EngineError, PluginError
from tokenspeed.kernels.not_offered import not_offered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.conversation import Tool
    from tokenspeed.contracts.grammar import GrammarSpec
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.plugins import Registry
    from tokenspeed.tokenizer.tokenizer import Tokenizer


ANY_CALL = ToolChoice()


class ReasoningParser:
    """The parser that was chosen.

    Args:
        pin: PLUGIN/NAME, for errors.
        parses: what it splits off, of `PARSES`.
    """

    def __init__(self, pin: str, parser: Parser, parses: Sequence[str] = (REASONING,)) -> None:
        self.pin = pin
        self.parses = frozenset(parses)
        self._parser = parser

    def shown_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the special tokens that the parser must see in an answer's text."""
        ids = {tokenizer.backend.token_to_id(marker) for marker in self._parser.markers}
        return frozenset(tokenizer.special_token_ids & ids)

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
        mark: str = getattr(self._parser, "reasoning_end", "")
        return "" if (prompt or "").rstrip().endswith(mark) else mark

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of an answer whose calls obey their schemas; None: it has none."""
        return None


class GuardedAnswer:
    """One answer's parser; what goes wrong in it fails this request and names the plugin."""

    def __init__(self, pin: str, start: Callable[[], AnswerParser]) -> None:
        self._pin = pin
        try:
            self._answer = start()
        except Exception as error:
            raise self._failed("start", error) from error

    def feed(self, text: str) -> tuple[ParsedDelta, bool]:
        """Take the next text; return what is certain, and whether it was fed as reasoning."""
        try:
            was_reasoning = self._answer.is_reasoning
            parsed = _checked(self._answer.feed(text))
            return parsed, was_reasoning or self._answer.is_reasoning
        except Exception as error:
            raise self._failed("feed", error) from error

    def finish(self) -> ParsedDelta:
        """Return what was held back."""
        try:
            return _checked(self._answer.finish())
        except Exception as error:
            raise self._failed("finish", error) from error

    def _failed(self, step: str, error: Exception) -> EngineError:
        return EngineError(
            f"reasoning parser {self._pin} failed at {step}: {type(error).__name__}: {error}; this "
            "is a mistake of the plugin: report it to its author, or serve without the parser"
        )


def _checked(parsed: object) -> ParsedDelta:
    if isinstance(parsed, ParsedDelta):
        return parsed
    raise TypeError(f"{parsed!r} is no ParsedDelta")


def reasoning_parser_of(name: str, registry: Registry) -> ReasoningParser | None:
    """Load the parser that the setting names; None where it names none.

    Args:
        name: NAME or PLUGIN/NAME.
    Raises:
        PluginError: the parser cannot be loaded.
        CapabilityError: no loaded plugin offers it, or several do.
    """
    if not name:
        return None
    chosen = _chosen(name, registry.offers("parser"))
    try:
        return ReasoningParser(chosen.pin, chosen.offer.load(), parses=chosen.offer.facts["parses"])
    except Exception as error:
        raise PluginError(
            f"plugin {chosen.plugin_id} {chosen.plugin_version} failed at load of "
            f"parser/{chosen.offer.name}: {type(error).__name__}: {error}; choose another parser",
            id="offer-load-failed",
        ) from error


def _chosen(name: str, offers: tuple[RegisteredOffer[Offer], ...]) -> RegisteredOffer[Offer]:
    able = [item for item in offers if REASONING in item.offer.facts["parses"]]
    named = [item for item in able if name in (item.pin, item.offer.name)]
    if len(named) == 1:
        return named[0]
    pins = ", ".join(item.pin for item in (named or able))
    if named:
        raise CapabilityError(
            f"reasoning_parser {name!r} is offered by {pins}; name one with its plugin",
            id="pin-unknown",
        )
    raise not_offered("reasoning_parser", name, (item.pin for item in able))
