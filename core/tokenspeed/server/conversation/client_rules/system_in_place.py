"""System messages left in place: one in the middle of a conversation stays where it stands.

Agents send reminders with the system's role between the turns. Templates that gather system
messages at the head of the prompt change its first tokens with each of them, and others refuse
them. There, and only there, such a message joins the one before it, or becomes a user's:

    user | system | assistant    ->   user + reminder | assistant
    assistant | system | user    ->   assistant | reminder + user
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.contracts.client_rule import TemplateFacts
    from tokenspeed.contracts.conversation import Conversation

_OPEN, _CLOSE = "<system-reminder>", "</system-reminder>"
"""How coding agents mark such texts where they send them as a user's."""


class SystemInPlace:
    """Keeps later system messages where they stand, whatever the template does with them."""

    def __init__(self, template: TemplateFacts) -> None:
        self._is_needed = not template.keeps_system_in_place

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation with system messages at its head only."""
        messages = conversation.messages
        roles = [message.role for message in messages]
        first = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
        if not self._is_needed or "system" not in roles[first:]:
            return conversation
        return dataclasses.replace(
            conversation, messages=(*messages[:first], *_folded(messages[first:]))
        )


def _folded(messages: tuple[Message, ...]) -> Iterator[Message]:
    """Yield what becomes of the messages behind the head."""
    last: Message | None = None
    is_made = False
    for message in messages:
        reminder = (_marked(message.text),) if message.role == "system" else ()
        if reminder and last is not None and last.role in ("user", "tool"):
            last = dataclasses.replace(last, content=last.content + reminder)
        elif is_made and last is not None and message.role == "user":
            last, is_made = (
                dataclasses.replace(message, content=last.content + message.content),
                False,
            )
        else:
            if last is not None:
                yield last
            is_made = bool(reminder)
            last = Message("user", reminder) if reminder else message
    if last is not None:
        yield last


def _marked(text: str) -> str:
    return text if text.startswith(_OPEN) else f"{_OPEN}\n{text}\n{_CLOSE}"
