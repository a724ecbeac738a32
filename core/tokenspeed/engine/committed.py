"""The tokens of a committed step, entry by entry, as the publisher and the speculator read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.scheduler import CommitResult


def tokens_of(committed: CommitResult) -> list[tuple[int, ...]]:
    """Return the new tokens of each entry: none where it only ended, several after drafts."""
    tokens, counts = committed.tokens.tolist(), committed.num_tokens.tolist()
    if len(tokens) == len(counts) and max(counts, default=0) <= 1:
        return [(token,) if count else () for token, count in zip(tokens, counts, strict=True)]
    runs = []
    start = 0
    for count in counts:
        runs.append(tuple(tokens[start : start + count]))
        start += max(1, count)
    return runs


def new_tokens(committed: CommitResult) -> dict[int, tuple[int, ...]]:
    """Return the new tokens of the requests that go on, by key."""
    entries = zip(
        committed.request_ids.tolist(),
        tokens_of(committed),
        committed.finish_reasons.tolist(),
        strict=True,
    )
    return {key: tokens for key, tokens, reason in entries if tokens and not reason}
