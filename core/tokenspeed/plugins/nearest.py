"""Suggestions for misspelled names, and the tail of an error that offers them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


MAX_CHARS = 100
"""Longer names are no slips of the finger, and comparing them takes long."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the closest known name, or None."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return near[0] if near else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?`, or the list of what is known."""
    names = sorted(known)
    near = nearest(name[:MAX_CHARS], names)
    if near:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(names) or 'none'}"
