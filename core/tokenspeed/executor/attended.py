"""A step's rows as attention sees them: decode rows of one query token each, then chunks.

A decode row with drafts is given to the backend as one row a token, all with the block table of the
request. Keys are written before any query attends, so each sees the drafts before it and none
after; and it is computed exactly as it would be in a step of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed.contracts.step import StepPlan


@dataclass(frozen=True, slots=True)
class AttendedRows:
    """The fields of an AttentionBatch that follow from the rows; `slots` whose tables they use."""

    query_start: NDArray[np.int32]
    context_tokens: NDArray[np.int32]
    num_decode_rows: int
    slots: NDArray[np.int32]


def attended_rows(plan: StepPlan) -> AttendedRows:
    """Return the plan's rows, each decode row cut into its query tokens.

    Arrays are copies: tensors over the plan's read-only ones would warn, and outlive the plan.
    """
    num_rows, starts = plan.num_decode_rows, plan.query_start
    num_tokens = int(starts[num_rows])
    if num_tokens == num_rows:
        return AttendedRows(starts.copy(), plan.context_tokens.copy(), num_rows, plan.slots)
    rows = np.repeat(np.arange(num_rows), np.diff(starts[: num_rows + 1]))
    tokens = np.arange(num_tokens, dtype=np.int32)
    positions = plan.context_tokens[rows] + tokens - starts[rows]
    return AttendedRows(
        query_start=np.concatenate([tokens, starts[num_rows:]]),
        context_tokens=np.concatenate([positions, plan.context_tokens[num_rows:]]),
        num_decode_rows=num_tokens,
        slots=np.concatenate([plan.slots[rows], plan.slots[num_rows:]]),
    )


def piece_of(rows: AttendedRows, start: int, stop: int) -> AttendedRows:
    """Return the rows of the query tokens [start, stop) alone; those at the ends may be cut.

    The keys of all tokens are in the cache before any query attends, so a row's second half has its
    first half as context.
    """
    starts, ends = rows.query_start[:-1], rows.query_start[1:]
    first, last = np.maximum(starts, start), np.minimum(ends, stop)
    kept = np.flatnonzero(last > first)
    first, lengths = first[kept], (last - first)[kept]
    query_start = np.zeros(len(kept) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start[1:])
    return AttendedRows(
        query_start=query_start,
        context_tokens=rows.context_tokens[kept] + first - starts[kept],
        num_decode_rows=int(np.count_nonzero(kept < rows.num_decode_rows)),
        slots=rows.slots[kept],
    )
