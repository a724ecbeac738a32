"""Rows as attention sees them, and the share of their queries that one rank attends for."""

from __future__ import annotations

import numpy as np
import pytest

from tokenspeed.executor.attended import AttendedRows, piece_of

ROWS = AttendedRows(
    query_start=np.array([0, 1, 2, 7, 12], dtype=np.int32),
    context_tokens=np.array([40, 9, 0, 16], dtype=np.int32),
    num_decode_rows=2,
    slots=np.array([3, 0, 1, 5], dtype=np.int32),
)
"""Two decodes, a fresh prompt's five tokens, and five more of another."""


@pytest.mark.parametrize(
    ("start", "stop", "query_start", "context", "decodes", "slots"),
    [
        (0, 12, [0, 1, 2, 7, 12], [40, 9, 0, 16], 2, [3, 0, 1, 5]),
        (0, 4, [0, 1, 2, 4], [40, 9, 0], 2, [3, 0, 1]),
        (4, 8, [0, 3, 4], [2, 16], 0, [1, 5]),
        (1, 2, [0, 1], [9], 1, [0]),
        (5, 5, [0], [], 0, []),
    ],
)
def test_a_piece_has_what_came_before_it_as_context(
    start: int,
    stop: int,
    query_start: list[int],
    context: list[int],
    decodes: int,
    slots: list[int],
) -> None:
    piece = piece_of(ROWS, start, stop)
    assert piece.query_start.tolist() == query_start
    assert piece.context_tokens.tolist() == context
    assert piece.num_decode_rows == decodes
    assert piece.slots.tolist() == slots
