"""Request schemas of the OpenAI API of responses.

What items and tools hold beyond these fields is ignored: clients send them back as they got them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from tokenspeed.server.conversation.term_fields import OpenAiTermFields
from tokenspeed.server.conversation.thinking import (
    BUDGET_FIELDS,
    Budget,
    Effort,
    Thinking,
    budget_of,
)
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.http.schema import Lenient, Strict, unsupported
from tokenspeed.server.responses.tables import INERT, NEUTRAL

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXTS = ("input_text", "output_text", "text", "refusal")
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


class ResponseTextPart(Lenient):
    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(Lenient):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """Return what was said."""
        return self.refusal


Texts = str | list[Annotated[ResponseTextPart | RefusalPart, Field(discriminator="type")]]


class MessageItem(Lenient):
    """A message; its type may be left out, as `known_item` knows it by its role."""

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("type"))

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Texts


class FunctionCallItem(Lenient):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class FunctionOutputItem(Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: Texts


class ReasoningText(Lenient):
    text: str = ""


class ReasoningItem(Lenient):
    """Thinking of an earlier turn; what is called encrypted holds it whole."""

    type: Literal["reasoning"]
    summary: list[ReasoningText] = Field(default=[])
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None


class ItemReference(Lenient):
    """The id of an item that is stored with a response."""

    type: Literal["item_reference"]
    id: str


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem,
    Field(discriminator="type"),
]
GivenItem = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem | ItemReference,
    Field(discriminator="type"),
]


class ResponseTool(Lenient):
    """A function; a namespace of functions; or a tool that only the vendor runs."""

    type: str
    name: str = Field("", max_length=128)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[ResponseTool] = Field(default=[])


class NamedResponseTool(Lenient):
    type: Literal["function"]
    name: str
    namespace: str | None = None


class Reasoning(Lenient):
    effort: Effort | None = None
    summary: str | None = None


class TextOptions(Lenient):
    format: Any = None
    verbosity: str | None = None


class ResponseStreamOptions(Strict):
    include_obfuscation: bool = False


class ResponsesRequest(OpenAiTermFields):
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str
    input: str | list[GivenItem] = Field(default=[])
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Integer | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    tools: list[ResponseTool] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | NamedResponseTool = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    text: TextOptions | None = None
    include: list[str] = Field(default=[])
    metadata: dict[str, str] = Field(default={})

    @classmethod
    def prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Name what items and tools' choice ask beyond this version."""
        _check_choice(given.get("tool_choice"))
        included = given.get("include")
        if isinstance(included, list) and LOGPROBS in included:
            raise unsupported("include", LOGPROBS, "logprobs here are")
        items = given.get("input")
        if isinstance(items, list):
            given = {**given, "input": [known_item(item, i) for i, item in enumerate(items)]}
        return given

    @property
    def thinking(self) -> Thinking:
        """Return how much the answer is to think."""
        effort = self.reasoning.effort if self.reasoning is not None else None
        budget, field = budget_of({name: getattr(self, name) for name in BUDGET_FIELDS})
        return Thinking(effort, budget=budget, field=field)

    @property
    def format(self) -> Any:
        """Return the format that is asked for; None: text."""
        return self.text.format if self.text is not None else None

    @property
    def wants_encrypted(self) -> bool:
        """Whether the client carries the thinking, for a server that stores nothing."""
        return ENCRYPTED in self.include


def known_item(item: Any, index: int) -> Any:
    """Return an item with its type; one that cannot be read is refused by name."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type") or _type_of(item)
    place = f"input.{index}"
    if isinstance(kind, str) and kind not in ITEMS:
        raise unsupported(f"{place}.type", kind, f"only {', '.join(ITEMS)} items are")
    for name in ("content", "output"):
        parts = item.get(name) if kind != "reasoning" else None
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            said = part.get("type") if isinstance(part, dict) else None
            if isinstance(said, str) and said not in TEXTS:
                raise unsupported(f"{place}.{name}.{number}.type", said, "only text parts are")
    return item if kind is None else {**item, "type": kind}


def _type_of(item: dict[str, Any]) -> str | None:
    """Return the type that an item without one has by its fields."""
    if "role" in item:
        return "message"
    return "item_reference" if item.keys() - {"type"} == {"id"} else None


def _check_choice(choice: Any) -> None:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise unsupported("tool_choice.type", kind, "only function is")
