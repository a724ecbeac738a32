"""From a responses request to the Conversation that every part behind it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Conversation, Message, ToolCall, ToolChoice
from tokenspeed.server.conversation.answered import with_tool_names
from tokenspeed.server.conversation.sealed import unpack
from tokenspeed.server.responses.schemas import (
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    NamedResponseTool,
    ReasoningItem,
)
from tokenspeed.server.responses.tools import flat_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenspeed.contracts.conversation import Role, Tool
    from tokenspeed.server.responses.schemas import Item, ResponsesRequest, Texts


def conversation_of(
    request: ResponsesRequest, tools: tuple[Tool, ...], items: Sequence[Item]
) -> Conversation:
    """Return what a request says.

    Args:
        tools: what the model is told of.
        items: what it says, behind those of the responses that it goes on from, oldest first.
    """
    return Conversation(
        with_tool_names(_messages(request.instructions, items)),
        tools=tools,
        tool_choice=_choice(request),
        template_kwargs=request.thinking.variables(),
    )


@dataclass
class _Turn:
    """An assistant's turn while its items are gathered: thinking, then text, then calls."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def has_spoken(self) -> bool:
        return bool(self.texts or self.calls)

    def message(self) -> Message:
        return Message(
            "assistant",
            tuple(filter(None, self.texts)),
            reasoning="\n".join(filter(None, self.thoughts)),
            tool_calls=tuple(self.calls),
        )


def _messages(instructions: str | None, items: Iterable[Item]) -> list[Message]:
    messages = [Message("system", (instructions,))] if instructions else []
    turn: _Turn | None = None
    for item in items:
        if not _belongs(item, turn):
            if turn is not None:
                messages.append(turn.message())
            turn = _Turn() if _is_assistants(item) else None
        if turn is not None:
            _add(turn, item)
        elif isinstance(item, MessageItem):
            role: Role = "user" if item.role == "user" else "system"
            messages.append(Message(role, _texts(item.content)))
        elif isinstance(item, FunctionOutputItem):
            messages.append(Message("tool", _texts(item.output), tool_call_id=item.call_id))
    return messages if turn is None else [*messages, turn.message()]


def _is_assistants(item: Item) -> bool:
    if isinstance(item, MessageItem):
        return item.role == "assistant"
    return isinstance(item, FunctionCallItem | ReasoningItem)


def _belongs(item: Item, turn: _Turn | None) -> bool:
    """Whether an item is of the assistant's turn that is open."""
    if turn is None or not _is_assistants(item):
        return False
    if isinstance(item, FunctionCallItem):
        return True
    return not (turn.calls if isinstance(item, MessageItem) else turn.has_spoken)


def _add(turn: _Turn, item: Item) -> None:
    match item:
        case MessageItem():
            turn.texts.extend(_texts(item.content))
        case FunctionCallItem():
            name = flat_name(item.namespace, item.name)
            turn.calls.append(ToolCall(item.call_id, name, item.arguments))
        case ReasoningItem():
            turn.thoughts.append(_thought(item))


def _thought(item: ReasoningItem) -> str:
    packed = unpack(item.encrypted_content or "")
    return packed or "\n".join(part.text for part in item.content or item.summary)


def _texts(content: Texts) -> tuple[str, ...]:
    texts = (content,) if isinstance(content, str) else tuple(part.text for part in content)
    return tuple(filter(None, texts))


def _choice(request: ResponsesRequest) -> ToolChoice:
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, NamedResponseTool):
        return ToolChoice("named", flat_name(choice.namespace, choice.name), parallel)
    return ToolChoice(choice, parallel=parallel)
