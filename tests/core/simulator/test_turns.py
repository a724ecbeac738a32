"""Traces of turns: a line says what a turn adds to its session."""

from __future__ import annotations

from tokenspeed.simulator.read import trace_of

LINES = [
    {"session_id": "a", "input_length": 1100, "output_length": 30, "hash_ids": [0, 1, 9]},
    {"session_id": "b", "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 8]},
    {"session_id": "a", "input_length": 900, "output_length": 0, "hash_ids": [10], "delay": 2500},
]


def test_a_turns_prompt_is_all_that_was_sent_and_answered_before_it() -> None:
    one, other = trace_of(LINES, "t", "t.jsonl").conversations
    assert [turn.prompt_tokens for turn in one.turns] == [1100, 1100 + 30 + 900]
    assert [turn.output_tokens for turn in one.turns] == [30, 1]
    assert [turn.pause_s for turn in one.turns] == [0.0, 2.5]
    assert [turn.prompt_tokens for turn in other.turns] == [1030]


def test_whole_blocks_of_first_lines_are_shared_and_all_others_are_a_sessions_own() -> None:
    one, other = trace_of(LINES, "t", "t.jsonl").conversations
    assert one.turns[0].runs == ((0, 2),)
    assert one.turns[1].runs[0] == other.turns[0].runs[0] == (0, 2)
    (_, (first, count)) = one.turns[1].runs
    assert first > max(i for line in LINES for i in line["hash_ids"])
    assert count == 2030 // 512 - 2
