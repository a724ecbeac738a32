"""Where requests go: to their prefix, unless another would answer sooner; and never in herds."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.support.routing import Routing

SYSTEM = list(range(1000, 3000))
"""A system prompt of 2,000 tokens."""


def prompt(number: int, num_tokens: int = 200) -> list[int]:
    """Return tokens that no other number begins with."""
    return [50_000 + number, *range(num_tokens - 1)]


def test_a_prompt_goes_where_its_longest_prefix_is() -> None:
    routing = Routing()
    routing.store(2, prompt(1, 1600))
    routing.store(3, prompt(1, 800))
    routed = routing.ask([*prompt(1, 1600), 5, 6, 7])
    assert routed.replica == 2
    assert routed.cached_tokens == 1600
    assert routed.queued_tokens == 3


def test_ties_go_to_the_lowest_number_and_the_same_asks_get_the_same_answers() -> None:
    def answers() -> list[int]:
        routing, draw = Routing(), random.Random(3)
        return [
            routing.ask(prompt(draw.randrange(9), draw.randrange(20, 900)), f"s{i % 7}").replica
            for i in range(60)
        ]

    assert Routing().ask(prompt(0)).replica == 0
    assert answers() == answers()


def test_what_begins_anew_goes_where_there_is_least_to_do() -> None:
    routing = Routing()
    for replica, queued in enumerate((900, 500, 2000, 700)):
        routing.count(replica, queued=queued)
    assert routing.ask(prompt(1)).replica == 1


def test_a_prefix_is_given_up_when_its_replica_is_so_far_behind_that_another_is_sooner() -> None:
    routing = Routing()
    tokens = prompt(1, 1600)
    routing.store(2, tokens)
    routing.count(2, queued=1000)
    first = routing.ask(tokens)
    assert first.replica == 2
    routing.router.ended(first)
    routing.count(2, queued=3000)
    assert routing.ask(tokens).replica != 2


def test_blocks_behind_the_device_are_worth_less_than_those_on_it_and_more_than_none() -> None:
    def work(medium: str) -> int:
        routing = Routing(1)
        routing.store(0, prompt(1, 1600), medium)
        return routing.ask([*prompt(1, 1600), 3]).work_tokens

    assert [work(medium) for medium in ("device", "host", "store", "nowhere")] == [
        1,
        101,
        101,
        1601,
    ]


def test_a_session_stays_at_home_while_others_are_idle() -> None:
    routing = Routing()
    said = [*SYSTEM, *prompt(1)]
    homes = set()
    for turn in range(8):
        routed = routing.ask(said, "main")
        homes.add(routed.replica)
        said = [*said, *range(60_000 + turn * 100, 60_000 + turn * 100 + 90)]
        routing.end(routed, said)
        routing.now_s += 5.0
    assert len(homes) == 1


def test_a_child_that_goes_on_from_its_parent_goes_where_the_parent_is() -> None:
    routing = Routing()
    said = prompt(1, 3000)
    for number in range(4):  # others first, so that home is not the tie
        routing.end(routing.ask(prompt(9 + number, 800), f"other{number}"), prompt(9 + number, 800))
    parent = routing.ask(said, "main")
    routing.end(parent, said)
    children = [
        routing.ask([*said, 7, number], f"main/{number}", parent="main") for number in range(6)
    ]
    assert {child.replica for child in children} == {parent.replica}


def test_a_prompt_that_another_request_is_computing_is_waited_for() -> None:
    routing = Routing()
    first = routing.ask(prompt(1, 4000), "a")
    second = routing.ask([*prompt(1, 4000), 3], "a")
    assert second.replica == first.replica
    assert second.cached_tokens == 4000


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one after another"])
def test_sixty_four_sessions_with_one_system_prompt_spread(at_once: bool) -> None:
    routing = Routing()
    homes: Counter[int] = Counter()
    for number in range(64):
        said = [*SYSTEM, *prompt(number)]
        routed = routing.ask(said, f"s{number}")
        homes[routed.replica] += 1
        if not at_once:
            routing.end(routed, said)
            routing.now_s += 3.0
    assert sum(homes.values()) == 64
    assert max(homes.values()) <= 22, homes  # a quarter more than 16, and the first two
    assert min(homes.values()) >= 10, homes


def test_nameless_requests_with_one_system_prompt_spread_too() -> None:
    routing = Routing()
    homes = Counter(routing.ask([*SYSTEM, *prompt(i)]).replica for i in range(64))
    assert max(homes.values()) <= 22, homes


def test_a_full_replica_is_passed_over() -> None:
    routing = Routing(2, max_running=4)
    tokens = prompt(1, 1600)
    routing.store(0, tokens)
    routing.count(0, running=8)
    assert routing.ask(tokens).replica == 1


def test_a_replica_that_is_not_here_is_not_asked_and_its_sessions_find_a_new_home() -> None:
    routing = Routing(3)
    tokens = prompt(1, 1600)
    first = routing.ask(tokens, "main")
    routing.end(first, tokens)
    routing.here[first.replica] = False
    routing.router.lost(first.replica)
    second = routing.ask(tokens, "main")
    assert second.replica != first.replica
    routing.end(second, tokens)
    routing.here[first.replica] = True
    assert routing.ask(tokens, "main").replica == second.replica


def test_loads_are_nothing_when_all_has_ended() -> None:
    routing, draw = Routing(), random.Random(5)
    live = []
    for number in range(300):
        tokens = prompt(draw.randrange(20), draw.randrange(20, 700))
        live.append(routing.ask(tokens, draw.choice(("", f"s{number % 30}"))))
        if draw.random() < 0.5:
            routed = live.pop(draw.randrange(len(live)))
            if draw.random() < 0.5:
                routing.router.first_token(routed)
            routing.router.ended(routed)
    for routed in live:
        routing.router.ended(routed)
    for load in routing.router.loads:
        assert (load.own_queued, load.own_live, load.nameless) == (0, 0, 0)
    assert routing.router.view.num_blocks == 0


def test_conversations_at_rest_are_a_burden_no_more() -> None:
    routing = Routing(2)
    for number in range(10):
        routing.end(routing.ask(prompt(number, 800), f"s{number}"), prompt(number, 800))
    assert routing.router.burden(0) + routing.router.burden(1) == 8000
    routing.now_s += 3600.0
    routing.ask(prompt(99, 100), "late")
    assert routing.router.burden(0) + routing.router.burden(1) == 100
