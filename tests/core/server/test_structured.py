"""Languages of answers through the API: every way to ask, beside thinking and tools, refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.contracts.conversation import Conversation, Tool, ToolChoice
from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.server.structured import grammar_of, language_of

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
CALLS = '{"type": "structural_tag", "format": {"type": "const_string", "value": "f()"}}'


class Caller:
    """A parser whose calls have a language, or none."""

    def __init__(self, text: str = CALLS) -> None:
        self.asked: list[str] = []
        self._text = text

    def structure(self, tools: tuple[Tool, ...], choice: ToolChoice) -> GrammarSpec | None:
        """Return the language of calls."""
        self.asked.append(choice.mode)
        return GrammarSpec("structural_tag", self._text) if self._text else None


def conversation(mode: Any = "auto", *, strict: bool = False) -> Conversation:
    return Conversation((), (Tool("f", strict=strict),), ToolChoice(mode))


def test_each_field_asks_for_its_language() -> None:
    schema = {"name": "n", "schema": SCHEMA, "strict": True}
    text = json.dumps(SCHEMA)
    place = "response_format.json_schema.schema"
    cases: list[tuple[dict[str, Any], GrammarSpec | None]] = [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            GrammarSpec("json_object", field="response_format"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": schema}},
            GrammarSpec("json_schema", text, closed=True, field=place),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**schema, "strict": None}}},
            GrammarSpec("json_schema", text, field=place),
        ),
        ({"guided_json": SCHEMA}, GrammarSpec("json_schema", text, (), True, "guided_json")),
        ({"guided_json": text}, GrammarSpec("json_schema", text, (), True, "guided_json")),
        ({"guided_regex": "a+"}, GrammarSpec("regex", "a+", field="guided_regex")),
        ({"guided_choice": ["x"]}, GrammarSpec("choice", '["x"]', field="guided_choice")),
        (
            {"structured_outputs": {"grammar": "root ::= [0-9]", "json": None}},
            GrammarSpec("ebnf", "root ::= [0-9]", field="structured_outputs.grammar"),
        ),
    ]
    for fields, wanted in cases:
        assert grammar_of(fields) == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"structured_outputs": {"lark": "x"}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ],
)
def test_a_field_that_is_not_as_needed_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        grammar_of(fields)
    assert caught.value.param == param


def test_tools_are_called_by_the_language_of_the_parser() -> None:
    asked = GrammarSpec("json_schema", json.dumps(SCHEMA), field="response_format")
    parser = Caller()
    assert language_of(asked, conversation("none"), parser) == (asked, False)
    assert language_of(None, conversation(), parser) == (None, False)
    strict, of_calls = language_of(None, conversation(strict=True), parser)
    assert strict is not None
    assert (strict.text, strict.field, of_calls) == (CALLS, "tools", True)
    must, _ = language_of(asked, conversation("required"), parser)
    assert must is not None
    assert must.text == CALLS
    either, _ = language_of(asked, conversation(), parser)
    assert either is not None
    forms = json.loads(either.text)["format"]["elements"]
    assert forms == [json.loads(CALLS)["format"], {"type": "json_schema", "json_schema": SCHEMA}]
    assert parser.asked == ["auto", "required", "required"]


def test_a_call_that_cannot_be_made_certain_is_refused() -> None:
    for parser in (None, Caller("")):
        with pytest.raises(RequestError, match="tool_choice asks for a call") as caught:
            language_of(None, conversation("named"), parser)
        assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_answers_of_a_server_are_in_their_language(path: str, hash_server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    head: dict[str, Any] = {"model": "hashed", "seed": 1, "temperature": 1.0, "max_tokens": 40}
    if path.endswith("chat/completions"):
        head["messages"] = [{"role": "user", "content": "x"}]
    else:
        head["prompt"] = "x"
    strict = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}
    for fields, allowed in (
        ({"response_format": strict}, {'{"a":1}', '{"a":2}'}),
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "(ab|cd)"}}, {"ab", "cd"}),
    ):
        answer = hash_server.call(path, {**head, **fields})
        assert answer.status == 200, answer.body
        choice = answer.json()["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        assert choice["finish_reason"] == "stop"
        assert "".join(text.split()) in allowed


def test_a_schema_that_cannot_be_kept_is_a_400_with_its_path(hash_server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    for schema, place in (
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, ".properties.a.type"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, ""),
        ({"not": {}}, ".not"),
    ):
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        for stream in (False, True):
            body = {"model": "hashed", "prompt": "x", "response_format": wanted, "stream": stream}
            answer = hash_server.call("/v1/completions", body)
            assert answer.status == 400
            error = answer.json()["error"]
            assert error["param"] == "response_format.json_schema.schema" + place
            assert "at #" + place.replace(".", "/") in error["message"]
