"""Drafts are verified where they pay: by what a token costs, and by how often they were right."""

from __future__ import annotations

import random

import pytest

from tokenspeed.speculation.pace import BARS, FIRST_TOKEN_COST, Chances, StepCost


def cost_of(sizes: list[int], *, base_s: float, token_s: float) -> StepCost:
    """Return the cost learnt from steps of these sizes."""
    cost = StepCost()
    for size in sizes * 30:
        cost.observe(size, base_s + token_s * size)
    return cost


def test_before_any_step_the_assumed_cost_counts() -> None:
    assert StepCost().bar(1) == pytest.approx(FIRST_TOKEN_COST)


@pytest.mark.parametrize("token_s", [0.001, 0.004])
@pytest.mark.parametrize("num_rows", [1, 4])
def test_the_bar_is_a_tokens_share_of_the_step(token_s: float, num_rows: int) -> None:
    cost = cost_of([1, 9, 4, 17], base_s=0.02, token_s=token_s)
    share = num_rows * token_s / (0.02 + token_s * num_rows)
    assert cost.bar(num_rows) == pytest.approx(share, rel=0.1)


def test_a_full_batch_on_a_busy_device_has_a_high_bar_and_a_single_stream_a_low_one() -> None:
    cost = cost_of([1, 8, 32, 64], base_s=0.01, token_s=0.005)
    assert cost.bar(1) < 0.4 < 0.85 < cost.bar(32) <= BARS[1]


def test_steps_of_one_size_leave_the_assumed_cost() -> None:
    assert cost_of([1], base_s=0.02, token_s=0.001).bar(1) == pytest.approx(FIRST_TOKEN_COST)


def test_one_step_that_others_delayed_moves_the_bar_little() -> None:
    cost = cost_of([1, 9], base_s=0.02, token_s=0.002)
    before = cost.bar(1)
    cost.observe(9, 10.0)
    assert cost.bar(1) < 3 * before


def test_chances_follow_what_came_and_lengths_follow_the_chances() -> None:
    chances = Chances(2, Chances(2))
    assert chances.worth(0, 0.2, 8) == 2, "unknown: one of two is right, 0.5 ** 2 is above 0.2"
    for _ in range(20):
        chances.learn(0, [1, 2, 3, 4], [1, 2, 3, 4, 5])
        chances.learn(1, [1, 2, 3, 4], [9])
    assert chances.chance(0) > 0.95
    assert chances.worth(0, 0.2, 8) == 8
    assert chances.worth(0, 0.2, 3) == 3
    assert chances.chance(1) < 0.1
    assert chances.worth(1, 0.2, 8) == 0


def test_a_request_that_stops_copying_stops_drafting_and_starts_again_untried() -> None:
    chances = Chances(1, Chances(1))
    for _ in range(30):
        chances.learn(0, [1] * 8, [1] * 9)
    steps_to_stop = next(i for i in range(100) if not learnt(chances, [2], came=[1]))
    steps_to_start = next(i for i in range(100) if learnt(chances, [1], came=[1]))
    assert steps_to_stop < 30
    assert steps_to_start < 10


def learnt(chances: Chances, drafts: list[int], *, came: list[int]) -> int:
    """Learn from a step whose drafts were proposed and may not have been verified."""
    chances.learn(0, drafts, came)
    return chances.worth(0, 0.15, 8)


def test_drafts_that_are_never_right_cost_less_than_two_in_a_hundred_tokens() -> None:
    everyone, drafted, rows = Chances(6), 0, 0
    draw = random.Random(3)
    for _ in range(20):
        chances = Chances(6, everyone)
        for _ in range(100):
            grade = draw.randrange(3)
            num = chances.worth(grade, StepCost().bar(1), 8)
            drafted, rows = drafted + num, rows + 1
            chances.learn(grade, [draw.randrange(50) for _ in range(8)], [draw.randrange(50)])
    assert drafted * FIRST_TOKEN_COST < 0.02 * rows
