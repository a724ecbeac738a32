"""Budgets of thinking in the engine: what follows the forced end is what the model says there.

Whatever the sampling, with drafts, at either depth, retracted, in company, and after a crash.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs
from tests.support.drafters import KnowingSpeculator
from tests.support.engine_parts import Job, Run, build_parts
from tests.support.engines import RunningEngine, tokens_of
from tests.support.scripted import write_scripted_model
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts

from tokenspeed import SamplingParams
from tokenspeed.contracts.thinking import ThinkingBudget

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.frontend import Frontend

PROMPTS = make_prompts([9, 30, 47, 61], shared=16)
STOP = 63
CLOSE = (60, 61, 62)


def the_seed() -> int:
    """Return the seed of this run; a failure's is replayed by TOKENSPEED_TEST_SEED."""
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)
    print(f"TOKENSPEED_TEST_SEED={seed}")
    return seed


def make_jobs(rng: random.Random) -> list[Job]:
    """Return jobs without budgets, of all sorts of sampling."""
    return [
        Job(
            [*prompt, place],
            SamplingParams(
                temperature=rng.choice([0.0, 0.8, 1.3]),
                seed=rng.getrandbits(62),
                top_k=rng.choice([0, 5]),
                frequency_penalty=rng.choice([0.0, 0.7]),
                logit_bias=rng.choice([None, {CLOSE[0]: -5.0}]),
                max_tokens=rng.randint(8, 40),
                logprobs=rng.choice([None, 2]),
            ),
            stop_token_ids=(STOP,),
            start_step=rng.randint(0, 9),
        )
        for place, prompt in enumerate(PROMPTS * 2)
    ]


def bounded(job: Job, tokens: int) -> Job:
    budget = ThinkingBudget(tokens, CLOSE, (CLOSE,), is_open=True)
    return replace(job, params=structs.replace(job.params, thinking=budget))


def run(path: Path, jobs: list[Job], *, num_blocks: int = 60, **options: Any) -> Run:
    parts = build_parts(path, num_blocks=num_blocks, max_step_tokens=40, poison=True, **options)
    return parts.run(jobs)


def plain_way(path: Path, jobs: list[Job], budgets: list[int]) -> list[list[int]]:
    """Return the answers without any budget: cut, closed by hand, and gone on with from there."""
    free = run(path, jobs).tokens
    wanted = [list(tokens) for tokens in free]
    cut = {
        place: [*tokens[:num], *CLOSE]
        for place, (tokens, num) in enumerate(zip(free, budgets, strict=True))
        if len(tokens) > num
    }
    going_on = {
        place: replace(jobs[place], outputs=tokens)
        for place, tokens in cut.items()
        if len(tokens) < (jobs[place].params.max_tokens or 0)
    }
    for place, tokens in cut.items():
        wanted[place] = tokens[: jobs[place].params.max_tokens]
    answers = run(path, list(going_on.values())).tokens
    for place, tokens in zip(going_on, answers, strict=True):
        wanted[place] = tokens
    return wanted


@pytest.mark.parametrize(("name", "depth"), [("qwen3", 0), ("qwen3", 1), ("qwen3_next", 1)])
def test_answers_are_those_of_the_plain_way_with_drafts_and_in_little_room(
    name: str, depth: int, tmp_path: Path
) -> None:
    rng = random.Random(the_seed())
    path = make_checkpoint(name, tmp_path)
    jobs = make_jobs(rng)
    budgets = [rng.choice([0, 1, 5, 12, 100]) for _ in jobs]
    wanted = plain_way(path, jobs, budgets)
    held = [bounded(job, num) for job, num in zip(jobs, budgets, strict=True)]
    plain = run(path, held, depth=depth)
    assert plain.tokens == wanted
    assert run(path, held, depth=depth, num_blocks=14).tokens == wanted
    answers = {tuple(job.prompt): answer for job, answer in zip(jobs, wanted, strict=True)}
    speculator = KnowingSpeculator(answers, 1, wrong_share=0.3)
    parts = build_parts(path, num_blocks=60, depth=depth, speculator=speculator)
    drafted = parts.run(held)
    assert drafted.tokens == wanted
    assert parts.scheduler.stats()["accepted"] > 10
    for one, other in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert [entry.logprob for entry in one] == pytest.approx(
            [entry.logprob for entry in other], abs=1e-3
        )


def test_a_stream_that_is_resumed_keeps_its_budget(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=4, logit_gap=4.0)
    budget = ThinkingBudget(20, (200, 201, 202), ((200, 201, 202),), is_open=True)
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=50, thinking=budget)
    prompts = [[index * 7 % 94, index, 3] for index in range(4)]

    async def undisturbed(frontend: Frontend) -> list[list[int]]:
        return await asyncio.gather(*(tokens_of(frontend.submit(p, params)) for p in prompts))

    with RunningEngine(model, depth=1) as engine:
        expected = engine.run(undisturbed)
        assert all(tokens[20:23] == [200, 201, 202] for tokens in expected)

        async def disturbed(frontend: Frontend) -> list[list[int]]:
            streams = [frontend.submit(prompt, params) for prompt in prompts]
            collected: list[list[int]] = [[] for _ in prompts]

            async def read(index: int) -> None:
                async for delta in streams[index]:
                    collected[index] += delta.tokens

            readers = asyncio.gather(*map(read, range(len(prompts))))
            for progress in (8, 21):
                while max(map(len, collected)) < progress:
                    await asyncio.sleep(0.001)
                engine.kill()
            await readers
            return collected

        assert engine.run(disturbed) == expected
