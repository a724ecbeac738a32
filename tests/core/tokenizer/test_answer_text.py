"""An answer's text: the same for every cut of its tokens, and without what ended it."""

from __future__ import annotations

import pytest
from tests.support.scripted import IM_END, ids_of, write_scripted_model

from tokenspeed.tokenizer.answer_text import AnswerText
from tokenspeed.tokenizer.load import load_tokenizer
from tokenspeed.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_scripted_model(tmp_path_factory.mktemp("answers") / "model"))


@pytest.mark.parametrize("size", [1, 2, 3, 20])
def test_a_stop_string_ends_the_text_at_the_same_token_for_every_cut(
    tokenizer: Tokenizer, size: int
) -> None:
    answer = AnswerText(tokenizer, stop=("stop",))
    ids, text, taken = ids_of("a stop b"), "", 0
    for start in range(0, len(ids), size):
        new, used = answer.push(ids[start : start + size])
        text, taken = text + new, taken + used
        if answer.is_stopped:
            break
    assert (text, taken, answer.is_stopped) == ("a ", 6, True)


def test_a_stop_string_before_min_tokens_is_plain_text(tokenizer: Tokenizer) -> None:
    answer = AnswerText(tokenizer, stop=("b",), min_tokens=3)
    assert answer.push(ids_of("abab")) == ("aba", 4)
    assert answer.is_stopped


def test_the_token_that_ended_the_answer_shows_only_when_asked_for(tokenizer: Tokenizer) -> None:
    ids = ids_of("ab")
    for include, text in ((False, "a"), (True, "ab")):
        answer = AnswerText(tokenizer, stop_token_ids=ids[1:], include_stop_text=include)
        assert answer.push(ids, finish_reason="stop") == (text, 2)


def test_a_stop_token_id_in_the_middle_or_at_the_length_limit_shows(tokenizer: Tokenizer) -> None:
    ids = ids_of("aba")
    answer = AnswerText(tokenizer, stop_token_ids=ids[:1])
    assert answer.push(ids, finish_reason="length") == ("aba", 3)


def test_special_tokens_never_show_and_half_a_character_comes_at_the_end(
    tokenizer: Tokenizer,
) -> None:
    answer = AnswerText(tokenizer)
    assert answer.push((*ids_of("a"), IM_END, ids_of("\N{SNOWMAN}")[0])) == ("a", 3)
    assert answer.push((), finish_reason="length") == ("\ufffd", 0)
