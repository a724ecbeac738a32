"""Real models cut over real processes answer as on one rank: weights, caches and programs meet."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.served_checkpoints import PlainModel, serve_checkpoint
from tests.support.tiny_checkpoints import (
    EVEN_SPECS,
    LATENT_SPECS,
    MOE_SPECS,
    SPECS,
    make_prompts,
    reference_model,
)

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import PlacementError

if TYPE_CHECKING:
    from pathlib import Path

EVEN_VOCAB = 336
PROMPTS = make_prompts([5, 40, 70, 23])
NUM_TOKENS = 16
ALL_SPECS = {**SPECS, **MOE_SPECS, **LATENT_SPECS, **EVEN_SPECS}


def even_checkpoint(name: str, folder: Path) -> Path:
    """Serve a checkpoint whose vocabulary can be cut."""
    spec = ALL_SPECS[name]
    spec = dataclasses.replace(spec, fields={**spec.fields, "vocab_size": EVEN_VOCAB})
    reference_model(spec).save_pretrained(folder / name)
    return serve_checkpoint(name, folder)


def llm(path: Path, **settings: Any) -> LLM:
    return LLM(
        str(path),
        plugins="reference",
        block_tokens=16,
        max_running=8,
        max_step_tokens=32,
        max_context_tokens=256,
        threads=1,
        kv_gib=0.01,
        rank_timeout_s=30.0,
        **settings,
    )


def check_equal(path: Path, **degrees: int) -> None:
    """Compare an engine of these degrees with the plain model, prompts in chunks and together."""
    plain = PlainModel(path, max_context_tokens=256)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    with llm(path, **degrees) as engine:
        for _ in range(2):  # the second time from the cache
            outputs = engine.generate(PROMPTS, params)
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                assert plain.answer(prompt, NUM_TOKENS).agrees(output.token_ids)


def test_heads_cut_over_two_ranks_give_the_tokens_of_one(tmp_path: Path) -> None:
    check_equal(even_checkpoint("llama", tmp_path), tp=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {"pp": 2}),
        ("llama", {"cp": 2}),
        ("deepseek_v3", {"tp": 2, "cp": 2}),
        ("qwen3_next_even", {"cp": 2}),
        ("llama", {"dense_tp": 2}),
        ("qwen3", {"tp": 4}),
        ("qwen3_moe", {"tp": 2, "ep": 2}),
        ("mixtral", {"ep": 2}),
        ("deepseek_v3", {"tp": 2}),
        ("deepseek_v3", {"ep": 2}),
        ("deepseek_v3", {"tp": 2, "pp": 2}),
        ("gpt_oss_even", {"tp": 2}),
        ("gpt_oss_even", {"pp": 2}),
        ("qwen3_next_even", {"tp": 2}),
    ],
)
def test_every_kind_of_cut_gives_the_tokens_of_one_rank(
    name: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    check_equal(even_checkpoint(name, tmp_path), **degrees)


def test_a_model_that_cannot_be_cut_so_names_the_numbers(tmp_path: Path) -> None:
    path = serve_checkpoint("llama", tmp_path)
    with pytest.raises(PlacementError, match=r"found 331 units of V over 2 ranks"):
        llm(path, tp=2)
