"""Prompt lookup finds the longest earlier occurrence of the last tokens, in bounded time."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
import torch  # noqa: F401  (before _cpu: one OpenMP runtime)

from tokenspeed_reference._cpu import NgramIndex
from tokenspeed_reference.ngram import GRADES, NgramSpeculator

SHORTEST = 3


def index_of(tokens: list[int]) -> NgramIndex:
    return NgramIndex(np.array(tokens, dtype=np.int32))


def longest_match(tokens: list[int]) -> int:
    """Return how many of the last tokens stood before, looked for from the definition."""
    most = 0
    for end in range(len(tokens) - 1, 0, -1):
        common = 0
        while common < end and tokens[end - 1 - common] == tokens[-1 - common]:
            common += 1
        most = max(most, common)
    return most if most >= SHORTEST else 0


def test_the_tokens_after_the_longest_match_are_drafted() -> None:
    tokens = [1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 7, 1, 2, 3, 4]
    index = index_of(tokens)
    assert index.match() == 4
    assert index.draft(3) == [50, 9, 2], "1 2 3 4 stood first, 2 3 4 later"


def test_of_equal_matches_the_latest_counts() -> None:
    index = index_of([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3])
    assert index.draft(2) == [60, 1]


def test_two_equal_tokens_are_no_match() -> None:
    index = index_of([1, 2, 9, 9, 9, 1, 2])
    assert index.match() == 0
    assert index.draft(4) == []


def test_a_match_at_the_end_repeats_itself() -> None:
    assert index_of([8, 5, 6, 7, 5, 6, 7, 5, 6, 7]).draft(7) == [5, 6, 7, 5, 6, 7, 5]
    assert index_of([4, 4, 4, 4, 4]).draft(3) == [4, 4, 4]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3]])
def test_short_sequences_have_no_match(tokens: list[int]) -> None:
    index = index_of(tokens)
    assert index.match() == 0
    index.extend([7])
    assert index.draft(2) == []


def test_a_match_goes_on_without_a_search_and_ends_with_the_first_other_token() -> None:
    text = list(range(100, 180))
    index = index_of([*text, 1, 2, *text[:10]])
    assert index.match() == 10
    index.extend(text[10:50])
    assert index.match() == 50
    index.extend([999])
    assert index.match() == 0


def test_matches_are_those_of_the_definition_whatever_was_appended() -> None:
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    draw = random.Random(seed)
    for _ in range(30):
        values = draw.choice([3, 8, 40])
        tokens = [draw.randrange(values) for _ in range(draw.randrange(40))]
        index = index_of(tokens)
        for _ in range(60):
            if draw.random() < 0.4 and len(tokens) > 8:  # copy a piece
                start = draw.randrange(len(tokens) - 4)
                new = tokens[start : start + draw.randint(1, 12)]
            else:
                new = [draw.randrange(values) for _ in range(draw.randint(1, 3))]
            index.extend(new)
            tokens += new
            hint = f"TOKENSPEED_TEST_SEED={seed}"
            found, longest = index.match(), longest_match(tokens)
            assert found <= longest, hint
            assert (found > 0) == (longest > 0), hint
            if values == 40:  # few candidates: all of them are seen
                assert found == longest, hint
            if found:
                assert_continues(tokens, found, index.draft(5), hint)


def assert_continues(tokens: list[int], found: int, draft: list[int], hint: str) -> None:
    """Check that a place exists where the last tokens stood and the draft came after them."""
    both = tokens + draft
    places = range(found, len(tokens))
    assert any(
        tokens[end - found : end] == tokens[-found:] and both[end : end + 5] == draft
        for end in places
    ), hint


def test_a_step_costs_the_same_after_a_long_prompt() -> None:
    draw = np.random.default_rng(1)
    costs = []
    for length in (1_000, 200_000):
        index = NgramIndex(draw.integers(0, 500, length, dtype=np.int32))
        best = 1.0
        for _ in range(20):
            started_s = time.thread_time()
            for token in range(50):
                index.extend([token])
                index.draft(8)
            best = min(best, time.thread_time() - started_s)
        costs.append(best)
    assert costs[1] < 12 * costs[0], "caches are missed, but nothing is walked"


def test_grades_rise_with_the_match_and_ended_requests_are_gone() -> None:
    text = list(range(100, 180))
    speculator = NgramSpeculator(max_drafts=4, max_running=2, vocab_size=1000)
    for key, length in ((1, 3), (2, 6), (3, 40)):
        speculator.start(key, np.array([*text, 1, *text[:length]], dtype=np.int32))
    speculator.start(4, np.array([1, 2, 3], dtype=np.int32))
    drafts = speculator.propose({1: 4, 2: 2, 3: 4, 4: 4})
    assert {key: draft.grade for key, draft in drafts.items()} == {1: 0, 2: 2, 3: len(GRADES)}
    assert drafts[2].tokens == [106, 107]
    speculator.extend(1, [103])
    assert speculator.propose({1: 1})[1].tokens == [104]
    speculator.end(1)
    with pytest.raises(KeyError):
        speculator.propose({1: 1})
