"""The public cases of JSON Schema (`make judges`): what a schema forbids is in no language."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from tests.support.grammars import byte_vocabulary, holds, random_text
from tests.support.json_schema_cases import CASES, Case, cases

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.grammar.xgrammar_engine import XGrammarEngine

if TYPE_CHECKING:
    from tokenspeed.contracts.grammar import CompiledGrammar

pytest.importorskip("xgrammar")
jsonschema = pytest.importorskip("jsonschema")
MIN_KEPT, WALKS = 200, 4

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="make judges")


@pytest.fixture(scope="module")
def kept() -> list[tuple[Case, bool, CompiledGrammar]]:
    """The cases whose schema is kept, as it is and closed."""
    engine = XGrammarEngine(byte_vocabulary())
    found: list[tuple[Case, bool, CompiledGrammar]] = []
    refusals: list[RequestError] = []
    for case in cases():
        for closed in (False, True):
            try:
                spec = GrammarSpec("json_schema", case.text, closed=closed)
                found.append((case, closed, engine.compile(spec)))
            except RequestError as error:
                refusals.append(error)
    assert all(str(error).startswith("at #") for error in refusals)
    assert all((error.param or "").startswith("grammar") for error in refusals)
    return found


def test_most_schemas_are_kept(kept: list[tuple[Case, bool, CompiledGrammar]]) -> None:
    assert sum(not closed for _, closed, _ in kept) >= MIN_KEPT


def test_no_forbidden_value_is_in_a_language(
    kept: list[tuple[Case, bool, CompiledGrammar]],
) -> None:
    for case, closed, grammar in kept:
        for test in case.tests:
            for ascii_only in (False, True):
                text = json.dumps(test["data"], ensure_ascii=ascii_only)
                if not test["valid"]:
                    assert not holds(grammar, text), (case.name, closed, test["description"])


def test_random_texts_of_the_languages_validate(
    kept: list[tuple[Case, bool, CompiledGrammar]],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    num_texts = 0
    for case, closed, grammar in kept:
        rng = random.Random(f"{seed} {case.name} {closed}")
        validator = jsonschema.Draft202012Validator(case.schema)
        for _ in range(WALKS):
            text = random_text(grammar, rng, hides_escapes=False)
            if text is not None:
                num_texts += 1
                errors = list(validator.iter_errors(json.loads(text)))
                assert not errors, (seed, case.name, closed, text, errors[0].message)
    assert num_texts >= len(kept)
