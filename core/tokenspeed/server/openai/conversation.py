"""From a chat request to the Conversation that every part behind it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.conversation import (
    Conversation,
    Message,
    Role,
    Tool,
    ToolCall,
    ToolChoice,
)
from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.answered import with_tool_names
from tokenspeed.server.openai.schemas import NamedChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.server.openai.schemas import (
        ChatMessage,
        ChatRequest,
        ChatTool,
        FunctionTool,
    )


def conversation_of(request: ChatRequest) -> Conversation:
    """Return what a chat request says.

    Raises:
        RequestError: a message lacks what its role needs; names it.
    """
    return messages_of(
        request.messages,
        tools=request.tools,
        tool_choice=_choice(request),
        template_kwargs={**request.thinking.variables(), **request.chat_template_kwargs},
    )


def messages_of(
    messages: Sequence[ChatMessage],
    *,
    tools: Sequence[ChatTool] = (),
    tool_choice: ToolChoice | None = None,
    template_kwargs: dict[str, Any] | None = None,
) -> Conversation:
    """Return a conversation of messages as the OpenAI API spells them."""
    return Conversation(
        with_tool_names(_message(item, index) for index, item in enumerate(messages)),
        tools=tuple(tool_of(tool.function) for tool in tools),
        tool_choice=tool_choice or ToolChoice(),
        template_kwargs=template_kwargs or {},
    )


def tool_of(function: FunctionTool) -> Tool:
    """Return a function as the server knows it."""
    return Tool(
        function.name,
        function.description or "",
        function.parameters or {},
        strict=bool(function.strict),
    )


def _choice(request: ChatRequest) -> ToolChoice:
    parallel = request.parallel_tool_calls
    if isinstance(request.tool_choice, NamedChoice):
        return ToolChoice("named", request.tool_choice.function.name, parallel)
    return ToolChoice(request.tool_choice or "auto", parallel=parallel)


def _message(message: ChatMessage, index: int) -> Message:
    _check(message, f"messages.{index}")
    # Templates know no developer role.
    role: Role = "system" if message.role == "developer" else message.role
    content = message.content
    if isinstance(content, str):
        content_texts: tuple[str, ...] = (content,)
    else:
        content_texts = tuple(part.text for part in content or ())
    return Message(
        role,
        content_texts,
        reasoning=message.reasoning_content or message.reasoning or "",
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in message.tool_calls
        ),
        tool_call_id=message.tool_call_id,
        name=message.name or "",
    )


def _check(message: ChatMessage, place: str) -> None:
    is_assistant = message.role == "assistant"
    said = message.tool_calls or message.reasoning_content or message.reasoning
    if message.content is None and not (is_assistant and said):
        raise _missing(f"{place}.content")
    if message.role == "tool" and not message.tool_call_id:
        raise _missing(f"{place}.tool_call_id")
    if message.tool_calls and not is_assistant:
        raise RequestError(
            f"{place}.tool_calls: a message of role {message.role!r} makes no calls, only an "
            "assistant's does; remove them",
            param=f"{place}.tool_calls",
        )
    if message.tool_call_id and message.role != "tool":
        raise RequestError(
            f"{place}.tool_call_id: a message of role {message.role!r} answers no call, only a "
            "tool's does; remove it",
            param=f"{place}.tool_call_id",
        )


def _missing(param: str) -> RequestError:
    return RequestError(f"{param} is missing; it is required, add it", param=param)
