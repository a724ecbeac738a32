"""Request schemas of the Anthropic API of messages.

What nested objects hold beyond these fields is ignored: clients send blocks back as they got them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from tokenspeed.errors import RequestError
from tokenspeed.server.anthropic.tables import INERT, NEUTRAL
from tokenspeed.server.conversation.term_fields import CacheControl, TermFields, ttl_s
from tokenspeed.server.conversation.thinking import Budget, Effort, Thinking
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.http.schema import Lenient, unsupported
from tokenspeed.server.structured import output_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed.contracts.grammar import GrammarSpec

MAX_STOPS = 64
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
"""Types of content blocks that are read."""


class Marked(Lenient):
    """A block that may carry a mark: keep the prompt up to here."""

    cache_control: CacheControl | None = None

    def retentions_s(self) -> Iterator[float]:
        """Yield for how long its marks keep the prompt."""
        yield ttl_s(self.cache_control)


class TextBlock(Marked):
    type: Literal["text"]
    text: str


class ThinkingBlock(Marked):
    """Thinking of an earlier turn; where it was not shown, the signature holds it."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Marked):
    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Marked):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Marked):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] = ""
    is_error: bool = False

    def retentions_s(self) -> Iterator[float]:
        """Yield the times of the marks inside too."""
        yield from super().retentions_s()
        for block in self.content if isinstance(self.content, list) else ():
            yield from block.retentions_s()


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class MessageParam(Lenient):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    def retentions_s(self) -> Iterator[float]:
        """Yield for how long its blocks' marks keep the prompt."""
        for block in self.content if isinstance(self.content, list) else ():
            yield from block.retentions_s()


class ToolParam(Marked):
    """A tool; those of another type than "custom" are the vendor's own, and are not run here."""

    type: str | None = None
    name: str = Field("", max_length=256)
    description: str = ""
    input_schema: dict[str, Any] | None = None
    strict: bool = False


class ToolChoiceParam(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingParam(Lenient):
    """Whether to think, and how many tokens of it at most."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Budget | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputConfig(Lenient):
    effort: Effort | None = None
    format: Any = None


class PromptFields(TermFields):
    """What makes a prompt: the fields of /v1/messages/count_tokens."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[TextBlock] = ""
    tools: list[ToolParam] = Field(default=[])
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None
    output_format: Any = None
    cache_control: CacheControl | None = None

    @classmethod
    def prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Refuse by name what blocks ask beyond this version."""
        messages = given.get("messages")
        for index, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                _check_blocks(message.get("content"), f"messages.{index}.content")
        return given

    @property
    def grammar(self) -> GrammarSpec | None:
        """Return the language that is asked for, by the field's name of today or its first one.

        Raises:
            RequestError: the format is not as needed, or both fields ask.
        """
        newer = self.output_config.format if self.output_config is not None else None
        if newer is not None and self.output_format is not None:
            raise RequestError(
                "output_format and output_config.format each ask for a language; give one of them",
                param="output_format",
            )
        if newer is not None:
            return output_format(newer, "output_config.format")
        older = self.output_format
        return output_format(older, "output_format") if older is not None else None

    @property
    def asked_thinking(self) -> Thinking:
        """Return how much the answer is to think; clients send a budget to any model."""
        effort = self.output_config.effort if self.output_config is not None else None
        if self.thinking is None:
            return Thinking(effort)
        is_enabled = self.thinking.type != "disabled"
        return Thinking(effort, is_enabled, self.thinking.budget_tokens if is_enabled else None)

    @property
    def has_marks(self) -> bool:
        """Whether the client asks for something to be cached."""
        return max(self.retentions_s()) > 0

    def retentions_s(self) -> Iterator[float]:
        """Yield the times of all marks: in system, tools and messages, and of the whole."""
        yield from super().retentions_s()
        yield ttl_s(self.cache_control)
        for block in self.system if isinstance(self.system, list) else ():
            yield from block.retentions_s()
        for tool in self.tools:
            yield from tool.retentions_s()
        for message in self.messages:
            yield from message.retentions_s()


class MessagesRequest(PromptFields):
    """The body of /v1/messages."""

    max_tokens: Integer
    stream: bool = False
    stop_sequences: list[str] = Field(default=[], max_length=MAX_STOPS)
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer = 0


def _check_blocks(content: Any, place: str) -> None:
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind not in BLOCKS:
            what = f"only {', '.join(BLOCKS)} blocks are"
            raise unsupported(f"{place}.{number}.type", kind, what)
        if kind == "tool_result":
            _check_texts(block.get("content"), f"{place}.{number}.content")


def _check_texts(content: Any, place: str) -> None:
    for number, block in enumerate(content if isinstance(content, list) else ()):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(f"{place}.{number}.type", kind, "only text blocks are")
