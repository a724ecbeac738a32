"""Pools that hold little more than one request: everybody ends, and at a bounded price.

Whoever is retracted computes again what it lost. That the oldest is never a victim is what makes
sure of progress; how much progress there is shows in the steps taken for each token of an answer.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.conversations import make_tokens
from tests.support.served_checkpoints import (
    BLOCK_TOKENS,
    PlainModel,
    gib_of,
    serve_checkpoint,
)
from tests.support.tiny_checkpoints import VOCAB_SIZE

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_STEPS_PER_TOKEN = 3.0
"""Of answers. One at a time without a cache takes a step for each, and those of its prompt."""
MAX_STEPS_IN_A_ROW = 60
"""Steps in which nobody got a token: a prompt of the pool's size in chunks of 16, and its loads."""


def run_in_a_small_pool(path: Path, plain: PlainModel, seed: int) -> dict[str, Any]:
    """Run more requests than fit, all at once; return what it took."""
    rng = random.Random(seed)
    num_blocks, depth = rng.randint(6, 10), rng.choice([0, 1])
    tier = rng.choice(["", "host", "memory"])
    capacity = (num_blocks - (depth + 2 if "qwen3" in path.name else 3)) * BLOCK_TOKENS
    settings: dict[str, Any] = {
        "block_tokens": BLOCK_TOKENS,
        "max_context_tokens": 512,
        "max_running": 6,
        "max_step_tokens": rng.choice([16, 64]),
        "depth": depth,
        "kv_gib": gib_of(num_blocks, plain.physical_bytes),
        "host_kv_gib": gib_of(rng.choice([8, 60]), plain.physical_bytes) if tier else 0.0,
        "kv_write": rng.choice(["on_commit", "on_eviction", "selective"]) if tier else "auto",
        "kv_store": "memory" if tier == "memory" else "",
        "threads": 1,
    }
    prompts, params = [], []
    shared = make_tokens(rng, 40, VOCAB_SIZE)
    for _ in range(12):
        num_answer = rng.randint(1, min(40, capacity - 1))
        size = rng.randint(1, capacity - num_answer)
        prompt = make_tokens(rng, size, VOCAB_SIZE)
        prompts.append((shared + prompt)[:size] if rng.random() < 0.5 else prompt)
        params.append(SamplingParams(temperature=0.0, max_tokens=num_answer, ignore_eos=True))
    hint = f"TOKENSPEED_TEST_SEED={seed}: {settings}"
    with LLM(str(path), **settings) as llm:
        silent, longest = 0, 0
        made = llm.stats().output_tokens
        turn = llm._loop.turn

        def counted(wait_ms: int) -> bool:
            nonlocal silent, longest, made
            ran = turn(wait_ms)
            now = llm.engine.scheduler.stats()["output_tokens"]
            silent, made = (0, now) if now > made else (silent + ran, made)
            longest = max(longest, silent)
            assert silent < 10 * MAX_STEPS_IN_A_ROW, hint
            return ran

        llm._loop.turn = counted  # type: ignore[method-assign]
        outputs = llm.generate(prompts, params)
        stats = llm.engine.scheduler.stats()
        num_steps = llm.stats().steps
        llm.engine.scheduler.check_invariants()
    for prompt, limit, output in zip(prompts, params, outputs, strict=True):
        assert limit.max_tokens is not None
        assert plain.answer(prompt, limit.max_tokens).agrees(output.token_ids), hint
    num_tokens = stats["output_tokens"]
    return {
        "seed": seed,
        "blocks": num_blocks,
        "depth": depth,
        "tier": tier,
        "steps": num_steps,
        "tokens": num_tokens,
        "steps per token": round(num_steps / num_tokens, 2),
        "most steps without one": longest,
        "retractions": stats["retractions"],
        "loads": stats["loads"],
    }


def figures(name: str, num_seeds: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Run random requests in random small pools."""
    base = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    path = serve_checkpoint(name, folder)
    plain = PlainModel(path)
    for seed in range(base, base + num_seeds):
        print(f"{name}: TOKENSPEED_TEST_SEED={seed}")
        yield run_in_a_small_pool(path, plain, seed)


def check(name: str, num_seeds: int, folder: Path) -> None:
    """Everybody ends, and it costs no more than is said above."""
    retractions = 0
    for taken in figures(name, num_seeds, folder):
        print(taken)
        assert taken["steps per token"] <= MAX_STEPS_PER_TOKEN, taken
        assert taken["most steps without one"] <= MAX_STEPS_IN_A_ROW, taken
        retractions += taken["retractions"]
    assert retractions > 0


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss"])
def test_progress_in_a_pool_of_a_few_blocks_is_bounded(name: str, tmp_path: Path) -> None:
    check(name, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "gpt_oss"])
def test_progress_in_a_pool_of_a_few_blocks_is_bounded_at_length(name: str, tmp_path: Path) -> None:
    check(name, int(os.environ.get("TOKENSPEED_TEST_SEEDS", "40")), tmp_path)
