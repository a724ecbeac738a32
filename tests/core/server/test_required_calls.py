"""Calls that must be made: languages of real parsers, over the real engine.

The model's tokens are a hash of its prefix, so that nothing but the masks makes a call of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.dialogue import HERMES_TEMPLATE
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

pytest.importorskip("xgrammar")

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"enum": ["fast", "slow"]},
    },
    "required": ["count", "mode"],
    "additionalProperties": False,
}
ROUTES = {
    "chat": ("/v1/chat/completions", "messages", "max_tokens"),
    "responses": ("/v1/responses", "input", "max_output_tokens"),
    "messages": ("/v1/messages", "messages", "max_tokens"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("required")
    model = write_scripted_model(folder / "hashed")
    texts = {"eos_token": "<|im_end|>", "chat_template": HERMES_TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(texts), encoding="utf-8")
    with ServerProcess(model, folder, "--tool-parser", "hermes") as running:
        yield running


def tools_of(api: str) -> list[dict[str, Any]]:
    names = ("walk", "run")
    if api == "messages":
        return [{"name": name, "input_schema": SCHEMA, "strict": True} for name in names]
    functions = [{"name": name, "parameters": SCHEMA, "strict": True} for name in names]
    if api == "responses":
        return [{"type": "function", **function} for function in functions]
    return [{"type": "function", "function": function} for function in functions]


def calls_of(api: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    if api == "messages":
        blocks = [block for block in body["content"] if block["type"] == "tool_use"]
        return [(block["name"], block["input"]) for block in blocks]
    if api == "responses":
        items = [item for item in body["output"] if item["type"] == "function_call"]
        return [(item["name"], json.loads(item["arguments"])) for item in items]
    calls = body["choices"][0]["message"]["tool_calls"]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


CHOICES = {
    "chat": ("required", {"type": "function", "function": {"name": "run"}}),
    "responses": ("required", {"type": "function", "name": "run"}),
    "messages": ({"type": "any"}, {"type": "tool", "name": "run"}),
}


@pytest.mark.parametrize("api", ROUTES)
@pytest.mark.parametrize("is_named", [False, True], ids=["any", "named"])
def test_a_call_that_must_be_made_is_made(server: ServerProcess, api: str, is_named: bool) -> None:
    path, said, limit = ROUTES[api]
    body = {
        "model": "hashed",
        said: [{"role": "user", "content": f"go {api} {is_named}"}],
        limit: 400,
        "temperature": 0,
        "tools": tools_of(api),
        "tool_choice": CHOICES[api][is_named],
    }
    answer = server.call(path, body)
    assert answer.status == 200, answer.body
    calls = calls_of(api, answer.json())
    assert calls
    for name, arguments in calls:
        assert name == "run" if is_named else name in ("walk", "run")
        assert arguments["count"] in range(1, 10)
        assert arguments["mode"] in ("fast", "slow")
