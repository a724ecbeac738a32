"""Client-rule slot: takes out of a conversation what a client varies without meaning anything.

A cached prefix ends at the first token that differs, so noise near the head of a prompt costs all
of it. Rules run in API processes, in a fixed order, before the prompt is rendered: no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Conversation


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What rules may know of the served model's chat template.

    Args:
        keeps_system_in_place: a system message after the first turn is rendered where it stands;
            False: the template refuses it, drops it, or moves it to the head of the prompt.
    """

    keeps_system_in_place: bool = True


class ClientRule(Protocol):
    """What an offer's `load(template=TemplateFacts)` returns. Required: apply.

    The offer's name is the rule's: it is what `--client-rules` and the metrics call it. The core's
    rules run first, others by `facts["place"]` (0), then by PLUGIN/NAME.
    """

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation without the noise; the same object when there is none.

        A pure function, from any thread: equal conversations give equal ones, and what it returns
        it returns unchanged (idempotent). What a user wrote stays, character for character; it
        may get neighbours.
        """
        ...
