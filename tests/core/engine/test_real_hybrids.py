"""Greedy answers of real models do not depend on the cache, retraction, tiers or chunking.

Random chats run through the whole engine in pools too small for them: their blocks and states are
evicted, saved, lost, read from the host tier or a store again, and requests are retracted. Every
answer must be the one that the model gives with all of that off, as far as no near tie lets
rounding choose. That each of these things happened is asserted from the engine's own counters.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.conversations import make_conversations, make_tokens
from tests.support.served_checkpoints import (
    BLOCK_TOKENS,
    PlainModel,
    gib_of,
    serve_checkpoint,
    spoil,
)
from tests.support.tiny_checkpoints import VOCAB_SIZE

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FIRST_SEED = 1
MODELS = ("qwen3_next", "qwen3_5", "gpt_oss")
TIERS = ("host", "memory", "disk")
ONE_OF_EACH = (("qwen3_next", "disk"), ("qwen3_5", "memory"), ("gpt_oss", "host"))
LONGEST_TOKENS = 340
"""Of the chats below, with their answers."""

Prompts = list[tuple[tuple[int, ...], int]]


class Workload:
    """Waves of (prompt, answer tokens), all sent at once: chats, then short prompts with long
    answers, which outgrow the pool together, then everything again."""

    def __init__(self, rng: random.Random, plain: PlainModel) -> None:
        def answer_of(prompt: list[int], num_tokens: int) -> Sequence[int]:
            return plain.answer(prompt, num_tokens).tokens

        chats: Prompts = []
        while len(chats) < 5:
            turns = make_conversations(rng, answer_of, below=VOCAB_SIZE)
            chats += [(turn.prompt, len(turn.answer)) for turn in turns]
        growing = [(tuple(make_tokens(rng, 20, VOCAB_SIZE)), 100) for _ in range(6)]
        size = rng.randint(3, 6)
        first = [chats[i : i + size] for i in range(0, len(chats), size)]
        self.waves = [*first, growing, *first]


def random_settings(rng: random.Random, physical_bytes: int, tier: str) -> dict[str, Any]:
    """Return those of an engine whose pool holds little more than the longest chat."""
    num_blocks = -(-LONGEST_TOKENS // BLOCK_TOKENS) + rng.randint(6, 12)
    return {
        "block_tokens": BLOCK_TOKENS,
        "max_context_tokens": 512,
        "max_running": rng.choice([5, 6]),
        "max_step_tokens": rng.choice([16, 37, 128]),
        "depth": rng.choice([0, 1]),
        "kv_write": rng.choice(["on_commit", "on_eviction"]) if tier == "host" else "auto",
        "state_cache_share": rng.choice([0.2, 0.5]),
        "kv_gib": gib_of(num_blocks, physical_bytes),
        "host_kv_gib": gib_of(200 if tier == "host" else 40, physical_bytes),
        "kv_store": "" if tier == "host" else tier,
        "threads": 1,
    }


def check_workload(
    path: Path, plain: PlainModel, tier: str, folder: Path, seed: int
) -> Counter[str]:
    """Run one random workload in one random engine; return what happened in it."""
    rng = random.Random(seed)
    workload = Workload(rng, plain)
    settings = random_settings(rng, plain.physical_bytes, tier)
    if tier == "disk":
        settings["kv_store_folder"] = str(folder / f"{path.name}-{seed}")
    is_spoilt = rng.random() < 0.3
    hint = f"TOKENSPEED_TEST_SEED={seed}: {settings}, spoilt {is_spoilt}"
    cached = 0
    with LLM(str(path), **settings) as llm:
        if is_spoilt:
            spoil(llm, seed=seed)
        for wave in workload.waves:
            cached += check_wave(llm, plain, wave, hint)
            llm.engine.scheduler.check_invariants()
        seen = Counter(llm.engine.scheduler.stats())
    seen["cached"] = cached
    return seen


def check_wave(llm: LLM, plain: PlainModel, wave: Prompts, hint: str) -> int:
    """Send prompts at once and compare their answers; return how many tokens were cached."""
    params = [
        SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for _, count in wave
    ]
    outputs = llm.generate([prompt for prompt, _ in wave], params)
    for (prompt, count), output in zip(wave, outputs, strict=True):
        assert plain.answer(prompt, count).agrees(output.token_ids), hint
    return sum(output.cached_tokens for output in outputs)


def run_seeds(
    name: str, tier: str, num_seeds: int, folder: Path
) -> tuple[PlainModel, Counter[str]]:
    """Run workloads of a model before a tier; return what happened in all of them."""
    base = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or FIRST_SEED
    path = serve_checkpoint(name, folder)
    plain = PlainModel(path)
    seen: Counter[str] = Counter()
    for seed in range(base, base + num_seeds):
        print(f"{name} before {tier}: TOKENSPEED_TEST_SEED={seed}")
        seen += check_workload(path, plain, tier, folder, seed)
    check_happened(seen, tier)
    return plain, seen


def check_happened(seen: Counter[str], tier: str) -> None:
    """Everything that could have changed an answer was there."""
    needed = ["cached", "retractions", "evictions", "host_writes", "loads", "loaded_tokens"]
    if tier != "host":
        needed += ["store_puts", "store_gets"]
    assert not [name for name in needed if not seen[name]], seen


@pytest.mark.parametrize(("name", "tier"), ONE_OF_EACH)
def test_answers_are_those_with_all_off(name: str, tier: str, tmp_path: Path) -> None:
    run_seeds(name, tier, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tier", TIERS)
def test_answers_are_those_with_all_off_at_length(name: str, tier: str, tmp_path: Path) -> None:
    num_seeds = int(os.environ.get("TOKENSPEED_TEST_SEEDS", "4"))
    plain, seen = run_seeds(name, tier, num_seeds, tmp_path)
    assert seen["saved"] > 0, "victims were copied to the host before they gave their blocks"
    print(f"near ties: {plain.share_of_near_ties:.5f} of {plain.num_tokens} tokens")
    assert plain.share_of_near_ties < 0.005
