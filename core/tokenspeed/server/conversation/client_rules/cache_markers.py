"""What a moved cache marker leaves behind: an empty block, or a key beside a tool's schema.

Clients mark the newest place to keep and take the mark from the last one, so the same message
comes once with a block that only carries the mark and once without. The marks themselves are
read from the request before (they ask for retention); nothing of them belongs into a prompt.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.client_rule import TemplateFacts
    from tokenspeed.contracts.conversation import Conversation, Message, Tool

_MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


class CacheMarkers:
    """Drops empty blocks, and marks at the top of a tool's parameters."""

    def __init__(self, template: TemplateFacts) -> None:
        """Depends on no template."""

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation without them."""
        messages = tuple(map(_message, conversation.messages))
        tools = tuple(map(_tool, conversation.tools))
        is_same = all(map(_is, messages, conversation.messages)) and all(
            map(_is, tools, conversation.tools)
        )
        if is_same:
            return conversation
        return dataclasses.replace(conversation, messages=messages, tools=tools)


def _message(message: Message) -> Message:
    if all(message.content):
        return message
    return dataclasses.replace(message, content=tuple(filter(None, message.content)))


def _tool(tool: Tool) -> Tool:
    if not _MARKS & tool.parameters.keys():
        return tool
    kept = {key: value for key, value in tool.parameters.items() if key not in _MARKS}
    return dataclasses.replace(tool, parameters=kept)


def _is(one: object, other: object) -> bool:
    return one is other
