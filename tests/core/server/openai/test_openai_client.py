"""The public `openai` client, sync and async, against a real server."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import openai
import pytest
from tests.support.server import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import ServerProcess

USER = {"role": "user", "content": "hi"}


@pytest.fixture
def scripted(script_server: ServerProcess) -> Iterator[openai.OpenAI]:
    base = f"{script_server.url}/v1"
    with openai.OpenAI(base_url=base, api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture
def hashed(hash_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hash_server.url}/v1", api_key="-", max_retries=0) as client:
        yield client


def test_chat_answers_with_text_usage_and_stop(scripted: openai.OpenAI) -> None:
    answer = scripted.chat.completions.create(model="scripted", messages=[USER])
    assert answer.choices[0].message.content == SCRIPT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(SCRIPT) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(SCRIPT) + 1
    assert answer.id.startswith("chatcmpl-")


def test_a_chat_stream_adds_up_to_the_whole_answer(scripted: openai.OpenAI) -> None:
    chunks = list(
        scripted.chat.completions.create(
            model="scripted", messages=[USER], stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == SCRIPT
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(SCRIPT) + 1
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_async_client_streams_many_at_once(hash_server: ServerProcess) -> None:
    async def one(client: openai.AsyncOpenAI, text: str) -> str:
        stream = await client.completions.create(
            model="hashed", prompt=text, max_tokens=12, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> tuple[list[str], list[str]]:
        url = f"{hash_server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            texts = [f"prompt number {index}" for index in range(12)]
            together = await asyncio.gather(*(one(client, text) for text in texts))
            return together, [await one(client, text) for text in texts]

    together, alone = asyncio.run(all_of_them())
    assert together == alone
    assert len(set(alone)) == 12
    assert all(len(text) == 12 for text in alone)


def test_max_tokens_ends_with_length(scripted: openai.OpenAI) -> None:
    for limit in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        answer = scripted.chat.completions.create(model="scripted", messages=[USER], **limit)
        assert answer.choices[0].message.content == SCRIPT[:5]
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("stop", ["world", ["xyz", "wor"], ["o w"]])
def test_a_stop_string_ends_the_answer_before_it(
    scripted: openai.OpenAI, stop: str | list[str]
) -> None:
    answer = scripted.completions.create(model="scripted", prompt="hi", stop=stop)
    first = min(SCRIPT.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in SCRIPT)
    assert answer.choices[0].text == SCRIPT[:first]
    assert answer.choices[0].finish_reason == "stop"


def test_min_tokens_holds_a_stop_string_off(scripted: openai.OpenAI) -> None:
    answer = scripted.completions.create(
        model="scripted", prompt="hi", stop="o", extra_body={"min_tokens": 6}
    )
    assert answer.choices[0].text == SCRIPT[: SCRIPT.index("o", 5)]


def test_include_stop_str_keeps_the_stop_string(scripted: openai.OpenAI) -> None:
    answer = scripted.completions.create(
        model="scripted",
        prompt="hi",
        stop="world",
        extra_body={"include_stop_str_in_output": True},
    )
    assert answer.choices[0].text == "Hello world"


def test_n_choices_have_their_own_seeds_and_repeat(hashed: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = hashed.completions.create(
            model="hashed", prompt="abc", n=3, seed=5, max_tokens=8, temperature=30.0
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first


def test_completion_takes_all_four_forms_of_prompt(hashed: openai.OpenAI) -> None:
    ids = [64, 65, 66]  # "abc" in the byte tokenizer

    def texts(prompt: object) -> list[str]:
        answer = hashed.completions.create(
            model="hashed", prompt=prompt, max_tokens=6, temperature=0
        )
        return [choice.text for choice in answer.choices]

    one = texts("abc")
    assert texts(ids) == one
    assert texts(["abc", "xyz"]) == one + texts("xyz")
    assert texts([ids, ids]) == one * 2


def test_chat_logprobs_name_the_sampled_token_and_alternatives(hashed: openai.OpenAI) -> None:
    answer = hashed.chat.completions.create(
        model="hashed", messages=[USER], max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == entry.top_logprobs[0].logprob > entry.top_logprobs[1].logprob
        assert bytes(entry.bytes).decode() == entry.token


def test_echoed_completion_logprobs_cover_the_prompt(hashed: openai.OpenAI) -> None:
    answer = hashed.completions.create(
        model="hashed", prompt="abc", max_tokens=2, temperature=0, logprobs=1, echo=True
    )
    choice = answer.choices[0]
    assert choice.text.startswith("abc")
    assert len(choice.text) == 5
    assert choice.logprobs.tokens == list(choice.text)
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_prompt_logprobs_come_as_an_extension(hash_server: ServerProcess) -> None:
    body = {"model": "hashed", "prompt": "abc", "max_tokens": 1, "prompt_logprobs": 0}
    entries = hash_server.call("/v1/completions", body).json()["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert [list(entry) for entry in entries[1:]] == [["65"], ["66"]]
    assert entries[1]["65"]["decoded_token"] == "b"


def test_logit_bias_takes_string_keys_and_forces_a_token(hashed: openai.OpenAI) -> None:
    answer = hashed.completions.create(
        model="hashed", prompt="abc", max_tokens=4, temperature=0, logit_bias={"64": 100}
    )
    assert answer.choices[0].text == "aaaa"


def test_stop_token_ids_end_the_answer(hashed: openai.OpenAI) -> None:
    answer = hashed.completions.create(
        model="hashed",
        prompt="abc",
        max_tokens=40,
        temperature=0,
        logit_bias={"64": 100},
        extra_body={"stop_token_ids": [64]},
    )
    assert answer.choices[0].text == ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 1


def test_ignore_eos_goes_on(scripted: openai.OpenAI) -> None:
    answer = scripted.completions.create(
        model="scripted", prompt="hi", max_tokens=40, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 40


def test_models_are_listed_and_found(scripted: openai.OpenAI) -> None:
    assert [model.id for model in scripted.models.list()] == ["scripted"]
    assert scripted.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError, match="use 'scripted'"):
        scripted.models.retrieve("other")


def test_a_wrong_or_missing_key_is_401(script_server: ServerProcess) -> None:
    base = f"{script_server.url}/v1"
    with (
        openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="the API key is wrong"),
    ):
        client.models.list()
    answer = script_server.call("/v1/models")
    assert answer.status == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert script_server.call("/health").status == 200


def test_a_second_turn_takes_the_first_from_the_cache(hashed: openai.OpenAI) -> None:
    history = [{"role": "user", "content": "A long story. " * 20}]
    first = hashed.chat.completions.create(model="hashed", messages=history, max_tokens=8)
    history += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "go on"},
    ]
    second = hashed.chat.completions.create(model="hashed", messages=history, max_tokens=8)
    cached = second.usage.prompt_tokens_details.cached_tokens
    # All but the last sampled token and the newline behind it was computed before.
    assert first.usage.prompt_tokens <= cached <= first.usage.prompt_tokens + 8


def test_an_answer_can_be_sent_back_as_the_client_holds_it(scripted: openai.OpenAI) -> None:
    message = scripted.chat.completions.create(model="scripted", messages=[USER]).choices[0].message
    again = scripted.chat.completions.create(
        model="scripted", messages=[USER, message.model_dump(), USER]
    )
    assert again.choices[0].message.content == SCRIPT


def test_the_plan_says_what_was_chosen_and_from_which_plugin(hash_server: ServerProcess) -> None:
    plan = hash_server.call("/v1/engine/plan").json()
    assert plan["architecture"] == "ScriptedForCausalLM"
    assert len(plan["plan_digest"]) >= 16
    assert ["sampler", "philox"] in plan["kernels"]
    assert "attention" in json.dumps(plan["plan"])
