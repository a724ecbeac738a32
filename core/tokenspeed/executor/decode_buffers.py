"""Memory of decode steps that are replayed: what a graph reads and writes, at the same addresses.

Steps of every size share it, each its beginning. Rows that a step does not use are padded, anew in
each step: slot of nobody, one token, the sentinel block, state that is read as zeros and written to
the sentinel. Legend: R rows, F fields, G further fields, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.model import StateRows
from tokenspeed.contracts.step import SENTINEL_BLOCK
from tokenspeed.ops.step import FIRST_FURTHER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed.contracts.step import StepPlan

NO_STATE = -1
"""State row that is read as zeros."""


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """The memory of steps of R rows; tensors are views of what all sizes share.

    Args:
        rows_RF: (R, F) int32; see `step.prepare`, which writes the next five.
        token_ids_R, positions_R: (R,) int64.
        lengths_R, slots_R: (R,) int32.
        output_index_R: (R,) int64.
        states: of each state group.
        results_R: (R,) int64; sampled tokens, -1 where the row failed.
    """

    rows_RF: torch.Tensor
    token_ids_R: torch.Tensor
    positions_R: torch.Tensor
    lengths_R: torch.Tensor
    slots_R: torch.Tensor
    further_GR: torch.Tensor
    output_index_R: torch.Tensor
    states: tuple[StateRows, ...]
    results_R: torch.Tensor


class DecodeBuffers:
    """Buffers for up to `max_rows` rows.

    Args:
        spare_slot: of padded rows.
        num_state_groups: whose rows come with a plan.
    """

    def __init__(
        self, max_rows: int, *, spare_slot: int, num_state_groups: int, device: torch.device
    ) -> None:
        self._spare_slot = spare_slot
        self._num_further = 1 + 2 * num_state_groups
        num_fields = FIRST_FURTHER + self._num_further
        self._rows = torch.from_numpy(self._padded(max_rows)).to(device).view(max_rows, num_fields)
        self._int64 = torch.zeros((3, max_rows), dtype=torch.int64, device=device)
        self._int32 = torch.zeros((2, max_rows), dtype=torch.int32, device=device)
        size = self._num_further * max_rows
        self._further = torch.zeros(size, dtype=torch.int64, device=device)

    def of(self, num_rows: int) -> DecodeStep:
        """Return the memory of steps of so many rows."""
        further_GR = self._further[: self._num_further * num_rows].view(-1, num_rows)
        token_ids_R, positions_R, results_R = self._int64[:, :num_rows]
        lengths_R, slots_R = self._int32[:, :num_rows]
        output_index_R, *states = further_GR
        return DecodeStep(
            self._rows[:num_rows],
            token_ids_R,
            positions_R,
            lengths_R,
            slots_R,
            further_GR,
            output_index_R,
            tuple(map(StateRows, states[::2], states[1::2])),
            results_R,
        )

    def pack(self, plan: StepPlan, num_rows: int) -> NDArray[np.int32]:
        """Return (num_rows, F), the rows of a plan and padded ones behind them."""
        rows_RF = self._padded(num_rows)
        own_RF = rows_RF[: plan.num_rows]
        columns: Sequence[NDArray[np.int32]] = (
            plan.slots,
            plan.context_tokens,
            plan.token_ids,
            plan.output_index,
        )
        for field, values in enumerate(columns):
            own_RF[:, field] = values
        # Without drafts a group has the state behind the token to write, whatever else it could.
        own_RF[:, len(columns) :] = plan.state_rows[:, :, :2].reshape(plan.num_rows, -1)
        return rows_RF

    def _padded(self, num_rows: int) -> NDArray[np.int32]:
        row = [self._spare_slot, 0, 0, 0]
        row += [NO_STATE, SENTINEL_BLOCK] * (self._num_further // 2)
        return np.tile(np.array(row, dtype=np.int32), (num_rows, 1))
