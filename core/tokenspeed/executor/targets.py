"""The positions of a step that are sampled, and what their tokens mean for the rows.

A row that samples has one position, its last query token; with drafts, one more for each of them.
Legend: N rows that sample, P sampled positions, W most new tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.speculation.verify import num_accepted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.contracts.step import StepPlan

    Logprobs = tuple[TokenLogprobs, ...] | None


@dataclass(frozen=True, slots=True)
class Targets:
    """Where a step is sampled.

    Args:
        rows_N: the rows that sample.
        first_N: the first position of each row.
        drafts_N: the drafts of each row, as planned.
        slots_P, output_index_P: request and output position that each sampled position is for.
        places_P: query tokens whose hidden state predicts it.
    """

    rows_N: NDArray[np.intp]
    first_N: NDArray[np.intp]
    drafts_N: Sequence[Sequence[int]]
    slots_P: NDArray[np.int32]
    output_index_P: NDArray[np.int32]
    places_P: NDArray[np.int64]

    @property
    def has_drafts(self) -> bool:
        """Whether any row has drafts."""
        return len(self.places_P) > len(self.rows_N)

    def ahead(self) -> list[Sequence[int]] | None:
        """Return the drafts before each position, which count as output there; None: no drafts."""
        if not self.has_drafts:
            return None
        return [drafts[:count] for drafts in self.drafts_N for count in range(len(drafts) + 1)]


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of them, on the host.

    Args:
        tokens_N: new tokens of each row, one or more.
        failed_N: rows whose first position failed.
        logprobs_N: of the new tokens, for rows that asked; None: no row did.
    """

    tokens_N: tuple[tuple[int, ...], ...]
    failed_N: NDArray[np.bool_]
    logprobs_N: tuple[Logprobs, ...] | None


def targets_of(plan: StepPlan) -> Targets:
    """Return the sampled positions of a plan."""
    rows = np.flatnonzero(plan.output_index >= 0)
    slots, output_index = plan.slots[rows], plan.output_index[rows]
    last = plan.query_start[1:][rows].astype(np.int64) - 1
    num_drafts = plan.num_drafts[rows]
    if not num_drafts.any():
        nothing: list[tuple[int, ...]] = [()] * len(rows)
        return Targets(rows, np.arange(len(rows)), nothing, slots, output_index, last)
    counts = num_drafts + 1
    first = np.cumsum(counts) - counts
    step = np.arange(counts.sum()) - np.repeat(first, counts)
    drafts = [
        plan.token_ids[end + 1 - count : end + 1].tolist()
        for end, count in zip(last.tolist(), num_drafts.tolist(), strict=True)
    ]
    return Targets(
        rows,
        first,
        drafts,
        np.repeat(slots, counts),
        (np.repeat(output_index, counts) + step).astype(np.int32),
        np.repeat(last - num_drafts, counts) + step,
    )


def verify(
    targets: Targets,
    tokens_P: NDArray[np.int64],
    failed_P: NDArray[np.bool_],
    logprobs_P: Sequence[TokenLogprobs | None] | None = None,
) -> Verified:
    """Keep those of the sampled tokens that are final.

    Args:
        tokens_P, failed_P: (P,) host.
        logprobs_P: None: no position has any.
    """
    tokens, failed = tokens_P.tolist(), failed_P.tolist()
    if not targets.has_drafts:  # each position is a row, and final
        scores_N = None if logprobs_P is None else tuple(_joined([item]) for item in logprobs_P)
        return Verified(tuple(zip(tokens, strict=True)), failed_P, scores_N)
    runs = []
    for first, drafts in zip(targets.first_N.tolist(), targets.drafts_N, strict=True):
        end = first + len(drafts) + 1
        runs.append((first, first + 1 + num_accepted(drafts, tokens[first:end], failed[first:end])))
    return Verified(
        tuple(tuple(tokens[first:end]) for first, end in runs),
        failed_P[targets.first_N],
        None if logprobs_P is None else tuple(_joined(logprobs_P[a:b]) for a, b in runs),
    )


def spread_tokens(targets: Targets, verified: Verified, num_rows: int) -> NDArray[np.int32]:
    """Return (num_rows,) tokens, or (num_rows, W) in a step with drafts; -1 where there is none."""
    if not targets.has_drafts:
        tokens_R = np.full(num_rows, -1, dtype=np.int32)
        tokens_R[targets.rows_N] = [token for (token,) in verified.tokens_N]
        return tokens_R
    width = max(1 + len(drafts) for drafts in targets.drafts_N)
    tokens = np.full((num_rows, width), -1, dtype=np.int32)
    for row, new in zip(targets.rows_N.tolist(), verified.tokens_N, strict=True):
        tokens[row, : len(new)] = new
    return tokens


def spread_accepted(
    targets: Targets, verified: Verified, num_rows: int
) -> NDArray[np.int32] | None:
    """Return (num_rows,) how many drafts were right; None in a step without drafts."""
    if not targets.has_drafts:
        return None
    accepted = np.zeros(num_rows, dtype=np.int32)
    accepted[targets.rows_N] = [len(tokens) - 1 for tokens in verified.tokens_N]
    return accepted


def _joined(entries: Sequence[TokenLogprobs | None]) -> Logprobs:
    known = tuple(entry for entry in entries if entry is not None)
    return known or None
