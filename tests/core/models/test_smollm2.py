"""The real SmolLM2 file decodes greedily as transformers does: recorded, or live under `slow`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.engine_parts import Job, Parts, build_parts
from tests.support.make_smollm2_expected import NUM_TOKENS, decode_greedily, load_reference

from tokenspeed.checkpoint.default_model import default_model_path
from tokenspeed.sampling import SamplingParams

RECORD = json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text())
PROMPTS = [entry["prompt_ids"] for entry in RECORD]


def load_parts(*, keep_packed: bool = False) -> Parts:
    path = default_model_path()
    if not path.is_file():
        pytest.fail(f"no {path}; run `make model` first")
    return build_parts(
        path,
        block_tokens=128,
        num_blocks=40,
        max_step_tokens=256,
        max_context_tokens=2048,
        keep_packed=keep_packed,
    )


@pytest.fixture(scope="module")
def parts() -> Parts:
    return load_parts()


def test_tokens_equal_the_recorded_ones_of_transformers(parts: Parts) -> None:
    run = parts.run([Job(prompt) for prompt in PROMPTS])
    assert run.tokens == [entry["tokens"] for entry in RECORD]


def test_a_second_turn_continues_from_the_cache_with_the_same_tokens(parts: Parts) -> None:
    entry = RECORD[-1]
    first = entry["prompt_ids"] + entry["tokens"][:40]
    run = parts.run([Job(first)])
    assert run.tokens[0][:24] == entry["tokens"][40:]
    assert run.cached_tokens[0] >= len(first) - 2


def test_packed_weights_begin_with_the_same_tokens() -> None:
    """Packed products round activations: tokens are the same until a near tie comes."""
    short = SamplingParams(temperature=0.0, max_tokens=6)
    run = load_parts(keep_packed=True).run([Job(prompt, short) for prompt in PROMPTS])
    assert run.tokens == [entry["tokens"][:6] for entry in RECORD]


@pytest.mark.slow
def test_the_record_is_what_transformers_decodes_today() -> None:
    _, reference = load_reference(default_model_path())
    for entry in RECORD:
        assert decode_greedily(reference, entry["prompt_ids"], NUM_TOKENS) == entry["tokens"]
