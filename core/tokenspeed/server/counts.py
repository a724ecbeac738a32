"""What an answer of one choice cost, and what the prefix cache spared it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.engine.messages import CacheReport
    from tokenspeed.server.conversation.prompts import Prompt
    from tokenspeed.server.pieces import Piece


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one prompt and its answer.

    Args:
        cached: prompt tokens taken from the cache.
        written: prompt tokens computed, which can be reused from now on; 0 while not known.
        reasoning: output tokens that were thinking.
        truth: what else is known of the cache's part: how many of the written tokens had been in it
            and were evicted, where the match ended, and why. Empty while not known.
    """

    prompt: int
    cached: int
    written: int
    output: int
    reasoning: int
    truth: dict[str, Any]


def counts_of(prompt: Prompt, piece: Piece) -> Counts:
    """Return what is known of an answer with the Piece that came so far."""
    report = piece.cache
    return Counts(
        prompt=len(prompt.token_ids),
        cached=max(0, piece.cached_tokens),
        written=report.created + report.recomputed if report is not None else 0,
        output=piece.num_tokens,
        reasoning=piece.reasoning_tokens,
        truth=_truth(report) if report is not None else {},
    )


def _truth(report: CacheReport) -> dict[str, Any]:
    return {
        "recomputed_tokens": report.recomputed,
        "match_ends": [{"position": report.match_end, "reason": report.reason}],
    }
