"""Request schemas of the OpenAI API, as far as this version supports them.

pydantic checks the types; the tables have already refused what is unknown or not built, and
`SamplingParams.validate` checks the ranges. Knows no tokens and no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from tokenspeed.server.conversation.term_fields import (
    TTL_S,
    CacheControl,
    OpenAiTermFields,
    ttl_s,
)
from tokenspeed.server.conversation.thinking import (
    BUDGET_FIELDS,
    Budget,
    Effort,
    Thinking,
    budget_of,
)
from tokenspeed.server.http.fields import known_fields
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.http.schema import Body, Lenient, Strict, unsupported, with_tables
from tokenspeed.server.openai.open_fields import (
    Choices,
    JsonSchema,
    Pattern,
    PromptForms,
    ResponseFormat,
    StructuredOutputs,
)
from tokenspeed.server.openai.tables import INERT, NEUTRAL, NEUTRAL_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

MAX_CHOICES = 128
MAX_STOPS = 16


class CacheBreakpoint(Strict):
    """OpenAI's mark: keep the prompt up to here; without `ttl` as long as the request says."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class TextPart(Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    def retentions_s(self) -> Iterator[float]:
        """Yield for how long its marks keep the prompt."""
        yield ttl_s(self.cache_control)
        if self.prompt_cache_breakpoint is not None:
            yield TTL_S[self.prompt_cache_breakpoint.ttl or "30m"]


class CalledFunction(Lenient):
    name: str
    arguments: str = ""


class ChatToolCall(Lenient):
    """A call of an assistant's turn, as the answer that made it spelled it."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Strict):
    """One message; `name` and the reasoning are for the chat template, which may show them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] = Field(default=[])
    tool_call_id: str = ""
    cache_control: CacheControl | None = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Say in the JSON schema what the table says."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return with_tables(schema, NEUTRAL_MESSAGE, {})

    def retentions_s(self) -> Iterator[float]:
        """Yield for how long its marks keep the prompt."""
        yield ttl_s(self.cache_control)
        for part in self.content if isinstance(self.content, list) else ():
            yield from part.retentions_s()


class FunctionTool(Lenient):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(Lenient):
    """A function that may be called."""

    type: Literal["function"]
    function: FunctionTool
    cache_control: CacheControl | None = None


class ChosenFunction(Lenient):
    name: str


class NamedChoice(Lenient):
    """The one function that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _Sampling(OpenAiTermFields):
    """Fields that chat and plain completions share."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Integer = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: Integer | None = None
    min_tokens: Integer = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Integer = 0
    min_p: float = 0.0
    seed: Integer | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[Integer] = Field(default=[])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = Field(default={})
    prompt_logprobs: Integer | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs = None
    guided_json: JsonSchema = None
    guided_regex: Pattern = None
    guided_choice: Choices = None
    guided_grammar: Pattern = None


class ChatRequest(_Sampling):
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] = Field(default=[])
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    thinking_budget: Budget | None = None
    thinking_token_budget: Budget | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool = False
    top_logprobs: Integer | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})

    @classmethod
    def prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Look at messages and tools: what they hold beyond this version is named."""
        return _known_tools(_known_messages(given))

    @property
    def thinking(self) -> Thinking:
        """Return how much the answer is to think."""
        budget, field = budget_of({name: getattr(self, name) for name in BUDGET_FIELDS})
        return Thinking(self.reasoning_effort, budget=budget, field=field)

    def retentions_s(self) -> Iterator[float]:
        """Yield the times of the marks in messages and tools too."""
        yield from super().retentions_s()
        for message in self.messages:
            yield from message.retentions_s()
        for tool in self.tools:
            yield ttl_s(tool.cache_control)


class CompletionRequest(_Sampling):
    ids_field: ClassVar[str] = "prompt"

    prompt: PromptForms
    echo: bool = False
    logprobs: Integer | None = None


class TokenizeRequest(Body):
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[ChatTool] = Field(default=[])
    add_special_tokens: bool = True
    add_generation_prompt: bool = True

    @classmethod
    def prepared(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Look at messages and tools, as chat does."""
        return _known_tools(_known_messages(given))


class DetokenizeRequest(Body):
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    inert: ClassVar[Mapping[str, str]] = INERT

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


_MESSAGE_FIELDS = frozenset(ChatMessage.model_fields)


def _known_messages(given: dict[str, Any]) -> dict[str, Any]:
    messages = given.get("messages")
    if not isinstance(messages, list):
        return given
    return {**given, "messages": [_known_message(i, item) for i, item in enumerate(messages)]}


def _known_message(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    place = f"messages.{index}"
    if message.get("role") == "function":
        raise unsupported(f"{place}.role", message["role"], "functions are")
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise unsupported(f"{place}.content.{number}.type", kind, "only text parts are")
    return known_fields(
        message, _MESSAGE_FIELDS, neutral=NEUTRAL_MESSAGE, inert={}, prefix=place + "."
    )


def _known_tools(given: dict[str, Any]) -> dict[str, Any]:
    tools = given.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            raise unsupported(f"tools.{number}.type", kind, "only functions are")
    return given
