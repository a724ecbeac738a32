"""Sets of characters, as patterns name them and as grammars write them.

A set is a sorted tuple of ranges (first, last) that do not touch. In JSON texts of ours a character
stands for itself, so the few that would need an escape are in no set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Range = tuple[int, int]
Characters = tuple[Range, ...]

LAST = 0x10FFFF
ESCAPED: Characters = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
"""What a JSON text cannot hold as it is."""
_DIGITS: Characters = ((0x30, 0x39),)
_WORD: Characters = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Characters = ((0x09, 0x0D), (0x20, 0x20))
_BEYOND: Range = (0x80, LAST)
NAMED: dict[str, tuple[Characters, Characters]] = {
    "d": (_DIGITS, (*_DIGITS, _BEYOND)),
    "w": (_WORD, (*_WORD, _BEYOND)),
    "s": (_SPACE, (*_SPACE, _BEYOND)),
}
"""Letter of an escape -> what every reader of patterns takes for it, and what any reader does."""


def union(ranges: Iterable[Range]) -> Characters:
    """Return the set of all characters of some ranges."""
    done: list[Range] = []
    for first, last in sorted(ranges):
        if done and first <= done[-1][1] + 1:
            done[-1] = (done[-1][0], max(last, done[-1][1]))
        else:
            done.append((first, last))
    return tuple(done)


def complement(characters: Characters) -> Characters:
    """Return the set of all others."""
    done: list[Range] = []
    start = 0
    for first, last in characters:
        if first > start:
            done.append((start, first - 1))
        start = last + 1
    return (*done, (start, LAST)) if start <= LAST else tuple(done)


def plain(characters: Characters) -> Characters:
    """Return those that stand for themselves in a JSON text."""
    return complement(union((*complement(characters), *ESCAPED)))


def written(characters: Characters) -> str:
    """Return a set as a grammar writes it."""
    if characters and characters[-1][1] == LAST:
        return f"[^{''.join(map(_range, complement(characters)))}]"
    return f"[{''.join(map(_range, characters))}]"


def _range(ends: Range) -> str:
    first, last = ends
    return _one(first) if first == last else f"{_one(first)}-{_one(last)}"


def _one(code: int) -> str:
    if code < 0x80 and chr(code).isalnum():
        return chr(code)
    # Never \\x: grammars take any number of digits behind it.
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
