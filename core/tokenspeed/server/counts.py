"""What an answer of one choice cost, and what the prefix cache spared it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.pieces import Piece


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one prompt and its answer.

    Args:
        cached: prompt tokens taken from the cache.
        written: prompt tokens computed, which can be reused from now on; 0 while not known.
        reasoning: output tokens that were thinking.
    """

    prompt: int
    cached: int
    written: int
    output: int
    reasoning: int


def counts_of(prompt: Prompt, piece: Piece) -> Counts:
    """Return what is known of an answer with the Piece that came so far."""
    report = piece.cache
    return Counts(
        prompt=len(prompt.token_ids),
        cached=max(0, piece.cached_tokens),
        written=report.created + report.recomputed if report is not None else 0,
        output=piece.num_tokens,
        reasoning=piece.reasoning_tokens,
    )
