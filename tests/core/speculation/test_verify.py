"""Drafts are right as long as they are the tokens that come anyway."""

from __future__ import annotations

import pytest

from tokenspeed.speculation.verify import num_accepted


@pytest.mark.parametrize(
    ("drafts", "targets", "accepted"),
    [
        ([], [7], 0),
        ([7, 8], [7, 8, 9], 2),
        ([7, 8, 9], [7, 5, 9, 1], 1),
        ([1, 8], [7, 8, 9], 0),
    ],
)
def test_leading_drafts_that_equal_their_targets_are_accepted(
    drafts: list[int], targets: list[int], accepted: int
) -> None:
    assert num_accepted(drafts, targets, [False] * len(targets)) == accepted


def test_nothing_is_accepted_that_leads_to_a_position_that_failed() -> None:
    # Token 8 is right, but after it comes no number: it is this row's last new token, and the next
    # row starts from it, fails, and fails alone.
    assert num_accepted([7, 8, 9], [7, 8, 0, 0], [False, False, True, True]) == 1
