"""Rates are over whole seconds of the recent past; waits over the last requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tokenspeed.engine.activity import WAITS, WINDOW_S, Activity


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rates_are_means_over_the_window_and_leave_the_second_that_runs_out(clock: Clock) -> None:
    activity = Activity(clock)
    for second in range(20):
        clock.now_s = 100.0 + second
        for _ in range(second):
            activity.note_step(computed_tokens=10, output_tokens=2)
    clock.now_s = 119.9
    steps = sum(range(9, 19)) / WINDOW_S
    rates = activity.rates()
    assert rates["steps_s"] == steps
    assert rates["computed_tok_s"] == 10 * steps
    assert rates["output_tok_s"] == 2 * steps


def test_rates_of_a_young_engine_are_over_its_age(clock: Clock) -> None:
    activity = Activity(clock)
    activity.note_step(computed_tokens=40, output_tokens=8)
    clock.now_s += 2.5
    assert (activity.rates()["window_s"], activity.rates()["output_tok_s"]) == (2, 4.0)


def test_an_idle_window_is_zero_whatever_was_before(clock: Clock) -> None:
    activity = Activity(clock)
    activity.note_step(computed_tokens=40, output_tokens=8)
    clock.now_s += WINDOW_S + 2
    assert activity.rates()["output_tok_s"] == 0.0


def test_waits_are_quantiles_of_the_last_requests(clock: Clock) -> None:
    activity = Activity(clock)
    assert activity.rates()["ttft_ms_p50"] is None
    for index in range(2 * WAITS):
        activity.note_first_token(index / 1000)
    rates = activity.rates()
    assert (rates["ttft_requests"], rates["ttft_ms_p50"]) == (WAITS, WAITS + WAITS // 2)
    assert rates["ttft_ms_p99"] == WAITS + int(WAITS * 0.99)


def test_the_last_plan_is_kept_by_value(clock: Clock) -> None:
    activity = Activity(clock)
    assert activity.last_plan() is None
    plan: Any = SimpleNamespace(step_id=7, num_rows=5, num_decode_rows=3, num_tokens=131)
    activity.note_plan(plan, 0.000012)
    plan.num_rows = 99
    activity.note_times(model_s=0.25, step_s=0.251)
    clock.now_s += 1.5
    assert activity.last_plan() == {
        "step_id": 7,
        "age_s": 1.5,
        "rows": 5,
        "decode_rows": 3,
        "prefill_rows": 2,
        "tokens": 131,
        "plan_us": 12.0,
        "model_us": 250000.0,
        "step_us": 251000.0,
    }


def test_who_is_refused_comes_back_when_its_turn_may_be(clock: Clock) -> None:
    activity = Activity(clock)
    clock.now_s += 20
    assert activity.drain_s(5, waited_s=8.4) == 8, "nothing ends: as long again as it waited"
    assert activity.drain_s(5, waited_s=0.1) == 1
    assert activity.drain_s(5, waited_s=900.0) == 60
    for _ in range(10):
        activity.note_end()
    clock.now_s += 2
    assert activity.drain_s(5, waited_s=8.4) == 5, "10 ended in 10 s"
