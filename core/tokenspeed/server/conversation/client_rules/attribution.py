"""Claude Code's attribution line: names version, entry point and a checksum, for its vendor's bill.

    x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch=71fea;

It is the first block of the system prompt. The version's last part depends on the first user
message and the checksum on the whole request, so nothing behind it would ever be shared. It tells
the model nothing and is left out, whatever its fields are.
Source: public reports of its form, such as vllm-project/vllm#36829 and ggml-org/llama.cpp#20623.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.client_rule import TemplateFacts
    from tokenspeed.contracts.conversation import Conversation

_LINES = re.compile(r"(?:x-anthropic-billing-header:[^\n]*(?:\n+|\Z))+")


class Attribution:
    """Leaves the line out where the first system message begins with it."""

    def __init__(self, template: TemplateFacts) -> None:
        """Depends on no template."""

    def apply(self, conversation: Conversation) -> Conversation:
        """Cut the line, and what became empty by that: its block, its message."""
        first, *rest = conversation.messages or (None,)
        if first is None or first.role != "system":
            return conversation
        content = _without_line(first.content)
        if content is first.content:
            return conversation
        kept = (dataclasses.replace(first, content=content),) if content else ()
        shorter = dataclasses.replace(conversation, messages=(*kept, *rest))
        return shorter if kept else self.apply(shorter)


def _without_line(content: tuple[str, ...]) -> tuple[str, ...]:
    while content:
        found = _LINES.match(content[0])
        if found is None:
            break
        rest = content[0][found.end() :]
        content = (rest, *content[1:]) if rest else content[1:]
    return content
