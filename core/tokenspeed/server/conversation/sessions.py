"""Which conversation a request is a turn of, so that the cache knows who will be back and when.

The client says so with `prompt_cache_key`, or an agent in a header. Else a chat is known by how it
began: its cache salt and its messages up to the first of the user, which every later turn repeats.
A plain completion without a name is no turn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tokenspeed.server.conversation.term_fields import MAX_SESSION_CHARS

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from tokenspeed.contracts.conversation import Conversation
    from tokenspeed.server.conversation.term_fields import TermFields

SESSION_HEADERS = ("x-session-id", "x-session-affinity", "session-id", "x-claude-code-session-id")
"""Headers by which agents name the conversation; the first one that is there counts."""


def session_of(body: TermFields, headers: Headers, conversation: Conversation | None = None) -> str:
    """Return a name of the request's conversation, "" for none."""
    if body.prompt_cache_key:
        return body.prompt_cache_key
    for name in SESSION_HEADERS:
        if given := headers.get(name, "").strip():
            return given[:MAX_SESSION_CHARS]
    return _beginning(conversation, body.cache_salt) if conversation is not None else ""


def _beginning(conversation: Conversation, salt: str) -> str:
    """Name a chat by its beginning; how a text is cut into parts and marked makes no difference.

    The salt belongs to it: a session may tell that it was there under another salt, and a name
    made of texts would then tell one salt what another one holds.
    """
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, salt)
    for message in conversation.messages:
        for text in (message.role, message.name, "".join(message.content)):
            _add(digest, text)
        if message.role == "user":
            return f"chat:{digest.hexdigest()}"
    return ""


def _add(digest: hashlib.blake2b, text: str) -> None:
    data = text.encode()
    digest.update(len(data).to_bytes(8, "little") + data)
