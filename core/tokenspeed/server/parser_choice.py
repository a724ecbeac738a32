"""Which parsers a server uses: `--tool-parser` and `--reasoning-parser`, by name or by themselves.

"auto" takes the offer whose facts fit the model best: most marks found in the chat template (all
of an offer's must be there), then the model's type; of equals the first by pin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import REASONING, TOOL_CALLS
from tokenspeed.errors import CapabilityError, PluginError, plugin_code, told
from tokenspeed.kernels.not_offered import not_offered
from tokenspeed.parsers.together import Together
from tokenspeed.server.parsers import NONE, AnswerFormat, ChosenParsers

if TYPE_CHECKING:
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.parser import Parser
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.plugins import Registry
    from tokenspeed.tokenizer.chat import ChatTemplate

    Found = RegisteredOffer[Offer]

AUTO = "auto"
SETTINGS = {TOOL_CALLS: "tool_parser", REASONING: "reasoning_parser"}


class ParserChooser:
    """Chooses parsers for one model.

    Args:
        template: the model's chat template, if it has one.
        model_type: as config.json or the GGUF file names it; "": unknown.
    """

    def __init__(
        self, registry: Registry, *, template: ChatTemplate | None, model_type: str = ""
    ) -> None:
        self._offers = registry.offers("parser")
        self._source = template.source if template is not None else ""
        self._takes_tools = template is not None and "tools" in template.reads
        self._model_type = model_type

    def choose(self, *, tools: str, reasoning: str) -> ChosenParsers:
        """Load the parsers that the settings name.

        Args:
            tools, reasoning: NAME, PLUGIN/NAME, "auto" or "none".
        Raises:
            PluginError: a parser cannot be loaded.
            CapabilityError: no loaded plugin offers it, or several do.
        """
        calls = self._of(TOOL_CALLS, tools)
        thoughts = self._of(REASONING, reasoning)
        pins = {TOOL_CALLS: calls, REASONING: thoughts}
        return ChosenParsers(
            form=_form(thoughts, calls),
            pins=tuple((part, found.pin if found else NONE) for part, found in pins.items()),
            refusal=self._refusal(calls, tools),
        )

    def _of(self, part: str, name: str) -> Found | None:
        able = [item for item in self._offers if part in item.offer.facts["parses"]]
        if name == NONE:
            return None
        return self._detected(able, part) if name == AUTO else _named(able, part, name)

    def _detected(self, able: list[Found], part: str) -> Found | None:
        if part == TOOL_CALLS and not self._takes_tools:
            return None
        fitting = [item for item in able if self._fit(item) > (0, False)]
        by_pin = sorted(fitting, key=lambda item: item.pin)
        return max(by_pin, key=self._fit, default=None)

    def _fit(self, item: Found) -> tuple[int, bool]:
        """Say how well an offer fits the model; (0, False): not at all."""
        facts = item.offer.facts
        marks = facts.get("template_marks", ())
        has_all = all(mark in self._source for mark in marks)
        is_type = bool(self._model_type) and self._model_type in facts.get("model_types", ())
        return (len(marks) if has_all else 0, is_type)

    def _refusal(self, calls: Found | None, name: str) -> str:
        if not self._takes_tools:
            return (
                "the model's chat template knows no tools, so that it would not see them; send no "
                "tools, or serve a model whose template has them"
            )
        if calls is not None:
            return ""
        if name == NONE:
            return "this server reads no tool calls (--tool-parser none); send no tools"
        return (
            "no parser is known for the calls of this model's chat template; send no tools, or "
            "start the server with --tool-parser NAME"
        )


def _named(able: list[Found], part: str, name: str) -> Found:
    named = [item for item in able if name in (item.pin, item.offer.name)]
    if len(named) == 1:
        return named[0]
    if named:
        pins = ", ".join(item.pin for item in named)
        raise CapabilityError(
            f"{SETTINGS[part]} {name!r} is offered by {pins}; name one with its plugin",
            id="pin-unknown",
        )
    raise not_offered(SETTINGS[part], name, (item.pin for item in able))


def _form(thoughts: Found | None, calls: Found | None) -> AnswerFormat | None:
    """Load what was found, one offer once, and put it together."""
    loaded = {item.pin: _loaded(item) for item in (thoughts, calls) if item is not None}
    if not loaded:
        return None
    parsers = tuple(loaded.values())
    parts = {REASONING: thoughts, TOOL_CALLS: calls}
    pin = " + ".join(loaded)
    try:
        with plugin_code():
            return AnswerFormat(
                pin,
                parsers[0] if len(parsers) == 1 else Together(*parsers),
                parses=[part for part, found in parts.items() if found is not None],
            )
    except Exception as error:
        raise PluginError(
            f"parser {pin} cannot say what it looks for: {told(error)}; markers is a tuple of "
            "texts, reasoning_end a text, structures a bool; choose another parser",
            id="offer-load-failed",
        ) from error


def _loaded(found: Found) -> Parser:
    try:
        with plugin_code():
            parser: Parser = found.offer.load()
    except Exception as error:
        raise PluginError(
            f"plugin {found.plugin_id} {found.plugin_version} failed at load of "
            f"parser/{found.offer.name}: {told(error)}; choose another parser",
            id="offer-load-failed",
        ) from error
    return parser
