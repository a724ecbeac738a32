"""Parser slot: splits the text of an answer into content, reasoning and tool calls while it comes.

Parsers work on text, after the detokenizer and after stop strings, in API processes: no torch. An
offer's `facts["parses"]` names what it splits off, of `PARSES`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tokenspeed.contracts.conversation import Tool, ToolChoice

if TYPE_CHECKING:
    from tokenspeed.contracts.grammar import GrammarSpec

REASONING, TOOL_CALLS = "reasoning", "tool_calls"
PARSES = (REASONING, TOOL_CALLS)
PROMPT_END_CHARS = 256
"""How much of the prompt's text an answer's parser is shown."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new about one tool call.

    Args:
        index: of the call in the answer.
        call_id, name: with its first delta.
        arguments: next piece of the JSON text of its arguments.
    """

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class BadToolCall:
    """A call that the model began and did not write well: it fails the answer, by name.

    Args:
        reason: what is wrong, such as "arguments are no JSON object: ...".
        text: what the model wrote from the call's opening mark on; cut by who shows it.
        is_unfinished: nothing is wrong but that the text ended: an answer that was cut by its
            length keeps the deltas before it.
    """

    reason: str
    text: str
    is_unfinished: bool = False


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """What is new about an answer; pieces of one kind add up in the order they come.

    Args:
        reasoning: text of the model's thinking; before the content of the same delta.
        content: text of the answer itself.
        tool_calls: in the order of their index.
        bad_call: ends what can be parsed; marks of the format never stand in `content`.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    bad_call: BadToolCall | None = None


@dataclass(frozen=True, slots=True)
class AnswerStart:
    """What is known before the first text.

    Args:
        prompt_end: last `PROMPT_END_CHARS` of the prompt as the chat template rendered it: some
            templates open the block of reasoning themselves.
        tools: what may be called; arguments of formats that write values without their types are
            read by these schemas. Without any, and with mode "none", calls are not looked for.
        tool_choice: which of them.
    """

    prompt_end: str = ""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)


@dataclass(frozen=True, slots=True)
class ThinkingForm:
    """How the thinking of an answer is written.

    Args:
        opens: text that opens it.
        ends: texts each of which ends it.
        close: text that ends it when its budget is used up; the answer goes on behind it.
        is_repeated: it may be opened again, anywhere in the answer; else it stands at its head.
    """

    opens: str
    ends: tuple[str, ...]
    close: str
    is_repeated: bool = False


def looks_for_calls(tools: tuple[Tool, ...], choice: ToolChoice) -> bool:
    """Say whether calls are looked for in an answer; if not, marks of calls are text."""
    return bool(tools) and choice.mode != "none"


class AnswerParser(Protocol):
    """One answer. The sums of what it returns do not depend on how the text is cut.

    Required: feed, finish, is_reasoning. Each call costs time in proportion to its new text.
    """

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next is reasoning, as far as is known; counts tokens."""
        ...

    def feed(self, text: str) -> ParsedDelta:
        """Take the next text; return what is now certain."""
        ...

    def finish(self) -> ParsedDelta:
        """Return what was held back; nothing is fed afterwards. The text may end anywhere."""
        ...


class Parser(Protocol):
    """What an offer's `load()` returns: makes a parser for each answer; holds no state of any.

    Required: markers, opens, reasoning_end, structures, start; `structures` declares structure,
    which is optional, and so is `thinking`. The offer's facts say which models it is for, so that
    it can be chosen by itself: `facts["template_marks"]`, texts that their chat templates all hold,
    and `facts["model_types"]`, as config.json names them; either may be left out.
    """

    markers: tuple[str, ...]
    """Texts it looks for. They are shown to it even where the tokenizer holds them for special
    tokens, which answers leave out otherwise."""
    opens: tuple[str, ...]
    """Those of them that begin a call: such a call ends a block of reasoning that was not closed,
    whoever parses that. (): calls stand in content only, or it parses no calls."""
    reasoning_end: str
    """The one that ends the reasoning: a grammar holds from there on. "": it parses none."""
    structures: bool
    """Whether it has `structure`."""
    thinking: ThinkingForm | None
    """How the reasoning is written, so that a budget can end it; None, or left out: none can."""

    def start(self, start: AnswerStart) -> AnswerParser:
        """Return the parser of one answer."""
        ...

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of an answer whose calls obey the schemas of strict tools.

        Of the whole answer if the parser parses the reasoning too, else of what follows that.
        With "auto" text may stand before the calls; with "required" and "named" the answer is
        calls only. None: these tools cannot be written so.
        """
        ...
