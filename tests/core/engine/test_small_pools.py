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

FIRST_SEED = 1
MAX_STEPS_PER_TOKEN = 2.0
"""Of answers. One at a time without a cache takes a step for each, and those of its prompt."""
MAX_STEPS_IN_A_ROW = 30
"""Steps in which nobody got a token: a prompt of the pool's size in chunks of 16, and its loads."""

MAX_TURNS_IN_A_ROW = 3000
"""Turns of the loop without a token, after which it is taken for stuck; idle ones take 1 ms."""


class Progress:
    """Watches the turns of an engine's loop. Put it in the place of `turn`."""

    def __init__(self, llm: LLM, hint: str) -> None:
        self._turn = llm._loop.turn
        self._scheduler = llm.engine.scheduler
        self._hint = hint
        self._made = self._turns = self._steps = 0
        self.longest = 0

    def __call__(self, wait_ms: int) -> bool:
        ran = self._turn(wait_ms)
        made = self._scheduler.stats()["output_tokens"]
        is_new = made > self._made
        self._turns, self._steps = (0, 0) if is_new else (self._turns + 1, self._steps + ran)
        self.longest, self._made = max(self.longest, self._steps), made
        assert self._turns < MAX_TURNS_IN_A_ROW, f"nobody gets on; {self._hint}"
        return ran


def random_settings(rng: random.Random, physical_bytes: int, num_blocks: int) -> dict[str, Any]:
    """Return those of an engine with a pool of so many blocks."""
    tier = rng.choice(["", "host", "memory"])
    return {
        "block_tokens": BLOCK_TOKENS,
        "max_context_tokens": 512,
        "max_running": 6,
        "max_step_tokens": rng.choice([16, 64]),
        "depth": rng.choice([0, 1]),
        "kv_gib": gib_of(num_blocks, physical_bytes),
        "host_kv_gib": gib_of(rng.choice([8, 60]), physical_bytes) if tier else 0.0,
        "kv_write": rng.choice(["on_commit", "on_eviction", "selective"]) if tier else "auto",
        "kv_store": "memory" if tier == "memory" else "",
        "threads": 1,
    }


def random_requests(rng: random.Random, capacity: int) -> list[tuple[list[int], int]]:
    """Return prompts and the lengths of their answers; half of the prompts share a beginning."""
    shared = make_tokens(rng, 40, VOCAB_SIZE)
    requests = []
    for _ in range(12):
        num_answer = rng.randint(1, min(40, capacity - 1))
        size = rng.randint(1, capacity - num_answer)
        prompt = make_tokens(rng, size, VOCAB_SIZE)
        requests.append(((shared + prompt)[:size] if rng.random() < 0.5 else prompt, num_answer))
    return requests


def run_in_a_small_pool(path: Path, plain: PlainModel, seed: int) -> dict[str, Any]:
    """Run more requests than fit, all at once; return what it took."""
    rng = random.Random(seed)
    num_blocks = rng.randint(6, 10)
    settings = random_settings(rng, plain.physical_bytes, num_blocks)
    num_reserved = settings["depth"] + 2 if "qwen3" in path.name else 3  # rows, or window blocks
    requests = random_requests(rng, (num_blocks - num_reserved) * BLOCK_TOKENS)
    hint = f"TOKENSPEED_TEST_SEED={seed}: {settings}"
    with LLM(str(path), **settings) as llm:
        progress = llm._loop.turn = Progress(llm, hint)  # type: ignore[method-assign]
        outputs = llm.generate(
            [prompt for prompt, _ in requests],
            [
                SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
                for _, count in requests
            ],
        )
        stats, num_steps = llm.engine.scheduler.stats(), llm.stats().steps
        llm.engine.scheduler.check_invariants()
    for (prompt, count), output in zip(requests, outputs, strict=True):
        assert plain.answer(prompt, count).agrees(output.token_ids), hint
    return {
        "hint": hint,
        "blocks": num_blocks,
        "steps": num_steps,
        "tokens": stats["output_tokens"],
        "steps per token": round(num_steps / stats["output_tokens"], 2),
        "most steps without one": progress.longest,
        "retractions": stats["retractions"],
        "loads": stats["loads"],
    }


def figures(name: str, num_seeds: int, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Run random requests in random small pools."""
    base = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or seed
    path = serve_checkpoint(name, folder)
    plain = PlainModel(path)
    for seed in range(base, base + num_seeds):
        print(f"{name}: TOKENSPEED_TEST_SEED={seed}")
        yield run_in_a_small_pool(path, plain, seed)


def check(name: str, num_seeds: int, folder: Path, *, seed: int = FIRST_SEED) -> None:
    """Everybody ends, and it costs no more than is said above."""
    retractions = 0
    for taken in figures(name, num_seeds, folder, seed):
        print(taken)
        assert taken["steps per token"] <= MAX_STEPS_PER_TOKEN, taken
        assert taken["most steps without one"] <= MAX_STEPS_IN_A_ROW, taken
        retractions += taken["retractions"]
    assert retractions > 0


def test_a_block_that_changes_in_a_plan_without_rows_is_read_where_it_is(tmp_path: Path) -> None:
    """With this seed a request's first block is found again in a plan that only moves blocks."""
    check("qwen3_next", 1, tmp_path, seed=2002780916)


@pytest.mark.parametrize("name", ["qwen3_next", "gpt_oss"])
def test_progress_in_a_pool_of_a_few_blocks_is_bounded(name: str, tmp_path: Path) -> None:
    check(name, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5", "gpt_oss"])
def test_progress_in_a_pool_of_a_few_blocks_is_bounded_at_length(name: str, tmp_path: Path) -> None:
    check(name, int(os.environ.get("TOKENSPEED_TEST_SEEDS", "12")), tmp_path)
