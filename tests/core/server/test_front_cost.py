"""The front end's cost of a turn depends on what is new in it, not on the history."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from starlette.requests import Request
from tests.support.scripted import write_scripted_model

from tokenspeed.engine.messages import ModelInfo
from tokenspeed.engine.submits import make_submit
from tokenspeed.server.conversation.prompts import PromptReader
from tokenspeed.server.http.bodies import Bodies
from tokenspeed.server.http.body import _parse, read_body
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.openai.conversation import conversation_of
from tokenspeed.server.openai.schemas import ChatRequest
from tokenspeed.server.sampling import chat_params
from tokenspeed.tokenizer.chat import ChatTemplate
from tokenspeed.tokenizer.incremental import EncodeCache
from tokenspeed.tokenizer.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MAX_TURN_MS = 10.0
MAX_PAUSE_MS = 10.0
HISTORY_CHARS, NEW_CHARS = 100_000, 500
INFO = ModelInfo(
    name="m",
    path="",
    architecture="",
    vocab_size=259,
    max_context_tokens=1 << 20,
    max_prompt_tokens=(1 << 20) - 1,
    eos_token_ids=(258,),
)

LIMITS = FieldLimits(max_prompt_tokens=200_000, max_context_tokens=200_001)


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_a_second_turn_on_100k_tokens_costs_under_10_ms_of_cpu(
    has_snapshots: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write_scripted_model(tmp_path / "model"))
    cache = EncodeCache(tokenizer)
    info = msgspec.structs.replace(INFO, has_snapshots=has_snapshots)
    reader = PromptReader(tokenizer, template=ChatTemplate.of(tokenizer), cache=cache, model=info)
    chooser = random.Random(7)

    def words(num_chars: int) -> str:
        return "".join(chooser.choices("abcdefgh ", k=num_chars))

    async def turn(messages: list[dict[str, str]]) -> tuple[float, int]:
        """Return CPU milliseconds and prompt tokens of one request up to its Submit."""
        raw = json.dumps({"model": "m", "messages": messages}).encode()
        started_s = time.process_time()
        request = _parse(raw, ChatRequest, LIMITS)
        params = chat_params(request, INFO.vocab_size)
        prompt = await reader.chat(conversation_of(request))
        make_submit(info, prompt.token_ids, params, "id")
        return (time.process_time() - started_s) * 1000, len(prompt.token_ids)

    async def conversation() -> list[float]:
        messages = [{"role": "user", "content": words(HISTORY_CHARS // 20)} for _ in range(20)]
        await turn(messages)
        costs = []
        for _ in range(5):
            messages.append({"role": "assistant", "content": words(NEW_CHARS)})
            known = cache.encoded_chars
            cost_ms, num_tokens = await turn(messages)
            assert num_tokens > HISTORY_CHARS
            assert cache.encoded_chars - known < NEW_CHARS + 100, "the history was encoded again"
            costs.append(cost_ms)
        return costs

    costs = asyncio.run(conversation())
    assert min(costs) < MAX_TURN_MS, f"CPU ms of five turns: {costs}"


async def longest_pause_ms(reader: PromptReader, raw: bytes) -> tuple[float, int]:
    """Read a request while a task ticks; return the loop's longest pause and the prompt tokens.

    A pause counts as far as this process computed in it: what others take from it is not ours.
    """
    longest_s, done = 0.0, asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def tick() -> None:
        nonlocal longest_s
        last = np.array((time.perf_counter(), time.process_time()))
        while not done.is_set():
            await asyncio.sleep(0.0005)
            now = np.array((time.perf_counter(), time.process_time()))
            longest_s, last = max(longest_s, float(min(now - last))), now

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0.005)
    request = Request({"type": "http", "headers": []}, receive)
    body = await read_body(request, ChatRequest, max_bytes=1 << 24, limits=LIMITS, bodies=Bodies())
    prompt = await reader.chat(conversation_of(body))
    done.set()
    await ticker
    return longest_s * 1000, len(prompt.token_ids)


@pytest.mark.parametrize("has_snapshots", [False, True])
def test_a_cold_turn_of_100k_tokens_never_holds_the_loop_for_10_ms(
    has_snapshots: bool, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(write_scripted_model(tmp_path / "model"))
    template = ChatTemplate.of(tokenizer)
    info = msgspec.structs.replace(INFO, has_snapshots=has_snapshots)
    chooser = random.Random(7)
    texts = ["".join(chooser.choices("abcdefgh ", k=HISTORY_CHARS // 20)) for _ in range(20)]
    messages = [{"role": "user", "content": text} for text in texts]
    raw = json.dumps({"model": "m", "messages": messages}).encode()
    pauses = []
    while len(pauses) < 20 and min(pauses, default=math.inf) >= MAX_PAUSE_MS:  # others' load
        cache = EncodeCache(tokenizer)
        reader = PromptReader(tokenizer, template=template, cache=cache, model=info)
        pause_ms, num_tokens = asyncio.run(longest_pause_ms(reader, raw))
        assert num_tokens > HISTORY_CHARS
        pauses.append(pause_ms)
    assert min(pauses) < MAX_PAUSE_MS, f"longest pause of each cold turn, ms: {pauses}"


def test_prompts_of_models_with_snapshots_name_where_the_next_turn_starts(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_scripted_model(tmp_path / "model"))
    info = msgspec.structs.replace(INFO, has_snapshots=True)
    cache = EncodeCache(tokenizer)
    reader = PromptReader(tokenizer, template=ChatTemplate.of(tokenizer), cache=cache, model=info)
    messages = [
        {"role": role, "content": content}
        for role, content in (("developer", "be"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    ]
    raw = json.dumps({"model": "m", "messages": messages}).encode()
    prompt = asyncio.run(reader.chat(conversation_of(_parse(raw, ChatRequest, LIMITS))))
    parts = [
        tokenizer.decode(list(prompt.token_ids[start:end]), skip_special_tokens=False)
        for start, end in zip((0, *prompt.reuse_points), (*prompt.reuse_points, None), strict=True)
    ]
    assert parts == [
        "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\n",
        "a<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n",
        "c<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]
