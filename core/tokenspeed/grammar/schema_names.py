"""Names of properties as patterns: which names are left, and whether two patterns share one."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NEVER = r'"\\\x00-\x1f'
"""In no name of ours: an escape would spell a name in a second way."""
_ANY = f"[^{_NEVER}]"
_IS_PLAIN = re.compile(r'[^"\\\x00-\x1f]*').fullmatch
MAX_TREE = 24
"""Characters of a name that are looked at."""
_PREFIX = re.compile(r"\^([\w -]+)")
_SPECIAL = frozenset(r"\.^$*+?()[]{}|/-")


def matches(pattern: str, name: str) -> bool:
    """Say whether a pattern is met by a name; one that cannot be told is."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def are_apart(patterns: Iterable[str]) -> bool:
    """Say whether it is certain, by how they begin, that no name meets two of the patterns."""
    begins = [_beginning(pattern) for pattern in patterns]
    return not any(
        one.startswith(other) or other.startswith(one) for one, other in combinations(begins, 2)
    )


def other_names(names: Iterable[str]) -> str:
    """Return a pattern of all names but these; it has no look-ahead, which engines do not know.

    A tree of the names' characters: a name of ours leaves it somewhere, or ends where none does.
    Names that only escapes can spell are left out, as are others as long as a long name that begin
    like it.
    """
    return f"^{_others(sorted({name for name in names if _IS_PLAIN(name)}), MAX_TREE)}$"


def _others(rests: list[str], depth: int) -> str:
    heads = sorted({rest[0] for rest in rests if rest})
    leaves = f"[^{''.join(map(_in_class, heads))}{_NEVER}]{_ANY}*"
    stays = [
        _literal(head) + _others([rest[1:] for rest in rests if rest[:1] == head], depth - 1)
        for head in heads
        if depth > 1
    ]
    group = f"({'|'.join([leaves, *stays])})"
    return group if "" in rests else group + "?"


def _literal(character: str) -> str:
    return f"\\{character}" if character in _SPECIAL else character


def _in_class(character: str) -> str:
    return f"\\{character}" if character in r"\]^-[" else character


def _beginning(pattern: str) -> str:
    """Return what every name that meets the pattern begins with."""
    found = _PREFIX.match(pattern)
    if found is None or "|" in pattern:
        return ""
    is_repeated = pattern[found.end() : found.end() + 1] in ("*", "+", "?", "{")
    return found[1][:-1] if is_repeated else found[1]
