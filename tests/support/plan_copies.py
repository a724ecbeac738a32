"""Copies of the control plane's answers: it may reuse its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenspeed.scheduler import FINISH_REASONS, MATCH_ENDS

PLAN_ARRAYS = (
    "request_ids", "slots", "query_start", "context_tokens", "output_index", "token_ids",
    "admitted", "block_updates", "copies", "state_rows", "transfers", "store_moves", "store_keys",
    "store_tokens",
)  # fmt: skip
RESULT_ARRAYS = (
    "request_ids", "tokens", "finish_reasons", "cached_tokens", "rows", "num_tokens", "reports",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plan; rows that decode may end in drafts."""

    index: int
    request_id: int
    slot: int
    context: int
    token_ids: list[int]
    num_drafts: int
    output_index: int
    is_decode: bool


@dataclass(slots=True)
class PlanCopy:
    """A plan's arrays, and what the simulated device makes of its rows.

    Args:
        drafts: per row; those drafted on the device are chosen by the driver.
        sampled: per row, the tokens that it brings; empty: it samples none.
        failed: rows whose logits were not finite.
        places: per row, the position at which the device really ran it.
    """

    step_id: int
    num_rows: int
    num_decode_rows: int
    num_tokens: int
    arrays: dict[str, NDArray[Any]]
    drafts: list[list[int]] = field(default_factory=list)
    sampled: list[list[int]] = field(default_factory=list)
    failed: list[bool] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @staticmethod
    def of(plan: Any) -> PlanCopy:
        """Copy a StepPlan."""
        arrays = {name: np.array(getattr(plan, name)) for name in PLAN_ARRAYS}
        return PlanCopy(plan.step_id, plan.num_rows, plan.num_decode_rows, plan.num_tokens, arrays)

    def rows(self) -> list[Row]:
        """Return the rows, one by one."""
        names = ("request_ids", "slots", "context_tokens", "output_index")
        ids, slots, contexts, outputs = (self.arrays[name].tolist() for name in names)
        start, tokens = self.arrays["query_start"].tolist(), self.arrays["token_ids"].tolist()
        rows = []
        for index in range(self.num_rows):
            query = tokens[start[index] : start[index + 1]]
            is_decode = index < self.num_decode_rows
            num_drafts = len(query) - 1 if is_decode else 0
            fields = ids[index], slots[index], contexts[index], query, num_drafts, outputs[index]
            rows.append(Row(index, *fields, is_decode))
        return rows

    def outcome(self) -> dict[str, Any]:
        """Return the arguments of `commit`: one token per row where no row had drafts."""
        failed = np.array(self.failed, np.bool_) if any(self.failed) else None
        if not any(self.drafts):
            return {"tokens": _padded(self.sampled, 1).reshape(-1), "failed": failed}
        width = max(len(tokens) for tokens in (*self.sampled, [0]))
        accepted = np.array([max(0, len(tokens) - 1) for tokens in self.sampled], np.int32)
        tokens = _padded(self.sampled, width)
        return {"tokens": tokens, "accepted": accepted, "failed": failed}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a commit's result; `report` is None but with a request's first token."""

    request_id: int
    tokens: tuple[int, ...]
    reason: str
    cached: int
    row: int
    report: tuple[int, ...] | None = None


def result_arrays(result: Any) -> dict[str, NDArray[Any]]:
    """Copy a CommitResult."""
    return {name: np.array(getattr(result, name)) for name in RESULT_ARRAYS}


def entries_of(arrays: dict[str, NDArray[Any]]) -> list[Entry]:
    """Take a result apart; the last field of a report becomes its name's index."""
    reports = {row[0]: tuple(row[1:]) for row in arrays["reports"].tolist()}
    entries, begin, flat = [], 0, arrays["tokens"].tolist()
    names = ("request_ids", "num_tokens", "finish_reasons", "cached_tokens", "rows")
    columns = zip(*(arrays[name].tolist() for name in names), strict=True)
    for index, (request_id, count, reason, cached, row) in enumerate(columns):
        tokens = tuple(flat[begin : begin + count])
        begin += max(1, count)
        name = FINISH_REASONS[reason]
        entries.append(Entry(request_id, tokens, name, cached, row, reports.get(index)))
    if begin != len(flat):
        raise AssertionError(f"{len(flat)} tokens in a result whose entries own {begin}")
    return entries


def end_of_match(report: tuple[int, ...]) -> str:
    """Return why a report's match ended."""
    return str(MATCH_ENDS[report[4]])


def _padded(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int32]:
    tokens = np.full((len(rows), width), -1, np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
    return tokens
