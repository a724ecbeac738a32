"""Real engines over several ranks, and the checkpoints that can be cut over them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

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


def rank_llm(path: Path, *, plugins: str = "reference", **settings: Any) -> LLM:
    """Build a small engine."""
    given = {
        "block_tokens": 16,
        "max_running": 8,
        "max_step_tokens": 32,
        "max_context_tokens": 256,
        "threads": 1,
        "kv_gib": 0.01,
        "rank_timeout_s": 120.0,
        "dtype": "float32",
    }
    return LLM(str(path), plugins=plugins, **{**given, **settings})


def check_equal(path: Path, *, plugins: str = "reference", **degrees: int) -> None:
    """Compare an engine of these degrees with the plain model, prompts in chunks and together."""
    plain = PlainModel(path, max_context_tokens=256)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with rank_llm(path, plugins=plugins, **degrees) as engine:
        for _ in range(2):  # the second time from the cache
            outputs = engine.generate(PROMPTS, params)
            for prompt, output in zip(PROMPTS, outputs, strict=True):
                assert plain.answer(prompt, NUM_TOKENS).agrees(output.token_ids)
