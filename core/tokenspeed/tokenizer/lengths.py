"""How much text one token can stand for: what is longer than that times the limit cannot fit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

UNKNOWN_CHARS = 1024
"""Taken where a token may stand for any length: unknown words, spaces beside special tokens."""
_COMPOSED_CHARS = 4
"""Characters that Unicode composition makes one of, at most."""


def max_token_chars(backend: tokenizers.Tokenizer) -> int:
    """Return the most characters of text that one token stands for.

    Where a tokenizer drops or absorbs text without bound, it is an estimate of at least
    `UNKNOWN_CHARS`: a whole context of such tokens is no text that anyone sends.
    """
    longest = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
    if not _keeps_all_text(backend):
        return max(longest * _COMPOSED_CHARS, UNKNOWN_CHARS)
    return longest if backend.normalizer is None else longest * _COMPOSED_CHARS


def _keeps_all_text(backend: tokenizers.Tokenizer) -> bool:
    """Say whether every character ends in a token: bytes for all, nothing stripped."""
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return False
    normalizer = backend.normalizer
    kind = json.loads(normalizer.__getstate__())["type"] if normalizer is not None else None
    return kind in (None, "NFC") and _is_byte_level(backend)


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    pre = backend.pre_tokenizer
    state = json.loads(pre.__getstate__()) if pre is not None else {}
    steps = state.get("pretokenizers", [state])
    return any(step.get("type") == "ByteLevel" for step in steps)
