"""String against block content: a message reads the same in one piece or in several.

One text block and a plain string are one thing already. Several become the lines of one text, so
that a template which iterates over parts renders what one that reads strings does. An assistant's
blocks are pieces of one answer and are left alone.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.client_rule import TemplateFacts
    from tokenspeed.contracts.conversation import Conversation, Message


class Blocks:
    """Joins the blocks of a message."""

    def __init__(self, template: TemplateFacts) -> None:
        """Depends on no template."""

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation with at most one block a message."""
        if not any(map(_is_cut, conversation.messages)):
            return conversation
        messages = (
            dataclasses.replace(item, content=(item.text,)) if _is_cut(item) else item
            for item in conversation.messages
        )
        return dataclasses.replace(conversation, messages=tuple(messages))


def _is_cut(message: Message) -> bool:
    return len(message.content) > 1 and message.role != "assistant"
