"""Greedy answers do not depend on cache and drafts, for full, window and state groups alike.

Random conversations with shared prefixes run through the real scheduler and executor in small
pools, in chunks, retracted, overlapped, with right and wrong drafts, and with freed cells poisoned;
every answer must be the one that the whole prefix gives. Then chats: how much of the next turn is
computed again.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.conversations import make_conversations, make_tokens
from tests.support.drafters import KnowingSpeculator
from tests.support.engine_parts import Job, build_parts
from tests.support.prefix_oracle import PrefixOracle
from tests.support.scripted import PRINTABLE_TOKENS, write_scripted_model
from tests.support.served_checkpoints import serve_checkpoint
from tests.support.templates import QWEN3_LIKE
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.conversations import Answers

KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "window": {"window": 20},
    "state": {"state_layers": 2},
    "all": {"window": 20, "state_layers": 3},
    "replay": {"window": 20, "state_layers": 2, "speculation": "replay"},
}
SEEDS = int(os.environ.get("TOKENSPEED_TEST_SEEDS", "4"))


def conversations(rng: random.Random, answer_of: Answers) -> tuple[list[Job], list[list[int]]]:
    """Return jobs and the answers they must get."""
    turns = make_conversations(rng, answer_of, below=PRINTABLE_TOKENS)
    jobs = [
        Job(
            turn.prompt,
            SamplingParams(temperature=0.0, max_tokens=len(turn.answer)),
            start_step=turn.step,
            reuse_points=turn.reuse_points,
        )
        for turn in turns
    ]
    return jobs, [list(turn.answer) for turn in turns]


def drafter(seed: int, jobs: list[Job], answers: list[list[int]]) -> KnowingSpeculator | None:
    """Return None for every fourth seed, for others a speculator that is wrong more or less often.

    Of four seeds in a row one has none, so that all sorts are met in every run.
    """
    wrong_share = (None, 0.0, 0.2, 0.6)[seed % 4]
    if wrong_share is None:
        return None
    known = {tuple(job.prompt): answer for job, answer in zip(jobs, answers, strict=True)}
    return KnowingSpeculator(known, seed, wrong_share=wrong_share)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [0, 1])
def test_answers_are_those_of_the_whole_prefix(kind: str, depth: int, tmp_path: Path) -> None:
    base = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    path = write_scripted_model(tmp_path, **KINDS[kind])
    oracle = PrefixOracle(
        window=KINDS[kind].get("window", 0),
        state_layers=KINDS[kind].get("state_layers", 0),
        hash_tokens=PRINTABLE_TOKENS,
    )
    seen: Counter[str] = Counter()
    for seed in range(base, base + SEEDS):
        rng = random.Random(seed)
        jobs, answers = conversations(rng, oracle.answer)
        longest = max(len(job.prompt) for job in jobs) + 14
        parts = build_parts(
            path,
            plugins=("reference", "sdk"),
            # At least what a request with five drafts takes alone, rows of state with them.
            num_blocks=max(24, -(-longest // 16) * 2 + rng.choice([4, 12, 100])),
            max_running=rng.choice([2, 4, 8]),
            max_step_tokens=rng.choice([16, 23, 64]),
            depth=depth,
            poison=True,
            speculator=drafter(seed, jobs, answers),
        )
        run = parts.run(jobs)
        hint = f"TOKENSPEED_TEST_SEED={seed} TOKENSPEED_TEST_SEEDS=1"
        assert run.tokens == answers, hint
        seen["cached"] += sum(count for count in run.cached_tokens if count > 0)
        seen.update(parts.scheduler.stats())
    assert seen["cached"] > 0
    assert seen["drafted"] > seen["accepted"] > 0 or SEEDS == 1


def test_answers_are_those_of_the_whole_prefix_with_a_host_tier(tmp_path: Path) -> None:
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    path = write_scripted_model(tmp_path, **KINDS["all"])
    oracle = PrefixOracle(window=20, state_layers=3, hash_tokens=PRINTABLE_TOKENS)
    settings = {"block_tokens": 16, "max_step_tokens": 32, "max_running": 4, "kv_gib": 2**-13}
    rng, cached = random.Random(seed), {}
    jobs, answers = conversations(rng, oracle.answer)
    prompt = make_tokens(rng, 40, PRINTABLE_TOKENS)
    for host_kv_gib in (0.0, 2**-8):
        with LLM(
            str(path), plugins="reference,sdk", kv_write="on_commit", host_kv_gib=host_kv_gib,
            max_context_tokens=512, **settings,
        ) as llm:  # fmt: skip
            outputs = [
                output
                for start in (*range(0, len(jobs), 3), *range(0, len(jobs), 3))
                for output in llm.generate(
                    [job.prompt for job in jobs[start : start + 3]],
                    [job.params for job in jobs[start : start + 3]],
                )
            ]
            llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=5))
            (repeat,) = llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=5))
        assert [list(output.token_ids) for output in outputs] == answers * 2, seed
        assert list(repeat.token_ids) == oracle.answer(prompt, 5)
        assert repeat.cached_tokens == 32, "without reuse points too: the last block before its end"
        cached[host_kv_gib] = sum(output.cached_tokens for output in outputs)
    assert cached[2**-8] >= cached[0.0], seed


def check_model(name: str, num_seeds: int, tmp_path: Path) -> None:
    """Answers of random conversations are those without a cache."""
    base = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    path = make_checkpoint(name, tmp_path)
    plain = build_parts(path, num_blocks=64, max_step_tokens=512, prefix_cache=False)

    def answer_of(prompt: list[int], num_tokens: int) -> list[int]:
        """All off: alone, in one chunk, nothing kept."""
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens)
        return plain.run([Job(tuple(prompt), params)]).tokens[0]

    cached = 0
    for seed in range(base, base + num_seeds):
        rng = random.Random(seed)
        jobs, answers = conversations(rng, answer_of)
        depth = rng.choice([0, 1])
        parts = build_parts(
            path,
            num_blocks=40,
            max_running=4,
            max_step_tokens=23,
            depth=depth,
            poison=True,
            speculator=drafter(seed, jobs, answers),
        )
        run = parts.run(jobs)
        assert run.tokens == answers, f"TOKENSPEED_TEST_SEED={seed}"
        cached += sum(count for count in run.cached_tokens if count > 0)
    assert cached > 0 or num_seeds == 1, f"TOKENSPEED_TEST_SEED={base}"


@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "qwen3_next"])
def test_models_answer_with_the_cache_as_without(name: str, tmp_path: Path) -> None:
    check_model(name, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "gpt_oss", "qwen3_next"])
def test_models_answer_with_the_cache_as_without_at_length(name: str, tmp_path: Path) -> None:
    check_model(name, 10, tmp_path)


def test_a_next_turn_starts_again_at_the_snapshot_of_the_last(tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path, **KINDS["all"])
    parts = build_parts(path, plugins=("reference", "sdk"), poison=True)
    oracle = PrefixOracle(window=20, state_layers=3, hash_tokens=PRINTABLE_TOKENS)
    prompt = make_tokens(random.Random(1), 75, PRINTABLE_TOKENS)
    params = SamplingParams(temperature=0.0, max_tokens=9)
    first = parts.run([Job(prompt, params, reuse_points=[40, 72])])
    history = [*prompt, *first.tokens[0], *make_tokens(random.Random(2), 8, PRINTABLE_TOKENS)]
    # The branch point and the newest two: 40, 72, and where the request ended with 83 tokens in the
    # cache; the ninth was only sampled.
    for asked, cached in (
        ([*prompt[:60], 1, 2, 3], 40),
        ([*prompt[:72], 1, 2, 3], 72),
        (history, 83),
    ):
        run = parts.run([Job(asked, params)])
        assert run.cached_tokens == [cached]
        assert run.tokens[0] == oracle.answer(asked, 9)


def write_chat_model(kind: str, folder: Path) -> Path:
    """Write a model whose template strips thinking: scripted, or a real architecture."""
    changes = {"max_position_embeddings": 8192}
    if kind not in KINDS:
        return serve_checkpoint(kind, folder, chat_template=QWEN3_LIKE, **changes)
    path = write_scripted_model(folder, **changes, **KINDS[kind])
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": QWEN3_LIKE}), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize("kind", ["full", "all", "qwen3_next", "qwen3_5"])
def test_a_template_that_strips_thinking_costs_at_most_64_tokens(kind: str, tmp_path: Path) -> None:
    path = write_chat_model(kind, tmp_path)
    rng = random.Random(4)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    with LLM(
        str(path), plugins="reference,sdk", block_tokens=16, max_step_tokens=64, max_running=4
    ) as llm:
        messages: list[dict[str, Any]] = [{"role": "system", "content": _words(rng, 40)}]
        previous: tuple[int, ...] = ()
        for turn in range(6):
            messages.append({"role": "user", "content": _words(rng, rng.randint(1, 40))})
            for _ in range(rng.choice([1, 1, 3])):  # the last of a tool loop answers
                (output,) = llm.chat([messages], params)
                ids = output.prompt_token_ids
                shared = _shared(previous, ids)
                assert len(ids) - output.cached_tokens <= len(ids) - shared + 64, turn
                previous = ids
                text = f"<think>{_words(rng, 30)}</think>\n\n{_words(rng, 10)}"
                messages.append({"role": "assistant", "content": text})
                messages.append({"role": "tool", "content": _words(rng, 20)})
            messages.pop()
        assert previous[:100] == ids[:100]


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(["red", "green", "blue", "round"]) for _ in range(count))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
