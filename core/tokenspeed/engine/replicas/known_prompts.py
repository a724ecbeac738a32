"""Prompts that were routed lately: a conversation's next turn hashes only what is new in it.

Tokens are kept as they came, so that what two prompts share is compared and not guessed; the oldest
conversations go first when they take too much memory.
Thread: as the router.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.engine.requests import number_of
from tokenspeed.scheduler import PrefixKeys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed.engine.messages import Submit

MAX_BYTES = 64 << 20
"""Host memory of an API process: 16 conversations of a million tokens, 300 of 50,000."""
HEAD_TOKENS = 1024
"""By so many first tokens a prompt without a session is known."""


class KnownPrompts:
    """The last prompt of each conversation, and the keys of its blocks."""

    def __init__(self, block_tokens: int, *, max_bytes: int = MAX_BYTES) -> None:
        self._block_tokens = block_tokens
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: OrderedDict[object, tuple[NDArray[np.int32], PrefixKeys]] = OrderedDict()

    def keys_of(self, message: Submit, tokens: NDArray[np.int32]) -> PrefixKeys:
        """Return the keys of a request's prompt, and remember them for its next turn."""
        name = _name(message, tokens)
        known = self._known.pop(name, None)
        if known is None:
            keys = PrefixKeys(
                self._block_tokens, tenant=number_of(message.tenant), salt=message.salt
            )
        else:
            self._num_bytes -= known[0].nbytes
            keys = known[1].first(shared_tokens(known[0], tokens) // self._block_tokens)
        keys.extend(tokens)
        self._known[name] = tokens, keys
        self._num_bytes += tokens.nbytes
        while self._num_bytes > self._max_bytes:
            _, (oldest, _) = self._known.popitem(last=False)
            self._num_bytes -= oldest.nbytes
        return keys


def shared_tokens(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Return how many tokens two prompts begin with alike."""
    shorter = min(one.size, other.size)
    is_other = one[:shorter] != other[:shorter]
    return int(is_other.argmax()) if is_other.any() else shorter


def _name(message: Submit, tokens: NDArray[np.int32]) -> object:
    """Return what a conversation is known by: never alike where the keys are not."""
    head = message.session or zlib.crc32(tokens[:HEAD_TOKENS].tobytes())
    return message.tenant, message.salt, message.owner if message.session else "", head
