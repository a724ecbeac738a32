"""Generated traces: the same from a seed, and like recorded agentic sessions."""

from __future__ import annotations

import itertools
import statistics

from tokenspeed.simulator import generate_agentic, ideal_hit_rate
from tokenspeed.simulator.generate import agentic_lines


def test_a_seed_gives_one_trace() -> None:
    assert agentic_lines(3, 7) == agentic_lines(3, 7)
    assert agentic_lines(3, 7) != agentic_lines(3, 8)


def test_prompts_hold_their_blocks_and_grow() -> None:
    for item in generate_agentic(20, 1).conversations:
        for turn in item.turns:
            blocks = sum(count for _, count in turn.runs)
            assert blocks == turn.prompt_tokens // 64
        prompts = [turn.prompt_tokens for turn in item.turns]
        shrinks = sum(b < a for a, b in itertools.pairwise(prompts))
        assert shrinks <= len(prompts) / 10 + 1


def test_the_statistics_are_those_of_recorded_sessions() -> None:
    trace = generate_agentic(300, 1)
    turns = [turn for item in trace.conversations for turn in item.turns]
    pauses = [turn.pause_s for item in trace.conversations for turn in item.turns[1:]]
    assert 30 < statistics.median(len(item.turns) for item in trace.conversations) < 60
    assert 90_000 < statistics.mean(turn.prompt_tokens for turn in turns) < 160_000
    assert 180 < statistics.median(turn.output_tokens for turn in turns) < 300
    assert 6 < statistics.median(pauses) < 15
    assert 0.15 < sum(pause >= 30 for pause in pauses) / len(pauses) < 0.35


def test_an_unlimited_cache_has_what_it_has_on_recorded_sessions() -> None:
    trace = generate_agentic(40, 1, scale=0.2)
    rate = ideal_hit_rate(trace, pool_tokens=None, num_places=16, max_pause_s=60.0)
    assert 0.94 < rate < 0.985
