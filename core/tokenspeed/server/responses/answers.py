"""What the responses API answers, as types."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from tokenspeed.server.http.answers import Answer, MatchEnd

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Answer, frozen=True, tag="output_text"):
    """Text of a message."""

    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputReasoningText(Answer, frozen=True, tag="reasoning_text"):
    """Text of a thinking."""

    text: str


class OutputMessage(Answer, frozen=True, tag="message"):
    """What was said."""

    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(Answer, frozen=True, tag="reasoning"):
    """What was thought."""

    id: str
    status: Status
    summary: list[Any]
    content: list[OutputReasoningText]
    encrypted_content: str | None


class OutputCall(Answer, frozen=True, tag="function_call"):
    """A call, in the client's own words for its tools."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputDetails(Answer, frozen=True):
    """The cache's part; what is not known is missing."""

    cached_tokens: int
    cache_write_tokens: int
    recomputed_tokens: int | UnsetType = UNSET
    match_ends: list[MatchEnd] | UnsetType = UNSET


class ResponseOutputDetails(Answer, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int


class ResponseUsage(Answer, frozen=True):
    """What was computed."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseError(Answer, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Answer, frozen=True):
    """Why a response is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseBody(Answer, frozen=True, kw_only=True, tag="response", tag_field="object"):
    """The response object: what was asked, how it stands, and what came of it."""

    id: str
    created_at: int
    completed_at: int | UnsetType = UNSET
    background: Literal[False]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    previous_response_id: str | None
    max_output_tokens: int | None
    reasoning: dict[str, Any] | None
    model: str
    temperature: float
    top_p: float
    tool_choice: Any
    parallel_tool_calls: bool
    metadata: dict[str, str]
    tools: list[dict[str, Any]]
    prompt_cache_key: str | None
    service_tier: Literal["default"]
    store: bool
    text: dict[str, Any]
    top_logprobs: int
    truncation: Literal["disabled"]


class InputItems(Answer, frozen=True, tag="list", tag_field="object"):
    """A page of the items of a stored response's input."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Answer, frozen=True, tag="response", tag_field="object"):
    """A stored response that is gone."""

    id: str
    deleted: Literal[True]


class ResponseEvent(Answer, frozen=True):
    """One event of a streamed response; which of the fields it holds depends on its type."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "keepalive",
    ]
    sequence_number: int
    response: ResponseBody | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | OutputReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
