"""The built-in policies: what they learn of a session, and the keys they give."""

from __future__ import annotations

import pytest

from tokenspeed.contracts.policy import Arrival, Keys
from tokenspeed.scheduler.policies import PRIOR_S, LruPolicy, ReturnTimePolicy


def arrive(policy: ReturnTimePolicy, at_s: float, session: int = 1) -> float:
    """Let a session ask at a time; returns the seconds it is expected to stay away."""
    return policy.keys(Arrival(session, 0, 0, 1000, int(at_s * 1e6))).gap_us * 1e-6


def visit(policy: ReturnTimePolicy, at_s: float, session: int = 1, service_s: float = 0) -> float:
    expected = arrive(policy, at_s, session)
    policy.turn_ended(session, int((at_s + service_s) * 1e6))
    return expected


def test_a_new_session_is_taken_to_be_like_most() -> None:
    assert arrive(ReturnTimePolicy(), 5.0) == pytest.approx(PRIOR_S)


def test_a_steady_session_is_learned() -> None:
    policy = ReturnTimePolicy()
    expected = [visit(policy, 3.0 * turn) for turn in range(40)]
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] == pytest.approx(3.1, rel=0.05)


def test_being_away_counts_from_the_end_of_the_turn() -> None:
    policy = ReturnTimePolicy()
    for turn in range(40):
        expected = visit(policy, 10.0 * turn, service_s=7.0)
    assert expected == pytest.approx(3.1, rel=0.05)


def test_a_long_pause_weighs_by_its_logarithm() -> None:
    policy = ReturnTimePolicy()
    for turn in range(40):
        visit(policy, 5.0 * turn)
    assert 10 < visit(policy, 195 + 500.0) < 60


def test_a_request_beside_another_of_its_session_is_no_return() -> None:
    policy = ReturnTimePolicy()
    before = arrive(policy, 0.0)
    assert arrive(policy, 0.001) == before


def test_sessions_are_told_apart() -> None:
    policy = ReturnTimePolicy()
    for turn in range(20):
        quick = visit(policy, 2.0 * turn, session=1)
        slow = visit(policy, 50.0 * turn, session=2)
    assert quick < 4
    assert slow > 40


def test_what_belongs_to_no_session_has_neutral_keys() -> None:
    policy = ReturnTimePolicy()
    assert policy.keys(Arrival(0, 0, 0, 1000, 1)) == Keys(0, 0, 0)
    policy.turn_ended(0, 2)


def test_the_longest_unheard_of_sessions_are_forgotten() -> None:
    policy = ReturnTimePolicy(max_sessions=2)
    for session in (1, 2, 1, 3):
        visit(policy, session * 1.0, session)
    assert visit(policy, 9.0, session=2) == pytest.approx(PRIOR_S), "2 was the oldest when 3 came"


def test_lru_expects_nothing() -> None:
    policy = LruPolicy()
    assert policy.keys(Arrival(7, 0, 0, 1000, 1)) == Keys(0, 0, 0)
    policy.turn_ended(7, 2)
