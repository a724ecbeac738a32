"""Decode steps replayed as graphs answer as steps that are launched, token for token.

On the simulated device, whose graphs are recorded calls over the very tensors: what a graph does
not read anew is as old as its capture. Greedy and drawn rows of every kind of cache.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engine_parts import Job, Parts, Run, SimulatedParts, build_parts
from tests.support.tiny_checkpoints import make_checkpoint, make_prompts

from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.executor.graphs import DecodeGraphs

SIZES = (1, 2, 4, 8)
MODELS = ("llama", "qwen3_moe", "deepseek_v2_lite", "gpt_oss", "qwen3_next")
PROMPTS = make_prompts([1, 7, 33, 60, 21, 40], shared=20)


def params(index: int, **fields: Any) -> SamplingParams:
    """Return those of one of some jobs: greedy, drawn, drawn with all filters, in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0.0},
        {"temperature": 1.3, "seed": 7 + index},
        {"temperature": 0.9, "seed": -index, "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    )
    return SamplingParams(max_tokens=12 + 3 * index, **{**kinds[index % 3], **fields})


JOBS = [
    Job(prompt, params(index), start_step=2 * index) for index, prompt in enumerate(PROMPTS)
]


def graphs_of(parts: Parts) -> DecodeGraphs:
    graphs = parts.executor._graphs
    assert graphs is not None
    return graphs


@cache
def plain_run(folder: Path, name: str, depth: int) -> Run:
    path = make_checkpoint(name, folder)
    return build_parts(path, depth=depth, simulated=SimulatedParts()).run(JOBS)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_launched_steps(
    checkpoint_folder: Path, name: str, depth: int
) -> None:
    wanted = plain_run(checkpoint_folder, name, depth)
    parts = build_parts(
        checkpoint_folder / name, depth=depth, poison=True, simulated=SimulatedParts(SIZES)
    )
    assert graphs_of(parts).counts.failed == {}
    assert parts.run(JOBS).tokens == wanted.tokens
    assert graphs_of(parts).counts.replayed > 15
