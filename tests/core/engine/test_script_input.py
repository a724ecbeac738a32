"""What scripts give to `LLM`: right types pass unchanged, wrong ones are refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tokenspeed import SamplingParams
from tokenspeed.engine.messages import ModelInfo
from tokenspeed.engine.script_input import params_of, prompt_ids, prompts_of, typed_params
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import RequestError

TOKENIZER: Any = SimpleNamespace(encode=lambda text: [ord(char) for char in text])
MODEL = ModelInfo(
    name="m",
    path="m",
    architecture="X",
    vocab_size=300,
    max_context_tokens=64,
    max_prompt_tokens=63,
    eos_token_ids=(),
)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": "x"}, "temperature is 'x'"),
        ({"temperature": None}, "temperature is None"),
        ({"max_tokens": "5"}, "max_tokens is '5'"),
        ({"max_tokens": 2.5}, r"max_tokens is 2\.5"),
        ({"stop": "END"}, "stop is 'END'"),
        ({"stop_token_ids": ("a",)}, r"stop_token_ids is \('a',\)"),
        ({"logit_bias": {"a": 1}}, "logit_bias is {'a': 1}"),
        ({"ignore_eos": "yes"}, "ignore_eos is 'yes'"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        typed_params(SamplingParams(**fields))
    assert caught.value.param == next(iter(fields))


def test_fields_of_their_type_stay_and_lists_become_tuples() -> None:
    given: dict[str, Any] = {"temperature": 1, "stop": ["a", "bc"], "logit_bias": {3: 1}, "seed": 7}
    params = typed_params(SamplingParams(**given))
    assert params == SamplingParams(temperature=1.0, stop=("a", "bc"), logit_bias={3: 1.0}, seed=7)
    assert isinstance(params.stop, tuple)


def test_params_are_one_for_all_or_one_each() -> None:
    one, other = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert params_of(2, None) == [SamplingParams()] * 2
    assert params_of(2, one) == [one, one]
    assert params_of(2, [one, other]) == [one, other]
    with pytest.raises(RequestError, match="1 SamplingParams for 2 prompts"):
        params_of(2, [one])
    wrong: Any = {"max_tokens": 1}
    for given in (wrong, [wrong]):
        with pytest.raises(RequestError, match="a SamplingParams is needed"):
            params_of(1, given)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([], []),
    ],
)
def test_one_prompt_or_several_become_a_list(given: Any, prompts: list[Any]) -> None:
    assert prompts_of(given) == prompts


def test_an_array_is_one_prompt_or_a_row_each() -> None:
    one = np.array([1, 2], np.int32)
    assert prompts_of(one)[0] is one
    assert [row.tolist() for row in prompts_of(np.array([[1], [2]]))] == [[1], [2]]  # type: ignore[union-attr]


@pytest.mark.parametrize("given", [None, 5, {"prompt": "x"}])
def test_what_is_no_prompt_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match="a text or a list of token ids"):
        prompts_of(given)


@pytest.mark.parametrize("given", [5, None, [1.5], ["a"], [True], [[1]], [[1], [1, 2]], [2**70]])
def test_token_ids_are_whole_numbers(given: Any) -> None:
    with pytest.raises(RequestError, match="a text or a list of token ids"):
        prompt_ids(given, TOKENIZER)


def test_prompts_become_their_tokens() -> None:
    assert prompt_ids("ab", TOKENIZER).tolist() == [97, 98]
    assert prompt_ids([3, 4], TOKENIZER).tolist() == [3, 4]
    for empty in ("", []):
        with pytest.raises(RequestError, match="prompt is empty"):
            prompt_ids(empty, TOKENIZER)


@pytest.mark.parametrize("wrong", [-1, 300, 2**32 + 5])
def test_an_id_that_wraps_to_an_allowed_one_is_refused(wrong: int) -> None:
    with pytest.raises(RequestError, match=f"prompt holds token id {wrong}, allowed"):
        make_submit(MODEL, np.array([1, wrong], np.int64), SamplingParams(max_tokens=1), "r")
    submit = make_submit(MODEL, np.array([1, 299], np.int64), SamplingParams(max_tokens=1), "r")
    assert submit.prompt_ids == np.array([1, 299], "<i4").tobytes()
