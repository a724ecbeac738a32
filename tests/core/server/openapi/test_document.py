"""The document names every route, and every answer is one that it promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from tests.support.apps import App, answer
from tests.support.bodies import BODIES
from tests.support.openapi import Contract

from tokenspeed.errors import CapacityError, EngineError, EngineGoneError, TimeLimitError
from tokenspeed.server.http.api_keys import ApiKeys
from tokenspeed.server.http.guard import OPEN_PATHS
from tokenspeed.server.responses.store import ResponseStore
from tokenspeed.server.route_list import ROUTES

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = {
    "text": answer(text="b"),
    "thought": answer(think="a", text="b"),
    "called": answer(think="a", text="b", calls=[("f", "{}"), ("f", '{"x": "y"}')]),
    "bad call": "!",
}
GENERATED = [path for path in BODIES if "tok" not in path]
EXTRAS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"logprobs": True, "top_logprobs": 2, "n": 2},
        {"prompt_logprobs": 1},
        {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True},
        {"max_completion_tokens": 1, "max_tokens": None},
    ],
    "/v1/completions": [{"echo": True}, {"stream": True}, {"prompt_logprobs": 2, "n": 1}],
    "/v1/messages": [{"stream": True, "thinking": {"type": "enabled"}}, {"max_tokens": 1}],
    "/v1/responses": [{"stream": True}, {"max_output_tokens": 1}, {"store": True}],
}
ERRORS = [
    CapacityError("full", retry_after_s=3),
    EngineError("broken"),
    EngineGoneError("gone"),
    TimeLimitError("late"),
    ValueError("a foreign one"),
]


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path, responses=ResponseStore(tmp_path / "responses", max_bytes=1 << 16))


@pytest.fixture
def contract(app: App) -> Contract:
    reply = app.call("/openapi.json")
    assert reply.status == 200
    return Contract(reply.json())


def test_the_document_names_every_route_once(contract: Contract) -> None:
    shown = {
        (method.upper(), path)
        for path, operations in contract.document["paths"].items()
        for method in operations
    }
    assert shown == {(route.method, route.path.replace(":path}", "}")) for route in ROUTES}


def test_its_schemas_are_schemas_and_every_reference_leads_somewhere(contract: Contract) -> None:
    schemas = contract.document["components"]["schemas"]
    jsonschema.Draft202012Validator.check_schema({"$defs": schemas})
    referred = set(references(contract.document))
    assert referred
    for reference in referred:
        place: Any = contract.document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for item in value.values() for found in references(item)]


@pytest.mark.parametrize("path", BODIES)
def test_bodies_that_are_fine_are_fine_by_the_document(path: str, contract: Contract) -> None:
    body = {"model": "m", **BODIES[path]}
    assert contract.accepts("POST", path, body)
    assert not contract.accepts("POST", path, body | {"nobody_knows": 1})
    assert not contract.accepts("POST", path, body | {"model": "another"})


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("path", GENERATED)
def test_answers_fit_the_document(path: str, script: str, app: App, contract: Contract) -> None:
    app.engine.script = SCRIPTS[script]
    statuses = set()
    for extra in ({}, *EXTRAS[path]):
        reply = app.call(path, {"model": "m", **BODIES[path], **extra})
        contract.check("POST", path, reply)
        statuses.add(reply.status)
    is_refused = script == "bad call" and path != "/v1/completions"
    assert (422 if is_refused else 200) in statuses


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("path", GENERATED)
def test_errors_of_the_engine_fit_the_document(
    path: str, error: Any, app: App, contract: Contract
) -> None:
    app.engine.error = error
    for fails_after in (0, 1):
        app.engine.fails_after = fails_after
        for stream in ({}, {"stream": True}):
            reply = app.call(path, {"model": "m", **BODIES[path], **stream})
            contract.check("POST", path, reply)


def test_answers_without_an_engine_fit_the_document(app: App, contract: Contract) -> None:
    stored = app.call("/v1/responses", {"model": "m", "input": "x", "store": True}).json()["id"]
    gets = ("/v1/models", "/v1/models/m", "/v1/models/n", "/health", "/metrics", "/openapi.json")
    for path in (*gets, f"/v1/responses/{stored}", "/v1/responses/no"):
        contract.check("GET", path, app.call(path))
    for path in (f"/v1/responses/{stored}", "/v1/responses/no"):
        contract.check("DELETE", path, app.call(path, method="DELETE"))
    for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
        for body in (BODIES[path], {}):
            contract.check("POST", path, app.call(path, {"model": "m", **body}))
    app.engine.is_alive = False
    app.engine.unhealthy_reason = "it was told so"
    assert app.call("/health").status == 503
    contract.check("GET", "/health", app.call("/health"))


def test_a_server_with_keys_says_so_in_its_document(tmp_path: Path) -> None:
    app = App(tmp_path, keys=ApiKeys({"secret": ""}))
    assert app.call("/openapi.json").status == 401
    contract = Contract(app.call("/openapi.json", authorization="Bearer secret").json())
    for route in ROUTES:
        path = route.path.replace(":path}", "}")
        operation = contract.document["paths"][path][route.method.lower()]
        is_open = path in OPEN_PATHS
        assert ("security" in operation) is not is_open
        if not is_open:
            contract.check(route.method, path, app.call(path, method=route.method))
