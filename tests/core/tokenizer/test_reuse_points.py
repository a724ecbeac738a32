"""Reuse points lie where the next turn's prompt still agrees with this one's."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from tests.support.templates import QWEN3_LIKE
from tests.support.texts import random_text

from tokenspeed.tokenizer import ChatTemplate, EncodeCache, Tokenizer
from tokenspeed.tokenizer.reuse_points import reuse_offsets

TEMPLATE = ChatTemplate(QWEN3_LIKE)
SYSTEM = {"role": "system", "content": "Be brief."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, thinking: str = "hm") -> dict[str, Any]:
    return {"role": "assistant", "content": f"<think>{thinking}</think>\n\n{text}"}


def cut(messages: list[dict[str, Any]], **variables: Any) -> list[str]:
    """The text between one reuse point and the next, thinking head included."""
    text = TEMPLATE.render(messages, **variables)
    offsets = reuse_offsets(TEMPLATE, messages, text, **variables)
    return [text[a:b] for a, b in zip((0, *offsets), (*offsets, len(text)), strict=True)]


def test_the_points_are_the_ends_of_system_earlier_turns_and_history() -> None:
    parts = cut([SYSTEM, user("one"), answer("1"), user("two")], enable_thinking=False)
    assert parts == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
        "one<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\n",
        "two<|im_end|>\n",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ]


def test_tools_belong_to_the_first_point() -> None:
    parts = cut([user("one")], tools=[{"name": "look"}])
    assert parts[0] == '<|im_start|>system\n# Tools\n{"name": "look"}<|im_end|>\n<|im_start|>user\n'
    assert parts[1:] == ["one<|im_end|>\n", "<|im_start|>assistant\n"]


def test_in_a_tool_loop_the_last_user_messages_end_is_a_point() -> None:
    tool = {"role": "tool", "content": "42"}
    parts = cut([SYSTEM, user("one"), answer("call"), tool])
    assert parts[1] == "one<|im_end|>\n"
    assert parts[2].endswith("42</tool_response><|im_end|>\n")


def test_a_template_that_refuses_shorter_conversations_has_fewer_points() -> None:
    template = ChatTemplate(
        "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}"
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    messages = [SYSTEM, user("one"), answer("1"), user("two")]
    text = template.render(messages)
    offsets = reuse_offsets(template, messages, text)
    assert [text[offset:] for offset in offsets] == ["two[assistant]", "[assistant]"]


def test_the_next_turn_agrees_up_to_a_point_but_for_the_head_of_an_answer(bpe: Tokenizer) -> None:
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(32)
    rng = random.Random(seed)
    cache = EncodeCache(bpe)
    for _ in range(150):
        messages = [SYSTEM] if rng.random() < 0.7 else []
        previous: list[int] = []
        points: tuple[int, ...] = ()
        for _ in range(rng.randint(2, 5)):
            messages.append(user(random_text(rng, rng.randint(1, 30), ())))
            for _ in range(rng.randint(1, 3)):  # a tool loop, then the answer
                text = TEMPLATE.render(messages)
                ids = list(cache.encode(text))
                if previous and messages[-1]["role"] == "user":
                    shared = _shared(ids, previous)
                    assert max((p for p in points if p <= shared), default=0) >= shared - 16, seed
                offsets = reuse_offsets(TEMPLATE, messages, text)
                points = cache.token_positions(text, offsets)
                previous = ids
                messages.append(answer(random_text(rng, 10, ()), random_text(rng, 20, ())))
                if rng.random() < 0.5:
                    break
                messages.append({"role": "tool", "content": random_text(rng, 20, ())})
            if messages[-1]["role"] == "tool":
                messages.append(answer("done"))


@pytest.mark.parametrize("name", ["bpe", "spm"])
def test_token_positions_are_the_ids_that_the_beginning_alone_has(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    rng = random.Random(5)
    for _ in range(60):
        text = random_text(rng, 40, ("<|im_end|>", "<think>"))
        offsets = sorted(rng.sample(range(len(text) + 1), min(3, len(text))))
        ids = tokenizer.encode(text, add_special_tokens=False)
        for cache in (EncodeCache(tokenizer), _warm(tokenizer, text)):
            positions = cache.token_positions(text, offsets)
            for offset, position in zip(offsets, positions, strict=True):
                alone = tokenizer.encode(text[:offset], add_special_tokens=False)
                assert position == _shared(alone, ids), (text, offset)


def _warm(tokenizer: Tokenizer, text: str) -> EncodeCache:
    cache = EncodeCache(tokenizer)
    cache.encode(text)
    return cache


def _shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
