"""A real model with real sampling: every answer that ended validates against its schema."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.grammars import byte_vocabulary
from tests.support.json_schema_cases import CASES, cases
from tests.support.json_schemas import SCHEMAS

from tokenspeed import LLM, SamplingParams
from tokenspeed.checkpoint.default_model import default_model_path
from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.grammar.xgrammar_engine import XGrammarEngine

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


def check_answers(llm: LLM, asked: list[tuple[str, Any, bool]], temperature: float) -> None:
    """Sample an answer in each schema's language; those that ended must validate."""
    params = [
        SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=160,
            grammar=GrammarSpec("json_schema", json.dumps(schema), closed=closed),
        )
        for seed, (_, schema, closed) in enumerate(asked)
    ]
    prompts = [f"An example of {json.dumps(schema)}: " for _, schema, _ in asked]
    num_ended = 0
    for (name, schema, closed), output in zip(asked, llm.generate(prompts, params), strict=True):
        assert output.finish_reason in ("stop", "length"), (name, output)
        if output.finish_reason == "stop":
            num_ended += 1
            value = json.loads(output.text)
            errors = list(jsonschema.Draft202012Validator(schema).iter_errors(value))
            assert not errors, (name, closed, output.text, errors)
    assert num_ended > len(asked) // 2
    print(f"{num_ended} of {len(asked)} answers ended, and all of them validate")


def test_every_answer_validates(llm: LLM) -> None:
    # Closed and open by turns: every schema as both is in the tests without a model.
    asked = [(name, schema, i % 2 == 0) for i, (name, schema) in enumerate(SCHEMAS.items())]
    check_answers(llm, asked, temperature=0.9)


@pytest.mark.skipif(not CASES.is_dir(), reason="make judges")
def test_every_answer_to_the_public_cases_validates(llm: LLM) -> None:
    engine = XGrammarEngine(byte_vocabulary())
    asked: list[tuple[str, Any, bool]] = []
    for number, case in enumerate(cases()):
        closed = number % 2 == 0
        with contextlib.suppress(RequestError):  # refused by its path, as test_public_cases says
            engine.compile(GrammarSpec("json_schema", case.text, closed=closed))
            asked.append((case.name, case.schema, closed))
    assert len(asked) > 180
    check_answers(llm, asked, temperature=1.0)
