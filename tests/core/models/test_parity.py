"""Greedy tokens equal transformers', however the control plane cuts, shares, or retracts.

Float32 on the reference plugin. Checkpoints are drawn so that the median gap between the best two
logits is far above rounding: a difference is a mistake, not a tie.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from tests.support.engine_parts import Job, Parts, build_parts
from tests.support.tiny_checkpoints import (
    SPECS,
    Expected,
    decode_greedily,
    make_checkpoint,
    make_prompts,
)

from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 64
PROMPTS = make_prompts([1, 7, 33, 90, 150], shared=20)
TOLERANCE = 1e-4


@cache
def expected(folder: Path, name: str) -> Expected:
    return decode_greedily(make_checkpoint(name, folder), PROMPTS, NUM_TOKENS)


def jobs() -> list[Job]:
    return [Job(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("name", SPECS)
def test_greedy_tokens_equal_transformers(checkpoint_folder: Path, name: str) -> None:
    wanted = expected(checkpoint_folder, name)
    assert wanted.median_gap > 100 * TOLERANCE
    parts = build_parts(checkpoint_folder / name, max_step_tokens=48)
    assert parts.run(jobs()).tokens == wanted.tokens


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("max_step_tokens", [9, 31, 512])
def test_tokens_do_not_depend_on_chunks_or_depth(
    checkpoint_folder: Path, max_step_tokens: int, depth: int
) -> None:
    wanted = expected(checkpoint_folder, "llama")
    parts = build_parts(checkpoint_folder / "llama", max_step_tokens=max_step_tokens, depth=depth)
    assert parts.run(jobs()).tokens == wanted.tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_do_not_depend_on_cache_hits(checkpoint_folder: Path, depth: int) -> None:
    wanted = expected(checkpoint_folder, "qwen3")
    parts = build_parts(checkpoint_folder / "qwen3", depth=depth)
    first = parts.run(jobs())
    again = parts.run(jobs())
    assert first.tokens == again.tokens == wanted.tokens
    assert again.cached_tokens[1:] == [len(prompt) - 1 for prompt in PROMPTS[1:]]


@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_do_not_depend_on_retraction(checkpoint_folder: Path, depth: int) -> None:
    wanted = expected(checkpoint_folder, "llama")
    parts = build_parts(checkpoint_folder / "llama", num_blocks=18, depth=depth)
    assert parts.run(jobs()).tokens == wanted.tokens
    assert parts.scheduler.stats()["retractions"] > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_requests_that_come_and_go_do_not_disturb_each_other(
    checkpoint_folder: Path, depth: int
) -> None:
    wanted = expected(checkpoint_folder, "qwen2")
    parts = build_parts(checkpoint_folder / "qwen2", max_running=3, depth=depth)
    staggered = [Job(prompt, start_step=7 * index) for index, prompt in enumerate(PROMPTS)]
    assert parts.run(staggered).tokens == wanted.tokens


def test_a_resumed_request_goes_on_with_the_same_tokens(checkpoint_folder: Path) -> None:
    wanted = expected(checkpoint_folder, "llama")
    parts = build_parts(checkpoint_folder / "llama")
    resumed = [
        Job(prompt, outputs=tokens[: 5 * index + 1])
        for index, (prompt, tokens) in enumerate(zip(PROMPTS, wanted.tokens, strict=True))
    ]
    assert parts.run(resumed).tokens == wanted.tokens


@pytest.mark.parametrize("depth", [0, 1])
def test_seeds_and_penalties_survive_batching_retraction_and_resume(
    checkpoint_folder: Path, depth: int
) -> None:
    make_checkpoint("llama", checkpoint_folder)
    sampled = [
        Job(
            prompt,
            SamplingParams(
                temperature=0.9,
                top_p=0.95,
                seed=index,
                max_tokens=40,
                repetition_penalty=1.2,
                frequency_penalty=0.3,
            ),
        )
        for index, prompt in enumerate(PROMPTS)
    ]
    alone = build_parts(checkpoint_folder / "llama")
    wanted = [alone.run([job]).tokens[0] for job in sampled]
    crowded = build_parts(checkpoint_folder / "llama", num_blocks=16, depth=depth)
    assert crowded.run(sampled).tokens == wanted
    assert crowded.scheduler.stats()["retractions"] > 0
    resumed = [
        Job(job.prompt, job.params, outputs=tokens[:13])
        for job, tokens in zip(sampled, wanted, strict=True)
    ]
    assert crowded.run(resumed).tokens == wanted


def prompt_logprobs(parts: Parts, prompt: list[int]) -> list[float]:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    run = parts.run([Job(prompt, params, match_prefix=False)])
    return [
        entry.logprob
        for result in run.results
        for _, entries in result.prompt_logprobs
        for entry in entries
    ]


def test_prompt_logprobs_equal_transformers_in_any_chunks(checkpoint_folder: Path) -> None:
    import torch
    import transformers

    path = make_checkpoint("llama", checkpoint_folder)
    prompt = PROMPTS[3]
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    wanted = logits[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()
    for max_step_tokens in (13, 200):
        parts = build_parts(path, max_step_tokens=max_step_tokens)
        assert prompt_logprobs(parts, prompt) == pytest.approx(wanted, abs=1e-3)
