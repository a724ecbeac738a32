"""Models with windows and states decode as transformers does, however steps cut and mix them.

Float32 on the reference plugin. Driven by hand, what must not be read is NaN; the tests of cache
hits and retraction go through scheduler and executor.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.engine_parts import Job, build_parts
from tests.support.hand_driven import hand_driven
from tests.support.tiny_checkpoints import (
    EVEN_SPECS,
    HYBRID_SPECS,
    Expected,
    decode_greedily,
    make_checkpoint,
    make_prompts,
)

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 64
PROMPTS = make_prompts([1, 7, 33, 90, 150], shared=20)
TOLERANCE = 1e-3
"""Of logits, whose deviation is 1.8: rounding to float32 grows through the layers to 4e-4."""


@cache
def expected(folder: Path, name: str) -> Expected:
    return decode_greedily(make_checkpoint(name, folder), PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize("name", HYBRID_SPECS)
def test_greedy_tokens_equal_transformers_in_any_batch(checkpoint_folder: Path, name: str) -> None:
    wanted = expected(checkpoint_folder, name)
    assert wanted.median_gap > 100 * TOLERANCE
    driven = hand_driven(checkpoint_folder / name)
    assert driven.decode(PROMPTS, NUM_TOKENS, chunk_tokens=29) == wanted.tokens


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("depth", [0, 1])
def test_tokens_do_not_depend_on_cache_hits(checkpoint_folder: Path, name: str, depth: int) -> None:
    wanted = expected(checkpoint_folder, name)
    parts = build_parts(checkpoint_folder / name, max_step_tokens=48, depth=depth)
    jobs = [Job(prompt) for prompt in PROMPTS]
    assert parts.run(jobs).tokens == wanted.tokens
    again = parts.run(jobs)
    assert again.tokens == wanted.tokens
    assert min(again.cached_tokens[1:]) > 0


def test_tokens_do_not_depend_on_retraction_with_windows(checkpoint_folder: Path) -> None:
    wanted = expected(checkpoint_folder, "gpt_oss")
    parts = build_parts(checkpoint_folder / "gpt_oss", num_blocks=40, depth=1)
    assert parts.run([Job(prompt) for prompt in PROMPTS]).tokens == wanted.tokens
    assert parts.scheduler.stats()["retractions"] > 0


@pytest.mark.parametrize("name", HYBRID_SPECS)
@pytest.mark.parametrize("sizes", [[1] * 20, [3, 1, 17, 1, 1, 64, 13]], ids=["decode", "chunks"])
def test_logits_do_not_depend_on_how_a_prompt_is_cut(
    checkpoint_folder: Path, name: str, sizes: list[int]
) -> None:
    driven = hand_driven(make_checkpoint(name, checkpoint_folder))
    prompt = PROMPTS[4][: sum(sizes)]
    (whole,) = driven.step([(driven.start(), prompt)])
    stream, parts = driven.start(), []
    for chunk in torch.tensor(prompt).split(sizes):
        parts += driven.step([(stream, chunk.tolist())])
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", EVEN_SPECS)
def test_under_determinism_decodes_are_bitwise_the_same_in_every_batch(
    checkpoint_folder: Path, name: str
) -> None:
    """Features lie in multiples of 32: torch computes the exp of the rest of a tensor otherwise."""
    driven = hand_driven(make_checkpoint(name, checkpoint_folder), objective="determinism")
    streams = [driven.start() for _ in range(6)]
    for stream, prompt in zip(streams, [*PROMPTS[1:4], *PROMPTS[1:4]], strict=True):
        driven.step([(stream, prompt)])
    together = driven.step([(stream, [5]) for stream in streams[:3]])
    alone = [driven.step([(stream, [5])])[0] for stream in streams[3:]]
    assert torch.equal(torch.cat(together), torch.cat(alone))
