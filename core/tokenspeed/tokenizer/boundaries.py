"""Finds the special tokens at which a text may be cut, whatever stands around them.

The library splits text at added tokens before anything else. A special token is a safe cut when no
other added token can overlap or contain it, and when it neither absorbs spaces nor looks at the
characters beside it: then it is found in every text that spells it.
"""

from __future__ import annotations

import re

from tokenspeed.tokenizer.tokenizer import Tokenizer

_SCAN_CHARS = 1 << 17


class Boundaries:
    """The safe cuts of one tokenizer; immutable, used from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = list(tokenizer.backend.get_added_tokens_decoder().values())
        raw = [token.content for token in added if not token.normalized]
        plain = {
            token.content
            for token in added
            if not (token.normalized or token.lstrip or token.rstrip or token.single_word)
            and _is_self_delimiting(token.content)
        }
        self._safe = _not_overlapped(plain, raw)
        self._longest = max(map(len, raw), default=1)
        # The library takes the leftmost, then longest match: alternatives longest first.
        raw.sort(key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, raw)) or r"(?!)")

    def is_at(self, text: str, offset: int) -> bool:
        """Say whether a usable special token stands at `offset`."""
        match = self._pattern.match(text, offset)
        return match is not None and match.group() in self._safe

    def next_after(self, text: str, offset: int) -> int:
        """Return where the first usable special token behind `offset` begins, else the end.

        Scans in windows, because one long scan would hold the interpreter.
        """
        start = offset + 1
        while start < len(text):
            window_end = min(start + _SCAN_CHARS, len(text))
            for match in self._pattern.finditer(text, start, window_end + self._longest):
                if match.start() >= window_end:
                    break
                if match.group() in self._safe:
                    return match.start()
            start = window_end
        return len(text)


def _is_self_delimiting(content: str) -> bool:
    """Say whether no neighbour's spaces or words can run into `content`."""
    edges = content[:1] + content[-1:]
    return bool(edges) and not any(_is_word_or_space(char) for char in edges)


def _is_word_or_space(char: str) -> bool:
    return char.isalnum() or char.isspace() or char == "_"


def _not_overlapped(contents: set[str], raw: list[str]) -> set[str]:
    """Keep those that no token can begin before and reach into, or contain behind its head."""
    tails = {content[cut:] for content in raw for cut in range(1, len(content))}
    inner = "\0".join(content[1:] for content in raw)
    return {
        content
        for content in contents
        if content not in inner
        and not any(content[:end] in tails for end in range(1, len(content) + 1))
    }
