"""From a messages request to the Conversation that every part behind it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Conversation, Message, Tool, ToolCall, ToolChoice
from tokenspeed.errors import RequestError
from tokenspeed.server.anthropic.schemas import (
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tokenspeed.server.conversation.answered import with_tool_names
from tokenspeed.server.conversation.sealed import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.server.anthropic.schemas import (
        MessageParam,
        PromptFields,
        ToolChoiceParam,
        ToolParam,
    )

CUSTOM = (None, "custom")
"""Types of tools that the caller runs and describes."""


def conversation_of(request: PromptFields) -> Conversation:
    """Return what a messages request says.

    Raises:
        RequestError: a block stands in a turn that cannot have it; names it.
    """
    return Conversation(
        with_tool_names(_messages(request)),
        tools=tuple(
            _tool(tool, index) for index, tool in enumerate(request.tools) if tool.type in CUSTOM
        ),
        tool_choice=_choice(request.tool_choice),
        template_kwargs=request.asked_thinking.variables(),
    )


def _messages(request: PromptFields) -> Iterator[Message]:
    if system := _texts(request.system):
        yield Message("system", system)
    for index, message in enumerate(request.messages):
        place = f"messages.{index}"
        if message.role == "assistant":
            yield _assistant(message, place)
        elif message.role == "user":
            yield from _user(message, place)
        elif texts := tuple(_only_texts(message, place)):
            yield Message("system", texts)


def _user(message: MessageParam, place: str) -> Iterator[Message]:
    """Cut a user's turn where tools answer in it: templates know them as turns of their own."""
    if isinstance(message.content, str):
        yield Message("user", (message.content,))
        return
    texts: list[str] = []
    for number, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield Message("user", tuple(texts))
                texts = []
            yield Message("tool", _texts(block.content), tool_call_id=block.tool_use_id)
        else:
            raise _misplaced(block.type, "user", f"{place}.content.{number}")
    if texts:
        yield Message("user", tuple(texts))


def _assistant(message: MessageParam, place: str) -> Message:
    if isinstance(message.content, str):
        return Message("assistant", (message.content,))
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(message.content):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking or unpack(block.signature))
            case RedactedThinkingBlock():
                thoughts.append(unpack(block.data))
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                calls.append(ToolCall(block.id, block.name, arguments))
            case _:
                raise _misplaced(block.type, "assistant", f"{place}.content.{number}")
    return Message(
        "assistant",
        tuple(text for text in texts if text),
        reasoning="\n".join(filter(None, thoughts)),
        tool_calls=tuple(calls),
    )


def _only_texts(message: MessageParam, place: str) -> Iterator[str]:
    content = message.content
    if isinstance(content, str):
        yield content
        return
    for number, block in enumerate(content):
        if not isinstance(block, TextBlock):
            raise _misplaced(block.type, message.role, f"{place}.content.{number}")
        yield block.text


def _texts(content: str | Sequence[TextBlock]) -> tuple[str, ...]:
    texts = (content,) if isinstance(content, str) else tuple(block.text for block in content)
    return tuple(text for text in texts if text)


def _tool(tool: ToolParam, index: int) -> Tool:
    for name in ("name", "input_schema"):
        if not getattr(tool, name) and name not in tool.model_fields_set:
            param = f"tools.{index}.{name}"
            raise RequestError(f"{param} is missing; it is required, add it", param=param)
    return Tool(tool.name, tool.description, tool.input_schema or {}, strict=tool.strict)


def _choice(choice: ToolChoiceParam | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        return ToolChoice("named", choice.name, parallel)
    return ToolChoice("required" if choice.type == "any" else choice.type, parallel=parallel)


def _misplaced(kind: str, role: str, param: str) -> RequestError:
    return RequestError(
        f"{param} is a {kind} block: a turn of role {role!r} cannot have one; move it to the turn "
        "that it belongs to",
        param=param,
    )
