"""Rows with drafts: how attention and state see them, where they are sampled, what is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tokenspeed.contracts.model import StateRows
from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.executor import InlineLink
from tokenspeed.executor.attended import attended_rows
from tokenspeed.executor.stages import StatePieces
from tokenspeed.executor.targets import spread_accepted, spread_tokens, targets_of, verify
from tokenspeed.ops.state import in_stages

CPU = torch.device("cpu")


def plan_of(
    rows: list[tuple[int, list[int], int]], *, num_decode_rows: int, index: list[int] | None = None
) -> Any:
    """Make a plan of rows (context tokens, query tokens, how many of them are drafts)."""
    return SimpleNamespace(
        num_rows=len(rows),
        num_decode_rows=num_decode_rows,
        num_tokens=sum(len(tokens) for _, tokens, _ in rows),
        query_start=np.cumsum([0, *(len(tokens) for _, tokens, _ in rows)], dtype=np.int32),
        context_tokens=np.array([context for context, _, _ in rows], dtype=np.int32),
        slots=np.arange(10, 10 + len(rows), dtype=np.int32),
        token_ids=np.array([token for _, tokens, _ in rows for token in tokens], dtype=np.int32),
        num_drafts=np.array([drafts for _, _, drafts in rows], dtype=np.int32),
        output_index=np.array(index or [0] * len(rows), dtype=np.int32),
    )


MIXED = [(40, [1, 2, 3], 2), (7, [4], 0), (20, [5, 6, 7, 8], 1), (0, [9, 10], 0)]
"""Two drafts; none; one draft after two replayed tokens; and a chunk."""


def test_attention_sees_one_row_a_decode_token_and_chunks_whole() -> None:
    rows = attended_rows(plan_of(MIXED, num_decode_rows=3))
    assert rows.num_decode_rows == 8
    assert rows.query_start.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert rows.context_tokens.tolist() == [40, 41, 42, 7, 20, 21, 22, 23, 0]
    assert rows.slots.tolist() == [10, 10, 10, 11, 12, 12, 12, 12, 13]
    assert rows.query_start.dtype == rows.context_tokens.dtype == np.int32


def test_without_drafts_rows_stay_as_they_are() -> None:
    plan = plan_of([(4, [1], 0), (0, [2, 3], 0)], num_decode_rows=1)
    rows = attended_rows(plan)
    assert rows.query_start.tolist() == [0, 1, 3]
    assert (rows.num_decode_rows, rows.slots.tolist()) == (1, [10, 11])


def rows_of(speculation: str) -> StateRows:
    # Read row, then the rows written: before the drafts, after the first, after the second.
    table = torch.tensor([[1, 2, 3, -1], [11, 12, 13, 14], [21, -1, 23, -1], [31, -1, -1, -1]])
    pieces = StatePieces(plan_of(MIXED, num_decode_rows=3), InlineLink(CPU))
    return pieces.rows_of(table, is_replayed=speculation == "replay")


def test_states_with_rows_per_position_go_on_draft_by_draft() -> None:
    rows = rows_of("rows_per_position")
    seen = [
        (stage.tokens_P.tolist(), stage.query_start.tolist(), stage.rows.read_R.tolist(),
         stage.rows.write_R.tolist())
        for stage in rows.stages
    ]  # fmt: skip
    assert seen == [
        ([0, 3, 4, 5, 6, 8, 9], [0, 1, 2, 5, 7], [1, 2, 3, -1], [11, 12, 13, 14]),
        ([1, 7], [0, 1, 2], [11, 13], [21, 23]),
        ([2], [0, 1], [21], [31]),
    ]


def test_replayed_states_read_all_drafts_at_once_and_keep_none() -> None:
    first, second = rows_of("replay").stages
    assert first.tokens_P.tolist() == [0, 3, 4, 5, 6, 8, 9]
    assert second.tokens_P.tolist() == [1, 2, 7]
    assert second.query_start.tolist() == [0, 2, 3]
    assert second.rows.read_R.tolist() == [11, 13]
    assert second.rows.write_R.tolist() == [0, 0], "the sentinel"


def test_stages_give_what_token_by_token_gives() -> None:
    def apply(x_T: torch.Tensor, rows: StateRows, query_start: Any) -> torch.Tensor:
        out_T = torch.empty_like(x_T)
        for row in range(len(rows.read_R)):
            total = float(state[rows.read_R[row]]) if rows.read_R[row] >= 0 else 0.0
            for token in range(query_start[row], query_start[row + 1]):
                out_T[token] = total = 2 * total + float(x_T[token])
            state[rows.write_R[row]] = total
        return out_T

    plan = plan_of(MIXED, num_decode_rows=3)
    for speculation in ("rows_per_position", "replay"):
        state = torch.zeros(40)
        state[1:4] = torch.tensor([100.0, 200.0, 300.0])
        x_T = torch.from_numpy(plan.token_ids).float()
        out = in_stages(apply, (x_T,), rows_of(speculation), plan.query_start).tolist()
        assert out[:3] == [201, 404, 811]
        assert out[3] == 404
        assert out[4:8] == [605, 1216, 2439, 4886]
        assert out[8:] == [9, 28]
        assert state[[11, 12, 13, 14]].tolist() == [201, 404, 2439, 28]
        if speculation == "rows_per_position":
            assert state[[21, 31, 23]].tolist() == [404, 811, 4886]


def logprobs(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 1)


def test_drafts_and_the_token_before_them_are_sampled_each_for_its_output_position() -> None:
    targets = targets_of(plan_of(MIXED, num_decode_rows=3, index=[5, 0, 9, -1]))
    assert targets.rows_N.tolist() == [0, 1, 2]
    assert targets.places_P.tolist() == [0, 1, 2, 3, 6, 7]
    assert targets.slots_P.tolist() == [10, 10, 10, 11, 12, 12]
    assert targets.output_index_P.tolist() == [5, 6, 7, 0, 9, 10]
    assert targets.ahead() == [[], [2], [2, 3], [], [], [8]]


def test_rows_bring_their_right_drafts_and_one_token_more() -> None:
    targets = targets_of(plan_of(MIXED, num_decode_rows=3, index=[5, 0, 9, -1]))
    tokens = [2, 99, 50, 60, 8, 70]
    scores = [logprobs(token) if place < 3 else None for place, token in enumerate(tokens)]
    verified = verify(targets, np.array(tokens), np.zeros(6, dtype=np.bool_), scores)
    assert verified.tokens_N == ((2, 99), (60,), (8, 70))
    assert spread_tokens(targets, verified, 4).tolist() == [
        [2, 99, -1], [60, -1, -1], [8, 70, -1], [-1, -1, -1]
    ]  # fmt: skip
    accepted = spread_accepted(targets, verified, 4)
    assert accepted is not None
    assert accepted.tolist() == [1, 0, 1, 0]
    assert verified.logprobs_N is not None
    assert [entry and [one.token_id for one in entry] for entry in verified.logprobs_N] == [
        [2, 99], None, None
    ]  # fmt: skip


def test_a_row_fails_only_where_its_first_position_failed() -> None:
    targets = targets_of(plan_of(MIXED, num_decode_rows=3, index=[5, 0, 9, -1]))
    failed = np.array([False, False, True, True, False, True])
    verified = verify(targets, np.array([2, 3, 0, 0, 8, 0]), failed)
    assert verified.failed_N.tolist() == [False, True, False]
    assert verified.tokens_N == ((2, 3), (0,), (8,)), "what failed later is met by the next row"
