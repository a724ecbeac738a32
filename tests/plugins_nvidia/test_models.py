"""On a GPU: every shipped architecture answers through the device's own kernels as the definition.

With graphs, a step in flight, chunks, prefix reuse, retraction and batches that grow and shrink, at
once, in float32. Tokens are compared up to the first near tie of the plain evaluation. Run by
`make gpu-check`; the same without a GPU, one of each kind of cache, is among the slow tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.served_checkpoints import BLOCK_TOKENS, PlainModel, gib_of, serve_checkpoint
from tests.support.tiny_checkpoints import (
    EVEN_SPECS,
    HYBRID_SPECS,
    LATENT_SPECS,
    MOE_SPECS,
    SPECS,
    make_prompts,
)

from tokenspeed import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAMES = (*SPECS, *MOE_SPECS, *LATENT_SPECS, *HYBRID_SPECS, *EVEN_SPECS)
SOME = ("qwen3", "deepseek_v3", "gpt_oss", "qwen3_next")
"""One of each kind of cache, off the GPU."""
NUM_BLOCKS = 30
NUM_TOKENS = 40
PROMPTS = make_prompts([1, 7, 33, 60, 21, 90], shared=20)
GROWING = make_prompts([20] * 6, seed=1)
"""Answered at such length that they outgrow the pool together."""
GROWN_TOKENS = 100
FULL = {"plugins": "sdk,nvidia,reference"}
PLAIN = {"plugins": "sdk,reference", "threads": 1}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(pytest.param(name, FULL, marks=pytest.mark.needs_nvidia) for name in NAMES),
        *(pytest.param(name, PLAIN, marks=pytest.mark.slow, id=f"{name}-host") for name in SOME),
    ],
)
def test_greedy_tokens_are_those_of_the_definition(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    path = serve_checkpoint(name, tmp_path)
    plain = PlainModel(path)
    with LLM(
        str(path),
        dtype="float32",
        block_tokens=BLOCK_TOKENS,
        max_context_tokens=512,
        max_running=5,
        max_step_tokens=37,
        depth=1,
        kv_gib=gib_of(NUM_BLOCKS, plain.physical_bytes),
        **settings,
    ) as llm:
        outputs = check(llm, plain, PROMPTS, NUM_TOKENS)
        check(llm, plain, GROWING, GROWN_TOKENS)
        for prompt, tokens in zip(PROMPTS[2:], outputs[2:], strict=True):
            first = [*prompt, *tokens, 5, 6]
            check(llm, plain, [first], NUM_TOKENS)
            check(llm, plain, [[*first, 7]], 4)
        stats = llm.stats()
        llm.engine.scheduler.check_invariants()
    assert stats.retractions > 0
    assert stats.cached_tokens > 0
    assert stats.hook_calls_after_freeze == 0
    if settings is FULL and name in EVEN_SPECS:
        assert stats.graph_steps > 0, "decode steps are graphs on this device"


def check(
    llm: LLM, plain: PlainModel, prompts: Sequence[list[int]], num_tokens: int
) -> list[list[int]]:
    """Compare answers with the plain model's as far as those are sure; return them."""
    params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
    answers = [list(output.token_ids) for output in llm.generate(prompts, params)]
    wanted = [plain.answer(prompt, num_tokens) for prompt in prompts]
    for found, answer in zip(answers, wanted, strict=True):
        assert answer.agrees(found), (answer, found)
    if len(prompts) > 1:
        assert sum(answer.num_sure for answer in wanted) > len(prompts), "hardly a token is sure"
    return answers
