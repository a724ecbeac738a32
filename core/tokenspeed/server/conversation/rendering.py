"""A Conversation in the form that chat templates read: the dicts of OpenAI's chat API.

Templates disagree about the arguments of earlier calls: most write an object as JSON themselves,
some take JSON text as it is (`ChatTemplate.reads_argument_text`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import RequestError
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.contracts.conversation import Message, Tool, ToolCall


def template_messages(
    messages: Sequence[Message], *, argument_text: bool = False
) -> list[dict[str, Any]]:
    """Return messages as templates read them.

    Args:
        argument_text: the arguments of calls stay JSON text; else they are objects.
    Raises:
        RequestError: the arguments of a call are no JSON object.
    """
    return [
        _template_message(message, index, argument_text=argument_text)
        for index, message in enumerate(messages)
    ]


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """Return tools as templates read them; None: there are none."""
    return [{"type": "function", "function": _function(tool)} for tool in tools] or None


def _function(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    parameters = dict(tool.parameters) or {"type": "object", "properties": {}}
    return {"name": tool.name, **described, "parameters": parameters}


def _template_message(message: Message, index: int, *, argument_text: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": _content(message)}
    for key, value in (
        ("name", message.name),
        ("reasoning_content", message.reasoning),
        ("tool_call_id", message.tool_call_id),
    ):
        if value:
            shown[key] = value
    if message.tool_calls:
        shown["tool_calls"] = list(_calls(message.tool_calls, index, argument_text=argument_text))
    return shown


def _content(message: Message) -> str | list[dict[str, str]]:
    """One block is a string: a client may send the same text either way from turn to turn."""
    if len(message.content) > 1:
        return [{"type": "text", "text": text} for text in message.content]
    return message.text


def _calls(
    calls: Sequence[ToolCall], index: int, *, argument_text: bool
) -> Iterator[dict[str, Any]]:
    for number, call in enumerate(calls):
        arguments = _arguments(call, f"messages.{index}.tool_calls.{number}.function.arguments")
        shown = json.dumps(arguments, ensure_ascii=False) if argument_text else arguments
        yield {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": shown},
        }


def _arguments(call: ToolCall, param: str) -> dict[str, Any]:
    """Read the arguments of a call; clients write none as an empty text."""
    try:
        read = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        read = None
    if isinstance(read, dict):
        return read
    raise RequestError(
        f"{param} is {shorten(call.arguments)}: the JSON text of an object is needed; correct it",
        param=param,
    )
