"""Request schemas of the OpenAI API, as far as this version supports them.

pydantic checks the types; `fields.py` has already refused what is unknown or not built, and
`SamplingParams.validate` checks the ranges. Knows no tokens and no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import ConfigDict, Field

from tokenspeed.engine.submits import MAX_TIMEOUT_S
from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import NEUTRAL_MESSAGE, known_fields, shorten

if TYPE_CHECKING:
    from tokenspeed.server.http.field_limits import FieldLimits

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_SESSION_CHARS = 512
MAX_RETENTION_S = 24 * 3600
MAX_SALT_CHARS = 256
"""Of `cache_salt`: the engine keeps it beside each session's and each block's place."""


class _Strict(pydantic.BaseModel):
    """No coercion: "3" is not 3 and true is not 1."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class CacheControl(_Strict):
    """Anthropic's mark: keep the prompt up to here."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class CacheBreakpoint(_Strict):
    """OpenAI's mark: keep the prompt up to here; without `ttl` as long as the request says."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheOptions(_Strict):
    """OpenAI's options of the prompt cache."""

    mode: Literal["implicit"] = "implicit"
    ttl: Literal["30m"] = "30m"


class TextPart(_Strict):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class ChatMessage(_Strict):
    """One message; `name` and the reasoning are for the chat template, which may show them."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None
    reasoning_content: str | None = None
    cache_control: CacheControl | None = None


class StreamOptions(_Strict):
    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class _Sampling(_Strict):
    """Fields that chat and plain completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = {}
    prompt_logprobs: int | None = None
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)
    cache_salt: str = Field("", max_length=MAX_SALT_CHARS)
    prompt_cache_key: str = Field("", max_length=MAX_SESSION_CHARS)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] = "in_memory"
    prompt_cache_options: CacheOptions | None = None
    cache_retention_s: float = Field(0.0, ge=0, le=MAX_RETENTION_S)
    timeout_s: float | None = Field(None, gt=0, le=MAX_TIMEOUT_S)


class ChatRequest(_Sampling):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] = {}


class CompletionRequest(_Sampling):
    prompt: Any
    """str | list[str] | list[int] | list[list[int]]; `prompts.py` tells them apart."""
    echo: bool = False
    logprobs: int | None = None


class TokenizeRequest(_Strict):
    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeRequest(_Strict):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False


Schema = TypeVar("Schema", bound=pydantic.BaseModel)


def read_request(schema: type[Schema], body: Any, limits: FieldLimits) -> Schema:
    """Check a decoded JSON body against a schema and the limits of its fields.

    Raises:
        RequestError: names the first offending field, its value and what is allowed.
    """
    if not isinstance(body, dict):
        raise RequestError(
            f"the body is a JSON {_json_type(body)}, a JSON object is needed; send one"
        )
    # A field of the schema is never "not built" there, whatever another route says.
    given = known_fields(body, frozenset(schema.model_fields))
    limits.check_lengths(given)
    if isinstance(given.get("messages"), list):
        given["messages"] = [_known_message(i, item) for i, item in enumerate(given["messages"])]
    try:
        return schema.model_validate(given)
    except pydantic.ValidationError as error:
        raise _request_error(error) from None


def _known_message(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    place = f"messages.{index}"
    if message.get("role") in ("tool", "function"):
        raise _unsupported(f"{place}.role", message["role"], "tools are")
    _refuse_parts(place, message.get("content"))
    names = frozenset(ChatMessage.model_fields)
    return known_fields(message, names, neutral=NEUTRAL_MESSAGE, inert={}, prefix=place + ".")


def _refuse_parts(place: str, content: Any) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise _unsupported(f"{place}.content.{index}.type", kind, "only text parts are")


def _unsupported(param: str, value: Any, what: str) -> RequestError:
    verb = f"{what} supported" if what.startswith("only") else f"{what} not supported"
    return RequestError(
        f"{param} is {shorten(value)}: {verb} in this version; remove it",
        param=param,
        code="unsupported_parameter",
    )


def _request_error(error: pydantic.ValidationError) -> RequestError:
    errors = error.errors(include_url=False)
    same = [item for item in errors if item["loc"][0] == errors[0]["loc"][0]]
    # Of a union's branches, the one that the value's type fits says what is wrong with it.
    first = next((item for item in same if not item["type"].endswith("_type")), same[0])
    named = [part for part in first["loc"] if isinstance(part, int) or part.islower()]
    param = ".".join(str(part)[:64] for part in named if part not in _UNION_TAGS)
    if first["type"] == "missing":
        return RequestError(f"{param} is missing; it is required, add it", param=param)
    allowed = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "model_type":  # pydantic would name a class of ours
        allowed = "input should be an object"
    return RequestError(f"{param} is {shorten(first['input'])}: {allowed}; change it", param=param)


_UNION_TAGS = frozenset({"str", "int", "list[str]", "list[int]", "list[list[int]]"})


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", str: "string", int: "number", float: "number", list: "array"}
    return names.get(type(value), type(value).__name__)
