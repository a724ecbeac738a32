"""A chat as the server goes on with it: without its client's noise, its messages digested."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.server.conversation.fingerprint import message_prints

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.server.conversation.fingerprint import MessagePrint
    from tokenspeed.server.conversation.rules import ClientRules


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and what each of its messages means."""

    conversation: Conversation
    prints: list[MessagePrint]

    @property
    def has_answer(self) -> bool:
        """Whether the model has spoken in it."""
        return any(one.is_assistant for one in self.prints)


def cleaned(conversation: Conversation, rules: ClientRules) -> Chat:
    """Apply the client rules; from any thread.

    Raises:
        EngineError: a rule failed.
    """
    conversation = rules.apply(conversation)
    return Chat(conversation, message_prints(conversation.messages))
