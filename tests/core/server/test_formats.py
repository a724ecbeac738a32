"""Formats of answers in all three APIs: one language, the vendor's own helpers, errors by place."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import openai
import pydantic
import pytest
from tests.support.apps import App
from tests.support.clients import CLIENTS

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.server.structured import output_format, text_format

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
USER = [{"role": "user", "content": "x"}]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PLACES = {
    "chat": "response_format.json_schema.schema",
    "responses": "text.format.schema",
    "messages": "output_config.format.schema",
}


def body(api: str, schema: Any, *, model: str = "m", **fields: Any) -> dict[str, Any]:
    """Return a request for JSON of a schema, as an API spells it."""
    named = {"name": "n", "schema": schema, "strict": True}
    asked: dict[str, Any] = {
        "chat": {
            "messages": USER,
            "response_format": {"type": "json_schema", "json_schema": named},
        },
        "responses": {"input": "x", "text": {"format": {"type": "json_schema", **named}}},
        "messages": {
            "messages": USER,
            "max_tokens": 100,
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        },
    }[api]
    return {"model": model, "temperature": 1.0, **asked, **fields}


def text_of(api: str, answer: Any) -> str:
    """Return the text of an answer."""
    if api == "chat":
        return str(answer["choices"][0]["message"]["content"])
    if api == "responses":
        return str(answer["output"][-1]["content"][0]["text"])
    return str(answer["content"][-1]["text"])


@pytest.mark.parametrize("api", PATHS)
def test_one_schema_is_one_language_whichever_api_asks(api: str, tmp_path: Path) -> None:
    app = App(tmp_path)
    assert app.call(PATHS[api], body(api, SCHEMA)).status == 200
    wanted = GrammarSpec("json_schema", json.dumps(SCHEMA), closed=True, field=PLACES[api])
    assert app.engine.submits[-1].params.grammar == wanted


def test_the_forms_of_responses_are_told_apart() -> None:
    place = "text.format"
    assert text_format({"type": "text"}) is None
    assert text_format({"type": "json_object"}) == GrammarSpec("json_object", field=place)
    loose = text_format({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False})
    assert loose == GrammarSpec("json_schema", json.dumps(SCHEMA), field=f"{place}.schema")
    for wrong, param in (
        ("json", place),
        ({"type": "xml"}, f"{place}.type"),
        ({"type": "json_schema"}, f"{place}.schema"),
        ({"type": "json_schema", "schema": []}, f"{place}.schema"),
    ):
        with pytest.raises(RequestError) as caught:
            text_format(wrong)
        assert caught.value.param == param
    with pytest.raises(RequestError, match=r"output_format is .*json_schema"):
        output_format({"type": "json_object"}, "output_format")


def test_a_response_says_in_which_form_it_came(tmp_path: Path) -> None:
    app = App(tmp_path)
    asked = body("responses", SCHEMA)
    assert app.call(PATHS["responses"], asked).json()["text"] == asked["text"]
    plain = app.call(PATHS["responses"], {"model": "m", "input": "x"}).json()
    assert plain["text"] == {"format": {"type": "text"}}


def test_the_first_name_of_the_messages_format_is_heard_too(tmp_path: Path) -> None:
    app = App(tmp_path)
    form = {"type": "json_schema", "schema": SCHEMA}
    asked = {"model": "m", "max_tokens": 9, "messages": USER, "output_format": form}
    assert app.call(PATHS["messages"], asked, anthropic_beta="structured-outputs").status == 200
    spec = app.engine.submits[-1].params.grammar
    assert spec is not None
    assert spec.field == "output_format.schema"
    refused = app.call(PATHS["messages"], {**body("messages", SCHEMA), "output_format": form})
    assert refused.status == 400
    assert "each ask for a language" in refused.json()["error"]["message"]
    counted = {"model": "m", "messages": USER, "output_config": {"format": form}}
    assert app.call("/v1/messages/count_tokens", counted).json()["input_tokens"] > 0


@pytest.mark.parametrize("api", PATHS)
def test_answers_of_a_server_are_in_their_form(api: str, hash_server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    answer = hash_server.call(PATHS[api], body(api, SCHEMA, model="hashed"))
    assert answer.status == 200, answer.body
    assert json.loads(text_of(api, answer.json())) in ({"a": 1}, {"a": 2})


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("streams", [False, True])
def test_a_schema_that_cannot_be_kept_is_a_400_with_its_path(
    api: str, hash_server: ServerProcess, *, streams: bool
) -> None:
    pytest.importorskip("xgrammar")
    for schema, place in (
        ({"type": "object", "properties": {"a": {"type": "nonsense"}}}, "/properties/a/type"),
        ({"type": "integer", "minimum": 3, "maximum": 1}, ""),
    ):
        answer = hash_server.call(PATHS[api], body(api, schema, model="hashed", stream=streams))
        assert answer.status == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert f"{PLACES[api]}: at #{place}" in error["message"]
        if api != "messages":
            assert error["param"] == PLACES[api] + place.replace("/", ".")


class Choice(pydantic.BaseModel):
    """What is asked for."""

    a: Literal[1, 2]


def test_the_openai_client_parses_what_it_asked_for(hash_server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    with openai.OpenAI(base_url=f"{hash_server.url}/v1", api_key="-", max_retries=0) as client:
        whole = client.responses.parse(model="hashed", input="x", text_format=Choice)
        assert whole.output_parsed is not None
        assert whole.output_parsed.a in (1, 2)
        with client.responses.stream(model="hashed", input="y", text_format=Choice) as stream:
            streamed = stream.get_final_response().output_parsed
        assert streamed is not None
        assert streamed.a in (1, 2)
        chat: Any = client.chat.completions
        said = chat.parse(model="hashed", messages=USER, response_format=Choice)
        assert said.choices[0].message.parsed.a in (1, 2)


def test_the_anthropic_client_parses_what_it_asked_for(hash_server: ServerProcess) -> None:
    pytest.importorskip("xgrammar")
    python = CLIENTS / "small/bin/python"
    if not python.exists():
        pytest.skip(f"{python} is missing: make clients-small")
    script = Path(__file__).parents[2] / "clients/sdk_parse.py"
    done = subprocess.run(
        [str(python), str(script), hash_server.url, "hashed"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 3
    assert set(done.stdout.split()) <= {"1", "2"}
