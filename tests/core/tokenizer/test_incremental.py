"""EncodeCache gives the ids of a full encode, reuses what it saw, and never blocks a loop long."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
import tokenizers
from tests.support.texts import SPECIALS, random_text
from tokenizers import AddedToken, models, pre_tokenizers

from tokenspeed.errors import RequestError
from tokenspeed.tokenizer import ChatTemplate, EncodeCache, Tokenizer

SEED = 11


def edited(rng: random.Random, text: str, specials: tuple[str, ...]) -> str:
    """Cut, append, insert or replace somewhere."""
    place = rng.randint(0, len(text))
    end = min(len(text), place + rng.randint(0, 12))
    new = random_text(rng, rng.randint(0, 4), specials)
    kind = rng.random()
    if kind < 0.25:
        return text[:place]
    if kind < 0.6:
        return text + new
    if kind < 0.8:
        return text[:place] + new + text[place:]
    return text[:place] + new + text[end:]


def assert_edits_are_exact(
    tokenizer: Tokenizer, specials: tuple[str, ...], count: int, max_bytes: int
) -> EncodeCache:
    """Compare with a full encode along `count` edits of a growing and shrinking text."""
    rng = random.Random(SEED)
    cache = EncodeCache(tokenizer, max_bytes=max_bytes)
    text = ""
    for step in range(count):
        text = edited(rng, text, specials)[-600:] if step % 50 else random_text(rng, 20, specials)
        wrapped = rng.random() < 0.3
        ids = cache.encode(text, add_special_tokens=wrapped)
        expected = tokenizer.encode(text, add_special_tokens=wrapped)
        assert list(ids) == expected, (SEED, step, ascii(text))
        assert cache.num_bytes <= max_bytes
    return cache


def test_ten_thousand_edits_are_exact(bpe: Tokenizer) -> None:
    specials = (*SPECIALS, "<think>", "</think>")
    cache = assert_edits_are_exact(bpe, specials, 10_000, 1 << 20)
    assert cache.encoded_chars > 0


def test_edits_are_exact_for_spm_and_under_pressure(spm: Tokenizer) -> None:
    assert_edits_are_exact(spm, ("<s>", "</s>", "<unk>"), 2_000, 1 << 20)
    assert_edits_are_exact(spm, ("<s>", "</s>", "<unk>"), 1_000, 8_000)


def awkward_tokenizer() -> Tokenizer:
    """Added tokens that contain, overlap and extend each other, absorb spaces and need words."""
    alphabet = {char: index for index, char in enumerate(" <>|abx[]_\u0120")}
    backend = tokenizers.Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens(
        [
            AddedToken("<a>", normalized=False),
            AddedToken("<a><b>", normalized=False),
            AddedToken("<b>", normalized=False),
            AddedToken("|x", normalized=False),
            AddedToken("|x|x", normalized=False),
            AddedToken("[l]", normalized=False, lstrip=True),
            AddedToken("[r]", normalized=False, rstrip=True),
            AddedToken("ab", normalized=False, single_word=True),
            AddedToken("[n]", normalized=True),
            AddedToken(">|", normalized=False),
            AddedToken("<|>", normalized=False),
            AddedToken("[s]", normalized=False),
        ]
    )
    return Tokenizer(backend, name="awkward")


def test_edits_are_exact_when_added_tokens_interfere() -> None:
    tokenizer = awkward_tokenizer()
    rng = random.Random(SEED)
    parts = ["<a>", "<b>", "|x", "[l]", "[r]", "ab", "[n]", ">|", "<|>", "[s]"]
    parts += [" ", "  ", "a", "b", "x", "<", ">", "|", "[", "]", "_"]
    cache = EncodeCache(tokenizer)
    text = ""
    for step in range(4_000):
        if step % 20 == 0:
            text = ""
        place = rng.randint(0, len(text)) if rng.random() < 0.4 else len(text)
        new = "".join(rng.choice(parts) for _ in range(rng.randint(1, 6)))
        text = (text[:place] + new + text[place:])[-80:]
        expected = tokenizer.encode(text, add_special_tokens=False)
        assert list(cache.encode(text)) == expected, (SEED, step, text)


def conversation(num_messages: int, words: int) -> list[dict[str, str]]:
    rng = random.Random(SEED)
    roles = ["system"] + ["user", "assistant"] * num_messages
    return [{"role": role, "content": random_text(rng, words, ())} for role in roles[:num_messages]]


TEMPLATE = ChatTemplate(
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def test_a_second_turn_encodes_only_what_is_new(bpe: Tokenizer) -> None:
    cache = EncodeCache(bpe)
    messages = conversation(9, 60)
    cache.encode(TEMPLATE.render(messages))
    seen = cache.encoded_chars
    turn = [{"role": "assistant", "content": "answer"}, {"role": "user", "content": "question"}]
    text = TEMPLATE.render([*messages, *turn])
    assert list(cache.encode(text)) == bpe.encode(text, add_special_tokens=False)
    assert cache.encoded_chars - seen <= sum(len(m["content"]) + 60 for m in turn)


def test_conversations_share_their_common_beginning(bpe: Tokenizer) -> None:
    cache = EncodeCache(bpe)
    messages = conversation(3, 400)
    for index in range(30):
        cache.encode(TEMPLATE.render([*messages, {"role": "user", "content": f"task {index}"}]))
    total = len(TEMPLATE.render(messages))
    assert cache.encoded_chars < total + 30 * 100
    lone = EncodeCache(bpe)
    lone.encode(TEMPLATE.render(messages))
    assert cache.num_bytes < lone.num_bytes + 30 * 2500


def test_the_least_recently_used_conversation_is_forgotten_first(bpe: Tokenizer) -> None:
    texts = [f"<|im_start|>{index}" + "word " * 400 + "<|im_end|>" for index in range(4)]
    one = EncodeCache(bpe)
    one.encode(texts[0])
    cache = EncodeCache(bpe, max_bytes=int(one.num_bytes * 3.2))
    for text in [*texts[:3], texts[0], texts[3]]:
        cache.encode(text)
    seen = cache.encoded_chars
    cache.encode(texts[0])
    assert cache.encoded_chars == seen
    cache.encode(texts[1])
    assert cache.encoded_chars == seen + len(texts[1])


def test_a_refused_text_leaves_nothing_behind(bpe: Tokenizer) -> None:
    cache = EncodeCache(bpe)
    with pytest.raises(RequestError):
        cache.encode("<|im_start|>fine<|im_end|>\ud800")
    assert cache.num_bytes == 0


def test_a_second_turn_of_100k_tokens_takes_ten_milliseconds(bpe: Tokenizer) -> None:
    cache = EncodeCache(bpe)
    messages = conversation(101, 500)
    assert len(cache.encode(TEMPLATE.render(messages))) >= 100_000
    spent = []
    for index in range(5):
        new = random_text(random.Random(index), 150, ())
        turn = [{"role": "assistant", "content": "answer"}, {"role": "user", "content": new}]
        began = time.process_time()
        ids = cache.encode(TEMPLATE.render([*messages, *turn]))
        ids.tobytes()
        spent.append(time.process_time() - began)
    assert min(spent) <= 0.010, spent


def test_a_long_encode_leaves_the_loop_running(bpe: Tokenizer) -> None:
    text = random_text(random.Random(SEED), 30_000, ())

    async def encode_and_tick() -> tuple[list[int], int]:
        cache = EncodeCache(bpe)
        task = asyncio.create_task(cache.encode_async(text))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return list(await task), ticks

    ids, ticks = asyncio.run(encode_and_tick())
    assert ids == bpe.encode(text, add_special_tokens=False)
    assert ticks >= 5


def test_concurrent_encodes_are_exact_while_the_tree_is_evicted(bpe: Tokenizer) -> None:
    rng = random.Random(SEED)
    head = "<|im_start|>" + random_text(rng, 900, ()) + "<|im_end|>"
    texts = [head + random_text(rng, 900, SPECIALS) for _ in range(12)]

    async def encode_all() -> list[list[int]]:
        cache = EncodeCache(bpe, max_bytes=60_000)
        cache.encode(head)
        found = await asyncio.gather(*(cache.encode_async(text) for text in texts * 2))
        return [list(ids) for ids in found]

    expected = [bpe.encode(text, add_special_tokens=False) for text in texts]
    assert asyncio.run(encode_all()) == expected * 2
