"""How the rows of a step with drafts are cut, so that the state before each draft can be kept.

    query tokens of a row    | replayed, last token | draft 1 | draft 2 | ...
    rows per position        | stage 0: reads, w[0] | 1: w[1] | 2: w[2] |      each reads what the
    replay                   | stage 0: reads, w[0] | 1: all drafts at once    one before it wrote

What a replayed group computes of drafts is written to the sentinel: the next step reads the
accepted ones again. Legend: R rows, W rows of state that a row writes, at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed.contracts.model import StateRows, StateStage
from tokenspeed.contracts.step import SENTINEL_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from numpy.typing import NDArray

    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.host_link import HostLink


@dataclass(frozen=True, slots=True)
class _Cut:
    """The pieces of one stage: their rows, (pieces,) int64 device; None: all. See StateStage."""

    rows: torch.Tensor | None
    tokens: torch.Tensor
    query_start: NDArray[np.int32]


class StatePieces:
    """The cuts of one step, shared by its state groups."""

    def __init__(self, plan: StepPlan, link: HostLink) -> None:
        self._link = link
        self._cuts: dict[bool, tuple[_Cut, ...]] = {}
        self._most = int(plan.num_drafts.max(initial=0))
        if self._most == 0:  # as in most steps: nothing is cut
            return
        self._starts = plan.query_start[:-1].astype(np.int64)
        self._ends = plan.query_start[1:].astype(np.int64)
        self._num_drafts = plan.num_drafts.astype(np.int64)

    def rows_of(self, rows_WR: torch.Tensor, *, is_replayed: bool) -> StateRows:
        """Return where one group is read and written.

        Args:
            rows_WR: (1 + W, R) int64 device; the row that is read, then those that are written.
            is_replayed: the group's way to take drafts back.
        """
        read_R, write_R = rows_WR[0], rows_WR[1]
        if not self._most:
            return StateRows(read_R, write_R)
        if is_replayed not in self._cuts:
            later = self._drafts_at_once() if is_replayed else self._draft_by_draft()
            self._cuts[is_replayed] = (self._before_drafts(), *later)
        first, *later_cuts = self._cuts[is_replayed]
        stages = [StateStage(first.tokens, first.query_start, StateRows(read_R, write_R))]
        for number, cut in enumerate(later_cuts, start=1):
            assert cut.rows is not None, "only the first stage has all rows"
            read_P = rows_WR[number].index_select(0, cut.rows)
            if is_replayed:
                write_P = read_P.new_full(read_P.shape, SENTINEL_BLOCK)
            else:
                write_P = rows_WR[number + 1].index_select(0, cut.rows)
            stages.append(StateStage(cut.tokens, cut.query_start, StateRows(read_P, write_P)))
        return StateRows(read_R, write_R, tuple(stages))

    def _before_drafts(self) -> _Cut:
        return self._cut(None, self._starts, self._ends - self._num_drafts)

    def _draft_by_draft(self) -> Iterator[_Cut]:
        for number in range(self._most):
            rows = np.flatnonzero(self._num_drafts > number)
            first = (self._ends - self._num_drafts)[rows] + number
            yield self._cut(rows, first, first + 1)

    def _drafts_at_once(self) -> Iterator[_Cut]:
        rows = np.flatnonzero(self._num_drafts)
        yield self._cut(rows, (self._ends - self._num_drafts)[rows], self._ends[rows])

    def _cut(
        self, rows: NDArray[np.int64] | None, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> _Cut:
        """Return the pieces [first, last) of rows."""
        lengths = last - first
        query_start = np.concatenate([[0], np.cumsum(lengths)])
        tokens = np.arange(query_start[-1]) + np.repeat(first - query_start[:-1], lengths)
        places, *on_device = self._link.upload(tokens, *([] if rows is None else [rows]))
        return _Cut(on_device[0] if on_device else None, places, query_start.astype(np.int32))
