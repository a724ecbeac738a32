"""Sums of cache reports: sessions add up to the whole, also when there are too many to list."""

from __future__ import annotations

import random

from tokenspeed.engine.cache_tally import MAX_SESSIONS, CacheTally
from tokenspeed.engine.messages import CacheReport
from tokenspeed.scheduler import MATCH_ENDS

FIELDS = ("prompts", "cached_tokens", "created_tokens", "recomputed_tokens")


def test_each_division_adds_up_to_the_whole_whatever_was_listed() -> None:
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
        root = draw.choice(("", f"r{draw.randrange(2 * MAX_SESSIONS)}"))
        tally.add(report, session, root=root, tenant=draw.choice(("", "a", "b")))
    for kind in ("session", "root", "tenant"):
        listed = getattr(tally, f"{kind}s").shown()
        assert {name: sum(item[name] for item in listed) for name in FIELDS} == tally.total.shown()
        assert [item for item in listed if item[kind] is None] == listed[-1:] or kind == "tenant"
        assert len(listed) == (3 if kind == "tenant" else MAX_SESSIONS + 1)
    assert tally.total.prompts == 5000 == sum(tally.match_ends.values())


def test_the_latest_session_is_first_and_a_turn_brings_one_back() -> None:
    tally = CacheTally()
    report = CacheReport(1, 2, 3, 4, "content")
    for session in ("a", "b", "a"):
        tally.add(report, session)
    listed = tally.sessions.shown()
    assert [item["session"] for item in listed] == ["a", "b"]
    assert listed[0] == {
        "session": "a", "parent": "", "root": "a", "prompts": 2, "cached_tokens": 2,
        "created_tokens": 4, "recomputed_tokens": 6,
    }  # fmt: skip


def test_children_count_for_their_root() -> None:
    tally = CacheTally()
    report = CacheReport(10, 2, 0, 4, "content")
    tally.add(report, "main", tenant="t")
    tally.add(report, "sub", parent="main", root="main", tenant="t")
    tally.add(report, "subsub", parent="sub", root="main", tenant="u")
    assert [(item["root"], item["prompts"]) for item in tally.roots.shown()] == [("main", 3)]
    assert {i["tenant"]: i["cached_tokens"] for i in tally.tenants.shown()} == {"t": 20, "u": 10}
    assert [(i["session"], i["parent"]) for i in tally.sessions.shown()] == [
        ("subsub", "sub"), ("sub", "main"), ("main", ""),
    ]  # fmt: skip
