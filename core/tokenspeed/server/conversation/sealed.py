"""Thinking as clients carry it for us: sealed with a signature, or packed where it is not shown.

Clients send the thinking of earlier turns back, so that it can be rendered again. Where an API
shows it as signed or encrypted, the seal says that it is ours, and may hold the text itself. It is
no secret: who has the seal has the text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib

_PREFIX = "tsp1"
_DIGEST_BYTES = 12
MAX_PACKED_CHARS = 4 << 20
"""Thinking that a packed seal may hold: more than any answer has."""


def sign(text: str) -> str:
    """Return the signature of thinking that the client was shown."""
    digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
    return f"{_PREFIX}s{base64.urlsafe_b64encode(digest).decode()}"


def pack(text: str) -> str:
    """Return a seal that holds the thinking."""
    return f"{_PREFIX}p{base64.urlsafe_b64encode(zlib.compress(text.encode())).decode()}"


def unpack(seal: str) -> str:
    """Return the thinking that a seal holds; "" for a signature, and for what others sealed."""
    if not seal.startswith(f"{_PREFIX}p"):
        return ""
    try:
        data = base64.urlsafe_b64decode(seal[len(_PREFIX) + 1 :])
        return zlib.decompressobj().decompress(data, MAX_PACKED_CHARS).decode()
    except (binascii.Error, ValueError, zlib.error):
        return ""
