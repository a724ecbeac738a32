"""Every format: the right calls, and the same events however the text is cut."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.parser_answers import (
    TOOLS,
    WRITERS,
    Answer,
    answers,
    damaged,
    harmony_answers,
    thinking_answers,
)

from tokenspeed.contracts.conversation import ToolChoice
from tokenspeed.contracts.parser import AnswerStart, ParsedDelta, ToolCallDelta
from tokenspeed.parsers.formats import FORMATS
from tokenspeed.parsers.think import ThinkParser
from tokenspeed.parsers.together import Together
from tokenspeed.plugins.targets import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.contracts.parser import Parser

NUM_RIGHT, NUM_DAMAGED, NUM_THINKING = 81, 120, 16
"""Answers of each format, over all forms of it."""
START = AnswerStart(tools=TOOLS)
LARGEST_PIECE = 64
NOTHING = ParsedDelta()


def parser_of(name: str) -> Parser:
    """Return a parser whose ids are the same in every run."""
    parser: Any = resolve(FORMATS[name.split()[0]].path)()
    parser.make_id = lambda tool, index: f"id-{index}"
    return parser


def events(parser: Parser, pieces: list[str], start: AnswerStart = START) -> tuple[Any, ...]:
    """Return the sums of what a parser tells: reasoning, content, calls, bad call."""
    answer = parser.start(start)
    deltas = [answer.feed(piece) for piece in pieces]
    deltas.append(answer.finish())
    told = [delta for delta in deltas if delta != NOTHING]
    calls: dict[int, list[str]] = {}
    for delta in told:
        for call in delta.tool_calls:
            parts = calls.setdefault(call.index, [])
            parts += (call.call_id, call.name, call.arguments) if not parts else (call.arguments,)
    bad = [delta.bad_call for delta in told if delta.bad_call is not None]
    assert len(bad) <= 1
    return (
        "".join(delta.reasoning for delta in told),
        "".join(delta.content for delta in told),
        tuple(ToolCallDelta(i, p[0], p[1], "".join(p[2:])) for i, p in sorted(calls.items())),
        bad[0] if bad else None,
    )


def cuts(text: str, seed: int, every: int) -> Iterator[list[str]]:
    """Cut a text into pieces of a size, for sizes from 1 to 64, and some of mixed sizes.

    Args:
        every: 1: all sizes; else every so many, others for the next seed.
    """
    for size in sorted({1, *range(1 + seed % every, min(LARGEST_PIECE, len(text)) + 1, every)}):
        yield [text[at : at + size] for at in range(0, len(text), size)]
    chance = random.Random(seed)
    for _ in range(1):
        at, pieces = 0, []
        while at < len(text):
            size = chance.choice((1, 1, 2, 3, 5, 20, LARGEST_PIECE))
            pieces.append(text[at : at + size])
            at += size
        yield pieces


def read_calls(told: tuple[ToolCallDelta, ...]) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in told]


def check(parser: Parser, answer: Answer) -> None:
    """Compare what a parser tells of a whole answer with what the model meant."""
    reasoning, content, calls, bad = events(parser, [answer.text])
    assert bad is None, (answer.text, bad)
    assert (reasoning, content) == (answer.reasoning, answer.content), answer.text
    assert read_calls(calls) == list(answer.calls), answer.text
    assert [call.index for call in calls] == list(range(len(calls)))
    assert len({call.call_id for call in calls}) == len(calls)


def check_cuts(parser: Parser, texts: list[str], *, every: int = 5) -> None:
    """Compare what it tells of each text whole and cut."""
    for seed, text in enumerate(texts):
        whole = events(parser, [text])
        for pieces in cuts(text, seed, every):
            assert events(parser, pieces) == whole, pieces


@pytest.mark.parametrize("name", WRITERS)
def test_calls_and_content_are_what_the_model_wrote(name: str) -> None:
    parser = parser_of(name)
    for answer in answers(name, NUM_RIGHT // num_forms(name)):
        check(parser, answer)


def num_forms(name: str) -> int:
    """Return how many writers write for one reader."""
    reader = FORMATS[name.split()[0]].path.partition("Named")[0]
    return sum(FORMATS[other.split()[0]].path.partition("Named")[0] == reader for other in WRITERS)


def corpus(name: str) -> list[str]:
    right = [answer.text for answer in answers(name, NUM_RIGHT // num_forms(name))]
    return right + damaged(right, WRITERS[name].marks, NUM_DAMAGED // num_forms(name))


@pytest.mark.parametrize("name", WRITERS)
def test_events_do_not_depend_on_how_the_text_is_cut(name: str) -> None:
    check_cuts(parser_of(name), corpus(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_events_do_not_depend_on_how_the_text_is_cut_in_pieces_of_any_size(name: str) -> None:
    check_cuts(parser_of(name), corpus(name), every=1)


@pytest.mark.parametrize("name", WRITERS)
def test_no_mark_stands_in_content_and_each_complete_call_has_an_object(name: str) -> None:
    parser = parser_of(name)
    for text in corpus(name):
        _, content, calls, bad = events(parser, [text])
        assert not [mark for mark in parser.markers if mark in content], text
        complete = calls if bad is None else calls[:-1]
        assert all(isinstance(json.loads(call.arguments), dict) for call in complete), text
        if bad is not None:
            assert bad.reason
            assert bad.text in text


def test_messages_on_channels_become_reasoning_content_and_calls() -> None:
    parser = parser_of("gpt_oss")
    found = harmony_answers(NUM_RIGHT)
    for answer in found:
        check(parser, answer)
    texts = [answer.text for answer in found]
    check_cuts(parser, texts + damaged(texts, parser.markers, NUM_DAMAGED))


PAIRS = ["hermes", "qwen3_coder", "glm45", "deepseek_v31", "kimi_k2", "minimax_m2"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_call_ends_reasoning_that_was_not_closed(name: str) -> None:
    parser = Together(ThinkParser(), parser_of(name))
    found = thinking_answers(name, NUM_THINKING)
    assert any("</think>" not in answer.text for answer in found)
    for answer in found:
        check(parser, answer)
    texts = [answer.text for answer in found]
    marks = ("<think>", "</think>", *WRITERS[name].marks)
    check_cuts(parser, texts + damaged(texts, marks, NUM_THINKING))


@pytest.mark.parametrize("name", WRITERS)
def test_without_tools_and_with_choice_none_all_is_content(name: str) -> None:
    parser = parser_of(name)
    text = answers(name, 1)[0].text
    for start in (AnswerStart(), AnswerStart(tools=TOOLS, tool_choice=ToolChoice("none"))):
        assert events(parser, [text], start) == ("", text, (), None)


@pytest.mark.parametrize("name", WRITERS)
def test_of_parallel_calls_only_the_first_is_told_where_they_are_off(name: str) -> None:
    text = WRITERS[name].calls([("now", {}), ("run", {"n": 1})])
    start = AnswerStart(tools=TOOLS, tool_choice=ToolChoice(parallel=False))
    for pieces in ([text], list(text)):
        _, content, calls, bad = events(parser_of(name), pieces, start)
        assert (read_calls(calls), content, bad) == ([("now", {})], "", None)


@pytest.mark.parametrize("name", WRITERS)
def test_a_tool_that_is_not_there_or_not_chosen_is_a_bad_call(name: str) -> None:
    text = WRITERS[name].calls([("rum", {"n": 1})])
    *_, calls, bad = events(parser_of(name), [text])
    assert (calls, bad.reason) == (
        (),
        "it calls 'rum', which is not among the tools (get_weather-2.x, now, run)",
    )
    start = AnswerStart(tools=TOOLS, tool_choice=ToolChoice("named", "run"))
    *_, calls, bad = events(parser_of(name), [WRITERS[name].calls([("now", {})])], start)
    assert (calls, bad.reason) == ((), "it calls 'now', and tool_choice demands 'run'")


def test_the_corpus_is_large_enough() -> None:
    for name in WRITERS:
        assert len(corpus(name)) * num_forms(name) >= 200
    readers = {name for name, form in FORMATS.items() if form.parses == ("tool_calls",)}
    assert {name.split()[0] for name in WRITERS} == readers
