"""What the messages API answers, as types."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from tokenspeed.server.http.answers import Answer, MatchEnd, MessagesError

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextContent(Answer, frozen=True, tag="text"):
    """Text."""

    text: str


class ThinkingContent(Answer, frozen=True, tag="thinking"):
    """Thinking, and what it can be told by when it comes back."""

    thinking: str
    signature: str


class ToolUseContent(Answer, frozen=True, tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextContent | ThinkingContent | ToolUseContent


class MessageOutputDetails(Answer, frozen=True):
    """Of the output tokens."""

    thinking_tokens: int


class MessageUsage(Answer, frozen=True):
    """What was computed; the three counts of the input add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageOutputDetails
    recomputed_tokens: int | UnsetType = UNSET
    match_ends: list[MatchEnd] | UnsetType = UNSET


class AppliedEdits(Answer, frozen=True):
    """Nothing is edited here."""

    applied_edits: list[Any]


class Message(Answer, frozen=True, tag="message"):
    """The answer to a messages request; in a stream's opening without content."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    context_management: AppliedEdits | UnsetType = UNSET


class TokenCount(Answer, frozen=True):
    """The answer of /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(Answer, frozen=True, tag="message_start"):
    """Opens a stream."""

    message: Message


class BlockStart(Answer, frozen=True, tag="content_block_start"):
    """A block opens."""

    index: int
    content_block: Block


class TextDelta(Answer, frozen=True, tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(Answer, frozen=True, tag="thinking_delta"):
    """More thinking."""

    thinking: str


class SignatureDelta(Answer, frozen=True, tag="signature_delta"):
    """The signature of thinking that is complete."""

    signature: str


class InputDelta(Answer, frozen=True, tag="input_json_delta"):
    """More of a call's arguments."""

    partial_json: str


class BlockDelta(Answer, frozen=True, tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Answer, frozen=True, tag="content_block_stop"):
    """A block is complete."""

    index: int


class Ended(Answer, frozen=True):
    """How a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Answer, frozen=True, tag="message_delta"):
    """How the message ended, and its usage, which counts for the whole."""

    delta: Ended
    usage: MessageUsage
    context_management: AppliedEdits


class MessageStop(Answer, frozen=True, tag="message_stop"):
    """Closes a stream."""


class Ping(Answer, frozen=True, tag="ping"):
    """Keeps a silent stream open."""


MessageEvent = (
    MessageStart
    | BlockStart
    | BlockDelta
    | BlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessagesError
)
