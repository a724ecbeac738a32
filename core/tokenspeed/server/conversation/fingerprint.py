"""What a message means, as a digest: equal for what clients change when they send a turn back.

    written by the model        sent back by a client               the same meaning
    {"n": 1.0, "path": "a"}     {"path":"a","n":1}                  arguments are JSON values
    "\\n\\nDone."                 [{"text": "Done."}]                 edges of an answer are trimmed
    reasoning                   none                                told apart (`MessagePrint`)

All else is compared as it stands: call ids, names, the texts of users and tools, and the whole of
the tools. Pure functions, for any thread; time in proportion to the text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed.contracts.conversation import Conversation, Message, ToolCall
    from tokenspeed.engine.messages import Terms

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class MessagePrint:
    """A message's meaning.

    Args:
        body: digest of everything but the reasoning.
        reasoning: digest of the reasoning; b"" when there is none.
        is_assistant: it is a model's turn.
    """

    body: bytes
    reasoning: bytes
    is_assistant: bool


def digest(*parts: bytes) -> bytes:
    """Return one digest of several values; where one ends and the next begins counts."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def scope_print(conversation: Conversation, terms: Terms) -> bytes:
    """Digest what every prompt of a conversation depends on, and who may meet its turns again."""
    tools = [
        [tool.name, tool.description, dict(tool.parameters), tool.strict]
        for tool in conversation.tools
    ]
    variables = dict(conversation.template_kwargs)
    return digest(
        terms.salt,
        *_encoded((terms.tenant, terms.owner, json.dumps(tools), json.dumps(variables))),
    )


def message_prints(messages: Iterable[Message]) -> list[MessagePrint]:
    """Digest every message."""
    return [message_print(message) for message in messages]


def message_print(message: Message) -> MessagePrint:
    """Digest a message."""
    head = (message.role, message.name, message.tool_call_id)
    if message.role != "assistant":
        return MessagePrint(digest(*_encoded((*head, *message.content))), b"", is_assistant=False)
    calls = [text for call in message.tool_calls for text in _call(call)]
    answer = "".join(message.content).strip()
    reasoning = message.reasoning.strip()
    return MessagePrint(
        digest(*_encoded((*head, answer, *calls))),
        digest(*_encoded((reasoning,))) if reasoning else b"",
        is_assistant=True,
    )


def _call(call: ToolCall) -> tuple[str, str, str]:
    return call.call_id, call.name, json_meaning(call.arguments)


def json_meaning(text: str) -> str:
    """Return the one way of writing a JSON value; text that is none stays as it is."""
    try:
        value = json.loads(text.strip() or "{}", parse_float=_number)
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> Any:
    """Read a number with a fraction or an exponent: 1.0 and 1e3 are whole numbers to many."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _encoded(texts: Iterable[str]) -> Iterable[bytes]:
    return (text.encode("utf-8", "surrogatepass") for text in texts)
