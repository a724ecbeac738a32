"""Placements of experts: complete, of even load, and no further from the last one than they pay."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from tokenspeed.placement.balance import (
    WORTH,
    Copy,
    balanced,
    copies_between,
    first_placement,
    loads,
    peak,
)


def test_at_first_each_rank_has_its_share_and_copies_of_it() -> None:
    assert first_placement(8, 2, 0) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert first_placement(8, 2, 1) == (0, 1, 2, 3, 0, 4, 5, 6, 7, 4)
    assert first_placement(2, 2, 3) == (0, 0, 0, 0, 1, 1, 1, 1)


def test_an_expert_that_is_chosen_most_is_on_several_ranks() -> None:
    counts = [1, 1, 1, 90, 1, 1, 1, 1]
    now = first_placement(8, 2, 1)
    then = balanced(counts, 2, now)
    assert 3 in then[:5]
    assert 3 in then[5:]
    assert peak(counts, 2, now) == 93
    assert peak(counts, 2, then) == pytest.approx(97 / 2, abs=1)


def test_even_counts_move_nothing() -> None:
    now = first_placement(8, 4, 1)
    assert balanced([10] * 8, 4, now) is now
    assert balanced([0] * 8, 4, now) is now


def test_two_hot_experts_of_one_rank_are_parted_without_spare_slots() -> None:
    counts = [50, 50, 1, 1]
    then = balanced(counts, 2, (0, 1, 2, 3))
    assert loads(counts, 2, then) == [51, 51]
    assert len(copies_between((0, 1, 2, 3), then, 2)) == 2


@pytest.mark.parametrize("seed", range(40))
def test_placements_are_complete_and_no_worse(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    ranks, share = rng.choice([2, 4]), rng.randint(1, 4)
    spare, experts = rng.randint(0, 3), ranks * share
    now = first_placement(experts, ranks, spare)
    for _ in range(3):
        counts = [int(rng.paretovariate(0.8)) for _ in range(experts)]
        then = balanced(counts, ranks, now)
        assert {*then} == {*range(experts)}
        assert len(then) == len(now)
        if then is not now:
            assert peak(counts, ranks, then) <= WORTH * peak(counts, ranks, now)
        _check_copies(now, then, ranks)
        now = then


def _check_copies(now: tuple[int, ...], then: tuple[int, ...], ranks: int) -> None:
    """Copy experts, all read before any is written; they must be where they should."""
    copies, slots = copies_between(now, then, ranks), [*now]
    for copy in copies:
        slots[copy.target] = now[copy.source]
    assert tuple(slots) == then
    assert all(now[copy.target] != then[copy.target] for copy in copies)


@pytest.mark.parametrize("seed", range(20))
def test_the_busiest_rank_has_little_more_than_the_best_could(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    counts = [int(rng.paretovariate(0.7)) + 1 for _ in range(6)]
    order = (0, 1, 2, 3, 4, 5)
    best = min(peak(counts, 2, placement) for placement in permutations(order))
    worst = max(permutations(order), key=lambda placement: peak(counts, 2, placement))
    assert peak(counts, 2, balanced(counts, 2, worst)) <= max(4 / 3, 1 / WORTH) * best


def test_a_copy_comes_from_the_own_rank_where_it_has_one() -> None:
    assert copies_between((0, 1, 0, 2), (0, 0, 1, 2), 2) == [Copy(0, 1), Copy(1, 2)]
