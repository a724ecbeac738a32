"""The tokens of a committed step, as the speculator reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.scheduler import CommitResult


def new_tokens(committed: CommitResult) -> dict[int, tuple[int, ...]]:
    """Return the new tokens of the requests that go on, by key."""
    return {
        key: tokens for key, tokens, reason, _, _ in committed.entries() if tokens and not reason
    }
