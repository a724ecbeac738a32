"""Sums of cache reports: sessions add up to the whole, also when there are too many to list."""

from __future__ import annotations

import random

from tokenspeed.engine.cache_tally import MAX_SESSIONS, CacheTally
from tokenspeed.engine.messages import CacheReport
from tokenspeed.scheduler import MATCH_ENDS

FIELDS = ("prompts", "cached_tokens", "created_tokens", "recomputed_tokens")


def test_sums_of_sessions_equal_those_of_all_whatever_was_listed() -> None:
    draw = random.Random(11)
    tally = CacheTally()
    for _ in range(5000):
        report = CacheReport(
            draw.randrange(1000),
            draw.randrange(100),
            draw.randrange(10),
            0,
            draw.choice(MATCH_ENDS),
        )
        session = draw.choice(("", f"s{draw.randrange(2 * MAX_SESSIONS)}"))
        tally.add(report, session)
    sessions = tally.sessions()
    assert len(sessions) == MAX_SESSIONS + 1
    assert sessions[-1]["session"] is None
    sums = {name: sum(item[name] for item in sessions) for name in FIELDS}
    assert sums == tally.total.shown()
    assert sums["prompts"] == 5000 == sum(tally.match_ends.values())


def test_the_latest_session_is_first_and_a_turn_brings_one_back() -> None:
    tally = CacheTally()
    report = CacheReport(1, 2, 3, 4, "content")
    for session in ("a", "b", "a"):
        tally.add(report, session)
    assert [item["session"] for item in tally.sessions()] == ["a", "b"]
    assert tally.sessions()[0] == {
        "session": "a", "prompts": 2, "cached_tokens": 2, "created_tokens": 4,
        "recomputed_tokens": 6,
    }  # fmt: skip
