"""Which conversation a request is a turn of, so that the cache knows who will be back and when.

The client says so with `prompt_cache_key`. Else a chat is known by how it began: its messages up to
the first of the user, which every later turn repeats. A plain completion without a key is no turn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tokenspeed.server.openai import ChatRequest

if TYPE_CHECKING:
    from tokenspeed.server.openai import CompletionRequest


def session_of(body: ChatRequest | CompletionRequest) -> bytes:
    """Return a name of the request's conversation, b"" for none."""
    if body.prompt_cache_key:
        return b"key:" + body.prompt_cache_key.encode()
    if not isinstance(body, ChatRequest):
        return b""
    digest = hashlib.blake2b(digest_size=16)
    for message in body.messages:
        digest.update(message.model_dump_json().encode())
        if message.role == "user":
            return b"chat:" + digest.digest()
    return b""
