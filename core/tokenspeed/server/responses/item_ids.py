"""Ids of items: each names the response that it belongs to, so that no index is kept of them."""

from __future__ import annotations

import re

FIRST_INPUT = 1 << 24
"""Number of the first item of a response's own input; those of its output begin at 0."""
_ID = re.compile(r"[a-z]{2,3}_([0-9a-f]{24})[0-9a-f]{8}")


def item_id(prefix: str, response_id: str, number: int) -> str:
    """Return the id of an item.

    Args:
        number: of the item in its response.
    """
    return f"{prefix}_{response_id.removeprefix('resp_')}{number:08x}"


def response_of(item: str) -> str | None:
    """Return the id of the response that an item belongs to; None: the id is none of ours."""
    found = _ID.fullmatch(item)
    return f"resp_{found[1]}" if found is not None else None
