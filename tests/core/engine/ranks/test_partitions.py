"""Data-parallel attention: the answers of one rank, whoever shares a partition with whom."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.engines import TEST_SETTINGS, RunningEngine, tokens_of
from tests.support.placed_engines import even_checkpoint
from tests.support.processes import workers_of
from tests.support.scripted import write_scripted_model
from tests.support.served_checkpoints import BLOCK_TOKENS, PlainModel

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.frontend import Frontend

SETTINGS = {**TEST_SETTINGS, "plugins": ("sdk", "reference"), "rank_timeout_s": 60.0}
TWO = {"dp": 2, **SETTINGS}
NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
SCRIPTED_PROMPTS = [[index * 7 % 90, index, 3] * (4 + index * 3) for index in range(5)]
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=60, frequency_penalty=0.5)
SCORED = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=1, logprobs=2)


def prompts_of(rng: random.Random, count: int) -> list[list[int]]:
    """Return prompts of one to several chunks; every second one begins alike."""
    shared = [rng.randrange(300) for _ in range(2 * BLOCK_TOKENS + 8)]
    return [
        shared * (index % 2) + [rng.randrange(300) for _ in range(rng.randrange(3, 60))]
        for index in range(count)
    ]


def counts_of(llm: LLM, name: str) -> list[int]:
    """Return a count of each partition."""
    return [part[name] for part in llm._loop.state()["partitions"]]


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("qwen3_moe", {"dp": 2, "ep": 2}),
        pytest.param("llama", {"dp": 2}, marks=pytest.mark.slow),
        pytest.param("llama", {"tp": 2, "dp": 2, "depth": 0}, marks=pytest.mark.slow),
        pytest.param("llama", {"pp": 2, "dp": 2}, marks=pytest.mark.slow),
        pytest.param("llama", {"cp": 2, "dp": 2}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {"dp": 2, "ep": 4}, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", {"dp": 4, "ep": 2}, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", {"tp": 2, "dp": 2}, marks=pytest.mark.slow),
        pytest.param("gpt_oss_even", {"dp": 2, "ep": 2}, marks=pytest.mark.slow),
        pytest.param("qwen3_next_even", {"dp": 2}, marks=pytest.mark.slow),
    ],
)
def test_partitions_give_the_tokens_of_one_rank(
    tmp_path: Path, name: str, degrees: dict[str, int]
) -> None:
    path = even_checkpoint(name, tmp_path)
    plain = PlainModel(path)
    prompts = prompts_of(random.Random(1), 9)
    settings = {**SETTINGS, "max_step_tokens": 48, "kv_gib": 0.01, "max_context_tokens": 512}
    with LLM(str(path), **{**settings, **degrees}) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, GREEDY)
            for prompt, output in zip(prompts, outputs, strict=True):
                assert plain.answer(prompt, NUM_TOKENS).agrees(output.token_ids)
        assert min(counts_of(llm, "cached_tokens")) > 0, "each partition has prefixes of its own"
        (alone,) = llm.generate([prompts[1]], GREEDY)  # the other partitions run idle
        assert plain.answer(prompts[1], NUM_TOKENS).agrees(alone.token_ids)
        assert alone.cached_tokens > BLOCK_TOKENS
        llm.engine.scheduler.check_invariants()


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_sampling_penalties_and_scores_are_those_of_one_rank(tmp_path: Path, depth: int) -> None:
    model = write_scripted_model(tmp_path / "model", window=24, state_layers=1, logit_gap=4.0)
    params = [GREEDY, SEEDED, GREEDY, SEEDED, SCORED]
    found = []
    for settings in (SETTINGS, TWO):
        with LLM(str(model), **{**settings, "depth": depth, "max_step_tokens": 32}) as llm:
            outputs = [llm.generate(SCRIPTED_PROMPTS, params) for _ in range(2)]
            found.append(
                [[(o.token_ids, o.prompt_logprobs, o.logprobs) for o in each] for each in outputs]
            )
            if settings is TWO:
                assert min(counts_of(llm, "output_tokens")) > 0
    assert found[0] == found[1]


def test_drafts_of_all_partitions_are_verified(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", script="ab" * 40)
    found = []
    for settings in (SETTINGS, TWO):
        with LLM(str(model), speculator="ngram", **settings) as llm:
            outputs = llm.generate([[1, 2, 3] * 5, [4, 5] * 9, [1, 2, 3] * 5], GREEDY)
            found.append([output.token_ids for output in outputs])
            assert llm.stats().accepted_tokens > 0
    assert found[0] == found[1]


def test_a_pool_that_holds_little_more_than_a_request_gets_everybody_done(tmp_path: Path) -> None:
    path = even_checkpoint("llama", tmp_path)
    plain = PlainModel(path)
    settings = {**TWO, "max_step_tokens": 40, "max_context_tokens": 128}
    prompts = prompts_of(random.Random(2), 8)
    blocks = 10
    kv_gib = (blocks + 1.5) * plain.physical_bytes / 2**30
    with LLM(
        str(path), kv_gib=kv_gib, **{k: v for k, v in settings.items() if k != "kv_gib"}
    ) as llm:
        outputs = llm.generate(prompts, GREEDY)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert plain.answer(prompt, NUM_TOKENS).agrees(output.token_ids)
        assert llm.stats().retractions + llm.stats().evictions > 0
        assert llm.stats().blocks_total == 2 * blocks


@pytest.mark.slow
def test_embeddings_come_from_every_partition(tmp_path: Path) -> None:
    path = even_checkpoint("llama", tmp_path)
    prompts = prompts_of(random.Random(3), 4)
    found = []
    for settings in (SETTINGS, TWO):
        with LLM(str(path), **{**settings, "max_context_tokens": 256}) as llm:
            found.append([np.array(vector) for vector in llm.embed(prompts)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5)


@pytest.mark.slow
def test_an_abort_in_the_middle_leaves_the_others_alone(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=4)

    async def scenario(frontend: Frontend) -> tuple[list[int], int]:
        streams = [frontend.submit(prompt, SEEDED) for prompt in SCRIPTED_PROMPTS[:3]]
        num_read = 0
        async for delta in streams[1]:
            num_read += len(delta.tokens)
            if num_read > 4:
                break
        await streams[1].aclose()
        others = [await tokens_of(streams[index]) for index in (0, 2)]
        again = await tokens_of(frontend.submit(SCRIPTED_PROMPTS[1], SEEDED))
        return [*others[0], *others[1], *again], len(again)

    found = []
    for settings in (SETTINGS, TWO):
        with RunningEngine(model, **settings) as engine:
            found.append(engine.run(scenario))
    assert found[0] == found[1]
    assert found[0][1] == SEEDED.max_tokens


@pytest.mark.slow
def test_streams_of_all_partitions_go_on_over_a_worker_that_is_killed(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=4)

    async def undisturbed(frontend: Frontend) -> list[list[int]]:
        streams = [frontend.submit(prompt, SEEDED) for prompt in SCRIPTED_PROMPTS]
        return await asyncio.gather(*map(tokens_of, streams))

    with RunningEngine(model, **TWO) as engine:
        expected = engine.run(undisturbed)
        pid = engine.supervisor.pid
        assert pid is not None
        (worker,) = workers_of(pid)

        async def disturbed(frontend: Frontend) -> list[list[int]]:
            streams = [frontend.submit(prompt, SEEDED) for prompt in SCRIPTED_PROMPTS]
            first = (await anext(streams[0])).tokens
            os.kill(worker, signal.SIGKILL)
            answers = await asyncio.gather(*map(tokens_of, streams))
            return [[*first, *answers[0]], *answers[1:]]

        assert engine.run(disturbed) == expected
        assert engine.supervisor.num_restarts == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"record": "file"}, "record is file and dp is 2"),
        ({"min_tps_per_user": 5.0}, "min_tps_per_user is 5.0 and dp is 2"),
        ({"tenants": "file"}, "tenants is file and dp is 2"),
        ({"host_kv_gib": 1.0}, "host_kv_gib is 1.0 and dp is 2"),
    ],
)
def test_what_partitions_cannot_do_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(str(write_scripted_model(tmp_path / "model")), **{**TWO, **settings})
