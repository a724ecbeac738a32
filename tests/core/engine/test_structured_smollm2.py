"""A real model with real sampling: every answer that ended validates against its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.json_schemas import SCHEMAS

from tokenspeed import LLM, SamplingParams
from tokenspeed.checkpoint.default_model import default_model_path
from tokenspeed.contracts.grammar import GrammarSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("xgrammar")
jsonschema = pytest.importorskip("jsonschema")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    if not default_model_path().is_file():
        pytest.skip("the default model was not fetched")
    with LLM(max_running=16, kv_gib=0.5) as engine:
        yield engine


def test_every_answer_validates(llm: LLM) -> None:
    # Closed and open by turns: every schema as both is in the tests without a model.
    asked = [(name, seed % 2 == 0, seed) for seed, name in enumerate(SCHEMAS)]
    params = [
        SamplingParams(
            temperature=0.9,
            seed=seed,
            max_tokens=160,
            grammar=GrammarSpec("json_schema", json.dumps(SCHEMAS[name]), closed=closed),
        )
        for name, closed, seed in asked
    ]
    prompts = [f"An example of {json.dumps(SCHEMAS[name])}: " for name, _, _ in asked]
    outputs = llm.generate(prompts, params)
    num_ended = 0
    for (name, closed, seed), output in zip(asked, outputs, strict=True):
        assert output.finish_reason in ("stop", "length"), (name, output)
        if output.finish_reason == "stop":
            num_ended += 1
            value = json.loads(output.text)
            errors = list(jsonschema.Draft202012Validator(SCHEMAS[name]).iter_errors(value))
            assert not errors, (name, closed, seed, output.text, errors)
    assert num_ended > len(outputs) // 2
    print(f"{num_ended} of {len(outputs)} answers ended, and all of them validate")
