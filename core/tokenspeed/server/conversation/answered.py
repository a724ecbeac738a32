"""Names in tools' answers: templates may show them, two of three APIs do not carry them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed.contracts.conversation import Message


def with_tool_names(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Give each tool's answer without a name that of the call which it answers."""
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        names.update((call.call_id, call.name) for call in message.tool_calls)
        if message.role == "tool" and not message.name:
            message = replace(message, name=names.get(message.tool_call_id, ""))
        named.append(message)
    return tuple(named)
