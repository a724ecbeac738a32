"""What is generated from a prepared schema belongs to it; the rest is refused by its path."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.support.grammars import byte_vocabulary, random_text
from tests.support.json_schemas import REFUSED, SCHEMAS

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.grammar.xgrammar_engine import XGrammarEngine

pytest.importorskip("xgrammar")
jsonschema = pytest.importorskip("jsonschema")
WALKS = 12


@pytest.fixture(scope="module")
def engine() -> XGrammarEngine:
    return XGrammarEngine(byte_vocabulary())


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
def test_random_texts_of_a_schema_validate(name: str, closed: bool, engine: XGrammarEngine) -> None:
    schema: Any = SCHEMAS[name]
    grammar = engine.compile(GrammarSpec("json_schema", json.dumps(schema), closed=closed))
    rng = random.Random(f"{name} {closed}")
    validator = jsonschema.Draft202012Validator(schema)
    texts = [random_text(grammar, rng) for _ in range(WALKS)]
    assert any(text is not None for text in texts)
    for text in texts:
        if text is not None:
            assert not list(validator.iter_errors(json.loads(text))), text


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_kept_is_refused_with_its_path(name: str, engine: XGrammarEngine) -> None:
    schema, param = REFUSED[name]
    with pytest.raises(RequestError) as caught:
        engine.compile(GrammarSpec("json_schema", json.dumps(schema)))
    assert caught.value.param == param
    place = param.removeprefix("grammar").replace(".", "/")
    assert str(caught.value).startswith(f"at #{place}: ")


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("regex", "(a", "parenthesis is not closed"),
        ("ebnf", "root ::= nobody", "is not defined"),
        ("ebnf", 'root ::= root "a"', "no text belongs to it"),
        ("ebnf", 'root ::= "a" root', "would have to go on without end"),
        ("ebnf", 'root ::= "a" b\nb ::= ("c" | "d") root{1,3}', "would have to go on without end"),
        ("choice", "[]", "a choice is a list"),
        ("json_schema", "{", "is no JSON"),
        ("structural_tag", '{"type": "structural_tag", "format": {"type": "x"}}', "cannot be used"),
    ],
)
def test_malformed_and_impossible_languages_are_refused(
    kind: Any, text: str, said: str, engine: XGrammarEngine
) -> None:
    with pytest.raises(RequestError, match=said):
        engine.compile(GrammarSpec(kind, text))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" root | "b"',
        'root ::= "(" root* ")"',
        'root ::= "a" root?',
        'root ::= "a" (b | c)\nb ::= "b" b\nc ::= [^(|] "]"',
        'root ::= "a" b{0,2}\nb ::= "b" b',
        'root ::= ""',
    ],
)
def test_a_grammar_with_an_end_is_kept(text: str, engine: XGrammarEngine) -> None:
    assert engine.compile(GrammarSpec("ebnf", text)).num_bytes > 0
