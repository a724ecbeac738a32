"""What a real server answers is what its own document promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support.apps import Reply
from tests.support.openapi import Contract

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SAID = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
TEXT = {"prompt": ["x", "y"], "max_tokens": 4}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**SAID, "logprobs": True, "top_logprobs": 3, "n": 2}),
    ("/v1/chat/completions", {**SAID, "prompt_logprobs": 2, "seed": 7}),
    ("/v1/chat/completions", {**SAID, "stream": True, "logprobs": True, "top_logprobs": 1}),
    ("/v1/chat/completions", {**SAID, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {**SAID, "response_format": {"type": "json_object"}}),
    ("/v1/completions", {**TEXT, "logprobs": 2, "echo": True}),
    ("/v1/completions", {**TEXT, "prompt_logprobs": 0}),
    ("/v1/completions", {**TEXT, "stream": True, "logprobs": 0, "n": 2}),
    ("/v1/completions", {"prompt": [1, 2], "max_tokens": 1, "min_tokens": 1}),
    ("/v1/embeddings", {"input": ["x", "y"]}),
    ("/v1/embeddings", {"input": "x", "encoding_format": "base64"}),
    ("/v1/messages", SAID),
    ("/v1/messages", {**SAID, "stream": True}),
    ("/v1/messages", {**SAID, "stop_sequences": [chr(c) for c in range(33, 97)]}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 4}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 4, "stream": True}),
]
REFUSED: list[dict[str, Any]] = [
    {"n": 0},
    {"max_tokens": 0},
    {"temperature": "x"},
    {"timeout_s": 0},
    {"metadata": []},
    {"nobody_knows": None},
]


def call(server: ServerProcess, path: str, body: Any = None) -> Reply:
    answer = server.call(path, body)
    return Reply(answer.status, httpx.Headers(answer.headers), answer.body.decode())


@pytest.fixture(scope="module")
def contract(hash_server: ServerProcess) -> Contract:
    return Contract(call(hash_server, "/openapi.json").json())


@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_an_answer_of_a_server_fits_its_document(
    number: int, hash_server: ServerProcess, contract: Contract
) -> None:
    path, fields = REQUESTS[number]
    body = {"model": hash_server.model, **fields}
    assert contract.accepts("POST", path, body)
    reply = call(hash_server, path, body)
    contract.check("POST", path, reply)
    assert reply.status == 200


@pytest.mark.parametrize(
    "path", ["/v1/engine/plan", "/v1/engine/state", "/tenants", "/health", "/metrics"]
)
def test_what_a_server_says_of_itself_fits_its_document(
    path: str, hash_server: ServerProcess, contract: Contract
) -> None:
    reply = call(hash_server, path)
    contract.check("GET", path, reply)
    assert reply.status == 200


@pytest.mark.parametrize("path", sorted({path for path, _ in REQUESTS}))
def test_a_refusal_fits_the_document(
    path: str, hash_server: ServerProcess, contract: Contract
) -> None:
    fine = next(fields for name, fields in REQUESTS if name == path)
    for wrong in REFUSED:
        reply = call(hash_server, path, {"model": hash_server.model, **fine, **wrong})
        contract.check("POST", path, reply)
    contract.check("POST", path, call(hash_server, path, {"model": "another", **fine}))


def test_a_stored_response_and_its_input_fit_the_document(
    hash_server: ServerProcess, contract: Contract
) -> None:
    body = {"model": hash_server.model, "input": "x", "max_output_tokens": 2, "store": True}
    stored = f"/v1/responses/{call(hash_server, '/v1/responses', body).json()['id']}"
    for path in (stored, f"{stored}/input_items", f"{stored}/input_items?limit=0"):
        reply = call(hash_server, path)
        contract.check("GET", path.partition("?")[0], reply)
        assert reply.status == (400 if "limit=0" in path else 200)


def test_a_tenants_figures_fit_the_document(hash_server: ServerProcess, contract: Contract) -> None:
    for body, status in (({"cap_bytes": None}, 200), ({"cap_bytes": -1}, 400)):
        answer = hash_server.call("/tenants/t", body, method="PUT")
        reply = Reply(answer.status, httpx.Headers(answer.headers), answer.body.decode())
        contract.check("PUT", "/tenants/t", reply)
        assert reply.status == status
