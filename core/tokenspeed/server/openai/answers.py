"""What the chat and completions API answers, as types; `Choice` and its like are one choice's."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from tokenspeed.server.http.answers import Answer, MatchEnd

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(Answer, frozen=True):
    """The cache's part; what is not known yet is missing."""

    cached_tokens: int
    cache_write_tokens: int | UnsetType = UNSET
    recomputed_tokens: int | UnsetType = UNSET
    match_ends: list[MatchEnd] | UnsetType = UNSET


class CompletionDetails(Answer, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(Answer, frozen=True):
    """What was computed; a prompt of several choices counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TokenChance(Answer, frozen=True):
    """A token and its logprob."""

    token: str
    logprob: float
    bytes: list[int]


class SampledToken(TokenChance, frozen=True):
    """A token of the answer and those that were likelier, or next to it."""

    top_logprobs: list[TokenChance]


class ChatLogprobs(Answer, frozen=True):
    """The logprobs of a chat's choice."""

    content: list[SampledToken]
    refusal: None


class PromptToken(Answer, frozen=True):
    """One token that could stand at a place of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptToken] | None]
"""null for the first token; for each other one token id -> what is known of it."""


class Function(Answer, frozen=True):
    """A call's function and its arguments, a JSON text."""

    name: str
    arguments: str


class ToolCall(Answer, frozen=True, tag="function"):
    """A call."""

    id: str
    function: Function


class AssistantMessage(Answer, frozen=True):
    """A whole answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType | None = UNSET


class ChatChoice(Answer, frozen=True):
    """One choice."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Answer, frozen=True, tag="chat.completion", tag_field="object"):
    """The answer to a chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionDelta(Answer, frozen=True, kw_only=True):
    """More of a call's arguments; the name comes with the first."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Answer, frozen=True, kw_only=True):
    """More of a call; id and type come with the first."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Answer, frozen=True):
    """What is new of a choice."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Answer, frozen=True):
    """News of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(Answer, frozen=True, tag="chat.completion.chunk", tag_field="object"):
    """One event of a streamed chat; the last one before [DONE] may hold the usage alone."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionLogprobs(Answer, frozen=True):
    """The logprobs of a completion's choice, a list entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer, frozen=True):
    """One choice, or in a stream what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Answer, frozen=True, tag="text_completion", tag_field="object"):
    """The answer to a completion request, and each event of its stream; usage comes last."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(Answer, frozen=True, tag="model", tag_field="object"):
    """The served model."""

    id: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer, frozen=True, tag="list", tag_field="object"):
    """The served models: one."""

    data: list[Model]


class Tokens(Answer, frozen=True):
    """The answer of /tokenize."""

    tokens: list[int]
    count: int
    max_model_len: int


class Text(Answer, frozen=True):
    """The answer of /detokenize."""

    prompt: str


class Embedding(Answer, frozen=True, tag="embedding", tag_field="object"):
    """A text's vector: numbers, or their bytes (float32, little endian) as base64."""

    index: int
    embedding: list[float] | str


class EmbeddingsUsage(Answer, frozen=True):
    """What was computed."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Embeddings(Answer, frozen=True, tag="list", tag_field="object"):
    """The answer to an embeddings request."""

    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
