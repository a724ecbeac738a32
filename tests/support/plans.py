"""Step plans made by hand, for tests of the executor without a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plan; `output_index` -1 samples nothing."""

    slot: int
    tokens: Sequence[int]
    context_tokens: int = 0
    output_index: int = -1
    request_id: int = 0


@dataclass(slots=True)
class HandPlan:
    """Satisfies contracts.step.StepPlan."""

    step_id: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    request_ids: NDArray[np.int64]
    slots: NDArray[np.int32]
    query_start: NDArray[np.int32]
    context_tokens: NDArray[np.int32]
    output_index: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    num_drafts: NDArray[np.int32]
    admitted: NDArray[np.int32]
    block_updates: NDArray[np.int32]
    copies: NDArray[np.int32]
    state_rows: NDArray[np.int32]
    transfers: NDArray[np.int32]


def make_plan(
    rows: Sequence[Row],
    *,
    step_id: int = 0,
    num_decode_rows: int = 0,
    admitted: Sequence[tuple[int, int]] = (),
    block_updates: Sequence[tuple[int, int, int, int]] = (),
    copies: Sequence[tuple[int, int, int, int]] = (),
    state_rows: Sequence[Sequence[tuple[int, int]]] = (),
) -> HandPlan:
    """Flatten rows into a plan; all arrays read-only, as the control plane's are.

    Args:
        state_rows: per row and state group [read, write].
    """
    lengths = [len(row.tokens) for row in rows]
    plan = HandPlan(
        step_id=step_id,
        num_rows=len(rows),
        num_decode_rows=num_decode_rows,
        num_tokens=sum(lengths),
        request_ids=np.array([row.request_id for row in rows], dtype=np.int64),
        slots=_int32([row.slot for row in rows]),
        query_start=_int32(np.cumsum([0, *lengths])),
        context_tokens=_int32([row.context_tokens for row in rows]),
        output_index=_int32([row.output_index for row in rows]),
        token_ids=_int32([token for row in rows for token in row.tokens]),
        num_drafts=_int32([0] * len(rows)),
        admitted=_int32(admitted).reshape(-1, 2),
        block_updates=_int32(block_updates).reshape(-1, 4),
        copies=_int32(copies).reshape(-1, 4),
        state_rows=_int32(state_rows).reshape(len(rows), -1, 2),
        transfers=_int32(()).reshape(-1, 6),
    )
    plan.request_ids.flags.writeable = False
    return plan


def _int32(values: object) -> NDArray[np.int32]:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array
