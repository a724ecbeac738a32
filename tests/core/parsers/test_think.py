"""Reasoning is split off the same way however the text is cut, and whoever opened the block."""

from __future__ import annotations

import itertools

import pytest

from tokenspeed.contracts.parser import AnswerStart
from tokenspeed.parsers.think import ThinkParser

OPENED = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def split(pieces: list[str], prompt_end: str = "") -> tuple[str, str]:
    answer = ThinkParser().start(AnswerStart(prompt_end))
    deltas = [answer.feed(piece) for piece in pieces]
    deltas.append(answer.finish())
    return "".join(d.reasoning for d in deltas), "".join(d.content for d in deltas)


CASES = [
    (
        "<think>\nI add.\n\nThen stop.\n</think>\n\nIt is 4.\n",
        "",
        "I add.\n\nThen stop.",
        "It is 4.\n",
    ),
    ("<think>x</think>y", "", "x", "y"),
    (" \n<think>x</think> y", "", "x", " y"),
    ("I add.\n</think>\n\nIt is 4.", OPENED, "I add.", "It is 4."),
    ("\nI add.</think>It is 4.", "<think>", "I add.", "It is 4."),
    ("It is 4.", CLOSED, "", "It is 4."),
    ("It is <think>4</think>.", "", "", "It is <think>4</think>."),
    (" plain\ntext ", "", "", " plain\ntext "),
    ("<think>\n\n</think>\n\nyes", "", "", "yes"),
    ("<think>a < b, </b> and </thin\n\n</think>c", "", "a < b, </b> and </thin", "c"),
    ("<think>a</think>\nb</think><think>c", "", "a", "b</think><think>c"),
    ("<think>never closed\n", "", "never closed", ""),
    ("<think>cut off </thi", "", "cut off </thi", ""),
    ("never closed", OPENED, "never closed", ""),
    ("<thi", "", "", "<thi"),
    ("<thin air", "", "", "<thin air"),
    ("\r\n\r\n", "", "", "\r\n\r\n"),
    ("", "", "", ""),
    ("", OPENED, "", ""),
]


@pytest.mark.parametrize(("text", "prompt_end", "reasoning", "content"), CASES)
def test_the_split_does_not_depend_on_where_the_text_is_cut(
    text: str, prompt_end: str, reasoning: str, content: str
) -> None:
    wanted = (reasoning, content)
    assert split([text], prompt_end) == wanted
    assert split(list(text), prompt_end) == wanted
    for first, second in itertools.combinations(range(len(text) + 1), 2):
        assert split([text[:first], text[first:second], text[second:]], prompt_end) == wanted


def test_reasoning_is_given_while_it_comes_and_only_what_may_be_a_tag_waits() -> None:
    answer = ThinkParser().start(AnswerStart(OPENED))
    assert answer.is_reasoning
    assert answer.feed("I think").reasoning == "I think"
    assert answer.feed(" that\n").reasoning == " that"
    assert answer.feed("it is").reasoning == "\nit is"
    assert answer.feed(" a </").reasoning == " a "
    assert answer.feed("b>").reasoning == "</b>"
    assert answer.feed("</think>").reasoning == ""
    assert not answer.is_reasoning
    assert answer.feed("\n\nFour").content == "Four"
    assert answer.feed("\n").content == "\n"
