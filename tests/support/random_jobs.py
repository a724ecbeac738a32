"""Requests of all sorts of parameters, to run together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from tests.support.engine_parts import Job
from tests.support.tiny_checkpoints import make_prompts

from tokenspeed.sampling import SamplingParams

PROMPTS = make_prompts([9, 30, 47, 61], shared=16)


def random_jobs(rng: random.Random, vocab_size: int) -> list[Job]:
    """Return jobs of all sorts of parameters; the answers of a prompt are all alike in none."""
    return [
        Job(
            [*prompt, place],
            random_params(rng, vocab_size),
            stop_token_ids=tuple(rng.sample(range(vocab_size), 8)),
            start_step=rng.randint(0, 9),
        )
        for place, prompt in enumerate(PROMPTS * 2)
    ]


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    """Return parameters without `min_tokens`."""
    is_greedy = rng.random() < 0.3
    return SamplingParams(
        temperature=0.0 if is_greedy else rng.choice([0.7, 1.0, 1.5]),
        seed=rng.getrandbits(62),
        top_k=rng.choice([0, 0, 5]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.7, -0.5]),
        presence_penalty=rng.choice([0.0, 0.0, 0.9]),
        logit_bias=rng.choice([None, {rng.randrange(vocab_size): 4.0}]),
        max_tokens=rng.randint(1, 40),
        min_tokens=0,
        logprobs=rng.choice([None, None, 0, 2]),
    )


def with_min_tokens(rng: random.Random, job: Job) -> Job:
    """Return a job that must have some of its tokens."""
    most = job.params.max_tokens or 1
    fields: dict[str, Any] = {
        name: getattr(job.params, name) for name in job.params.__struct_fields__
    }
    params = SamplingParams(**fields | {"min_tokens": rng.randint(0, most)})
    return replace(job, params=params)
