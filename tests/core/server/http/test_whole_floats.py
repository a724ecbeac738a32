"""An integer written as a float is an integer in all APIs; a fraction is refused by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App

from tokenspeed.errors import RequestError
from tokenspeed.server.anthropic.schemas import MessagesRequest
from tokenspeed.server.http.field_limits import FieldLimits
from tokenspeed.server.http.schema import Body, read_request
from tokenspeed.server.openai.embeddings import EmbeddingsRequest
from tokenspeed.server.openai.schemas import ChatRequest, CompletionRequest
from tokenspeed.server.responses.schemas import ResponsesRequest
from tokenspeed.server.tenant_routes import TenantBody

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = FieldLimits(max_prompt_tokens=100, max_context_tokens=101)
SAID = [{"role": "user", "content": "go"}]
CHAT: dict[str, Any] = {"model": "m", "messages": SAID}
NEEDED: dict[type[Body], dict[str, Any]] = {
    ChatRequest: CHAT,
    CompletionRequest: {"model": "m", "prompt": "go"},
    EmbeddingsRequest: {"model": "m", "input": "go"},
    ResponsesRequest: {"model": "m", "input": "go"},
    MessagesRequest: {**CHAT, "max_tokens": 1},
    TenantBody: {},
}
FIELDS = {
    ChatRequest: (
        "n", "max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "priority",
        "prompt_logprobs", "top_logprobs", "thinking_budget", "thinking_token_budget",
    ),
    CompletionRequest: ("n", "max_tokens", "logprobs", "seed"),
    EmbeddingsRequest: ("dimensions",),
    ResponsesRequest: ("max_output_tokens", "thinking_budget", "priority"),
    MessagesRequest: ("max_tokens", "top_k", "priority"),
    TenantBody: ("floor_bytes", "cap_bytes"),
}  # fmt: skip
CASES = [(schema, name) for schema, names in FIELDS.items() for name in names]


def is_integer(annotation: Any) -> bool:
    return "int" in str(annotation)


@pytest.mark.parametrize("schema", FIELDS)
def test_no_integer_of_a_body_is_left_out_here(schema: type[Body]) -> None:
    shared = set(FIELDS[ChatRequest])  # tried once for all of their APIs
    lists = {"stop_token_ids"}
    found = {name for name, field in schema.model_fields.items() if is_integer(field.annotation)}
    assert found - lists - shared <= set(FIELDS[schema])
    assert set(FIELDS[schema]) <= found


@pytest.mark.parametrize(("schema", "name"), CASES)
def test_a_whole_float_is_the_integer(schema: type[Body], name: str) -> None:
    body = read_request(schema, {**NEEDED[schema], name: 16.0}, LIMITS)
    value = getattr(body, name)
    assert (type(value), value) == (int, 16)


@pytest.mark.parametrize(("schema", "name"), CASES)
@pytest.mark.parametrize("value", [16.5, "16", True, float("inf")])
def test_what_is_no_integer_is_refused_by_name(schema: type[Body], name: str, value: Any) -> None:
    with pytest.raises(RequestError, match="valid integer; change it") as caught:
        read_request(schema, {**NEEDED[schema], name: value}, LIMITS)
    assert caught.value.param == name


def test_bounds_hold_however_a_number_is_written() -> None:
    for value in (129, 129.0, 1e300):
        with pytest.raises(RequestError, match="less than or equal to 128"):
            read_request(ChatRequest, {**CHAT, "n": value}, LIMITS)


def test_nested_integers_lists_and_neutral_values_too() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048.0}
    body = read_request(MessagesRequest, {**CHAT, "max_tokens": 9, "thinking": thinking}, LIMITS)
    assert body.asked_thinking.budget == 2048
    chat = read_request(ChatRequest, {**CHAT, "stop_token_ids": [5.0, 7], "best_of": 1.0}, LIMITS)
    assert chat.stop_token_ids == [5, 7]
    with pytest.raises(RequestError, match=r"best_of .* got 2.0, allowed is null, 1"):
        read_request(ChatRequest, {**CHAT, "best_of": 2.0}, LIMITS)


@pytest.mark.parametrize(
    ("path", "field", "said"),
    [
        ("/v1/chat/completions", "max_tokens", {"messages": SAID}),
        ("/v1/completions", "max_tokens", {"prompt": "go"}),
        ("/v1/responses", "max_output_tokens", {"input": "go", "store": False}),
        ("/v1/messages", "max_tokens", {"messages": SAID}),
    ],
)
def test_every_api_cuts_its_answer_there(
    tmp_path: Path, path: str, field: str, said: dict[str, Any]
) -> None:
    app = App(tmp_path)
    reply = app.call(path, {"model": "m", **said, field: 3.0})
    assert reply.status == 200, reply.text
    assert [one.params.max_tokens for one in app.engine.submits] == [3]
    refused = app.call(path, {"model": "m", **said, field: 3.5})
    error = refused.json()["error"]
    assert refused.status == 400
    assert f"{field} is 3.5: input should be a valid integer; change it" in error["message"]
