"""One step of several partitions of data-parallel attention, as one plan and one result.

Every partition has a scheduler of its own, so a step has a segment for each: that scheduler's own
plan, or None where it has nothing to run. Joined, their rows and tokens stand in the order of the
partitions. Arrays are joined when they are first asked for: what a rank does not read costs it
nothing.

    partition     0          1      2
    rows          0 1 2 3    -      4 5
    slots         [0, S)     -      [2 S, 3 S)      S slots each
"""

from __future__ import annotations

from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed._core import CommitResult
    from tokenspeed.contracts.step import StepPlan


class JoinedPlan:
    """A step of all partitions, for whoever asks about rows, tokens and slots.

    What concerns one partition's cache (tables, copies, states) is in its segment.

    Args:
        segments: of each partition; None: nothing to run.
        slots_each: slots of one partition.
    """

    def __init__(
        self, step_id: int, segments: Sequence[StepPlan | None], *, slots_each: int
    ) -> None:
        self.step_id = step_id
        self.segments = tuple(segments)
        self.partition_tokens = tuple(_each(segments, "num_tokens"))
        self.row_start = (0, *accumulate(_each(segments, "num_rows")))
        self.num_rows = self.row_start[-1]
        self.num_tokens = sum(self.partition_tokens)
        self.num_decode_rows = sum(_each(segments, "num_decode_rows"))
        self._slots_each = slots_each
        self._full = [(i, plan) for i, plan in enumerate(segments) if plan is not None]

    @property
    def chunk_rows(self) -> list[int]:
        """Rows that fill prompts: they follow the decodes of their own segment."""
        return [
            row
            for i, plan in self._full
            for row in range(self.row_start[i] + plan.num_decode_rows, self.row_start[i + 1])
        ]

    @cached_property
    def request_ids(self) -> NDArray[np.int64]:
        """(R,) engine request ids."""
        return np.concatenate([plan.request_ids for _, plan in self._full])

    @cached_property
    def slots(self) -> NDArray[np.int32]:
        """(R,) slot of each row's request among those of all partitions."""
        return np.concatenate(
            [plan.slots + np.int32(i * self._slots_each) for i, plan in self._full]
        )

    @cached_property
    def query_start(self) -> NDArray[np.int32]:
        """(R + 1,) row r owns query tokens [query_start[r], query_start[r + 1])."""
        starts = [0, *accumulate(plan.num_tokens for _, plan in self._full)]
        parts = [
            plan.query_start[:-1] + np.int32(start)
            for start, (_, plan) in zip(starts, self._full, strict=False)
        ]
        return np.concatenate([*parts, np.array(starts[-1:], dtype=np.int32)])

    @cached_property
    def context_tokens(self) -> NDArray[np.int32]:
        """(R,) tokens of the request already in the cache."""
        return np.concatenate([plan.context_tokens for _, plan in self._full])

    @cached_property
    def output_index(self) -> NDArray[np.int32]:
        """(R,) index of the output token that this row samples; -1: none."""
        return np.concatenate([plan.output_index for _, plan in self._full])

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        """(T,) query tokens; see the contract."""
        return np.concatenate([plan.token_ids for _, plan in self._full])

    @cached_property
    def num_drafts(self) -> NDArray[np.int32]:
        """(R,) drafts of each row, the last of its query tokens."""
        return np.concatenate([plan.num_drafts for _, plan in self._full])

    @cached_property
    def admitted(self) -> NDArray[np.int32]:
        """(A, 2) (row, slot) of requests whose slot starts with this step."""
        return np.concatenate(
            [
                plan.admitted + np.array([self.row_start[i], i * self._slots_each], dtype=np.int32)
                for i, plan in self._full
            ]
        )


class JoinedResult:
    """What became final in several partitions: a CommitResult's entries, one after the other.

    Args:
        parts: (first row of the partition's segment, its result).
    """

    def __init__(self, parts: Sequence[tuple[int, CommitResult]]) -> None:
        self._parts = tuple(parts)

    @property
    def request_ids(self) -> NDArray[np.int64]:
        """Engine request ids."""
        return np.concatenate([np.arange(0), *(result.request_ids for _, result in self._parts)])

    @property
    def reports(self) -> NDArray[np.int32]:
        """(F, 6), the first column the entry; see `CommitResult.reports`."""
        shifted, first = [np.zeros((0, 6), dtype=np.int32)], 0
        for _, result in self._parts:
            if len(result.reports):
                shifted.append(result.reports + np.array([first, 0, 0, 0, 0, 0], dtype=np.int32))
            first += len(result.request_ids)
        return np.concatenate(shifted)

    def entries(self) -> list[tuple[int, tuple[int, ...], int, int, int]]:
        """Return (request id, its new tokens, finish reason, cached tokens, row) of each entry."""
        entries = []
        for first_row, result in self._parts:
            own = result.entries()
            if first_row:
                own = [(*entry[:4], entry[4] + first_row if entry[4] >= 0 else -1) for entry in own]
            entries += own
        return entries


def chunk_rows(plan: StepPlan | JoinedPlan) -> Sequence[int]:
    """Return the rows of a plan that fill prompts."""
    if isinstance(plan, JoinedPlan):
        return plan.chunk_rows
    return range(plan.num_decode_rows, plan.num_rows)


class IdlePlan:
    """The step of a partition that has nothing to run: no row, no token.

    Args:
        num_state_groups: of the model's cache.
    """

    step_id = num_rows = num_decode_rows = num_tokens = 0

    def __init__(self, num_state_groups: int = 0) -> None:
        self.request_ids = np.zeros(0, dtype=np.int64)
        self.slots = self.context_tokens = self.output_index = np.zeros(0, dtype=np.int32)
        self.token_ids = self.num_drafts = self.slots
        self.query_start = np.zeros(1, dtype=np.int32)
        self.state_rows = np.zeros((0, num_state_groups, 2), dtype=np.int32)


def _each(segments: Sequence[StepPlan | None], name: str) -> list[int]:
    return [0 if plan is None else int(getattr(plan, name)) for plan in segments]
