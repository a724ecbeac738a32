"""A conversation as the server understands it, whichever API it came through.

Every API's requests become a `Conversation`, chat templates render it, client rules and parsers
read it. Plain data: no torch, no pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Args:
        parameters: JSON schema of its arguments; the order of keys is the client's.
        strict: arguments must obey the schema (they are constrained while they are generated).
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant's turn made.

    Args:
        call_id: names it in the conversation; the tool's answer repeats it.
        arguments: JSON text of an object, as it was generated or sent.
    """

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn, or one tool's answer.

    Args:
        content: its texts in order, one for each block that the client sent; a plain string is
            one block.
        reasoning: the thinking of an assistant's turn, as the client gave it back.
        tool_calls: of an assistant's turn, in order.
        tool_call_id: of a tool's answer: the call that it answers.
        name: of the speaker, for templates that show it; the tool's in a tool's answer.
    """

    role: Role
    content: tuple[str, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        """Return the content as one string; blocks are separate lines."""
        return "\n".join(self.content)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools the answer may or must call.

    Args:
        mode: "auto": as the model likes; "none": no call; "required": at least one call;
            "named": a call of `name`.
        parallel: several calls in one answer are allowed.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a prompt is rendered from.

    Args:
        messages: oldest first.
        tools: what may be called, in the order in which the template shows them.
        template_kwargs: further variables of the chat template, such as enable_thinking.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
