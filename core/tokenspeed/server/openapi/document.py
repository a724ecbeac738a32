"""The OpenAPI document: every route, what it takes, what it answers, and every error.

Made from the table of routes, the schemas that check bodies, and the types of answers; nothing is
said twice. It is the document of one running server: it names the served model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from pydantic.json_schema import models_json_schema

from tokenspeed.sampling.params import ABOVE_ZERO, RANGES
from tokenspeed.server.conversation.terms import MAX_TENANT_CHARS, TENANT_HEADER
from tokenspeed.server.http.answers import ErrorBody, MessagesError
from tokenspeed.server.http.errors import ANTHROPIC, form_of
from tokenspeed.server.http.guard import OPEN_PATHS
from tokenspeed.server.http.schema import IS_BODY
from tokenspeed.server.openapi.statuses import headers_of, statuses_of
from tokenspeed.server.responses.input_items import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.server.route_list import Route

_REF = "#/components/schemas/{name}"
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"key": []}]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_TENANT = {
    "name": TENANT_HEADER,
    "in": "header",
    "description": "whose share of the engine is used, where the API key does not say it",
    "schema": {"type": "string", "maxLength": MAX_TENANT_CHARS, "pattern": "^[ -~]*$"},
}


def document(
    routes: Sequence[Route], *, model: str, version: str, needs_key: bool
) -> dict[str, Any]:
    """Return the document.

    Args:
        model: the served name.
        needs_key: requests need an API key.
    """
    types, schemas = _components(routes)
    paths: dict[str, Any] = {}
    for route in routes:
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.method.lower()] = _operation(
            route, types, needs_key=needs_key and route.path not in OPEN_PATHS
        )
    return {
        "openapi": "3.2.0",
        "info": {"title": "TokenSpeed", "version": version},
        "paths": paths,
        "components": {
            "schemas": _of_server(schemas, model),
            "parameters": {
                "Tenant": _TENANT,
                **_path_parameters(model),
                **{name: {"in": "query", **item} for name, item in (_PAGE | _RELEASE).items()},
            },
            "securitySchemes": _SCHEMES,
        },
    }


def _components(routes: Sequence[Route]) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Return type -> its schema or reference, and the schemas that are referred to."""
    answers = [kind for route in routes for kind in (route.answer, *route.events) if kind]
    answers += [ErrorBody, MessagesError]
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    shown, answered = msgspec.json.schema_components(answers, ref_template=_REF)
    references, sent = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF.format(name="{model}")
    )
    asked = sent["$defs"]
    both = asked.keys() & answered.keys()
    assert not both, f"a body and an answer have the name {sorted(both)}"
    types: dict[Any, Any] = dict(zip(answers, shown, strict=True))
    types |= {body: reference for (body, _), reference in references.items()}
    return types, {**asked, **{name: _plain(item) for name, item in answered.items()}}


def _plain(schema: Any) -> Any:
    """Return a schema in which tuples of equal items are lists: not every reader knows tuples."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    done = {name: _plain(value) for name, value in schema.items()}
    first = done.get("prefixItems")
    if isinstance(first, list) and all(item == first[0] for item in first):
        del done["prefixItems"]
        done["items"] = first[0]
    return done


def _operation(route: Route, types: dict[Any, Any], *, needs_key: bool) -> dict[str, Any]:
    error = types[MessagesError if form_of(route.path) is ANTHROPIC else ErrorBody]
    errors = statuses_of(route, needs_key=needs_key)
    answer = {"description": "the answer", "content": _content(route, types), **_links(route)}
    operation: dict[str, Any] = {
        "operationId": route.handler.replace(".", "_"),
        "responses": {
            **{str(status): answer for status in (200, *route.also)},
            **{str(status): _error(status, errors[status], error) for status in errors},
        },
    }
    parameters = [_reference(name) for name, taken in _TAKERS.items() if taken(route)]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": types[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if needs_key:
        operation["security"] = _SECURITY
    return operation


def _links(route: Route) -> dict[str, Any]:
    """Say where what a request has made can be found again."""
    if route.handler != "responses.create":
        return {}
    of_it = {"response_id": "$response.body#/id"}
    return {
        "links": {
            name: {"operationId": f"responses_{name}", "parameters": of_it}
            for name in ("read", "input_items", "delete")
        }
    }


def _error(status: int, meaning: str, schema: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"description": meaning, "content": content, **headers_of(status)}


def _content(route: Route, types: dict[Any, Any]) -> dict[str, Any]:
    if route.answer is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    content = {"application/json": {"schema": types[route.answer]}}
    if route.events:
        content["text/event-stream"] = {
            "itemSchema": _event([types[kind] for kind in route.events])
        }
    return content


def _event(schemas: list[Any]) -> dict[str, Any]:
    """Return the schema of one server-sent event, whose data is JSON or the closing mark."""
    data = {"contentMediaType": "application/json", "contentSchema": {"anyOf": schemas}}
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, data]},
        },
        "required": ["data"],
    }


_PAGE = {
    "Limit": {"name": "limit", "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}},
    "Order": {"name": "order", "schema": {"enum": ["asc", "desc"]}},
    "After": {"name": "after", "schema": {"type": "string"}},
}
"""Query of a list."""
_RELEASE = {
    "Group": {"name": "group", "schema": {"enum": ["true", "false"]}},
    "Abort": {"name": "abort", "schema": {"enum": ["true", "false"]}},
}
"""Query of the end of a session."""
_TAKERS: Mapping[str, Callable[[Route], bool]] = {
    "Tenant": lambda route: 429 in route.errors or "{response_id}" in route.path,
    "ResponseId": lambda route: "{response_id}" in route.path,
    "ModelName": lambda route: route.path == "/v1/models/{name:path}",
    "TenantName": lambda route: route.path == "/tenants/{name:path}",
    "SessionName": lambda route: route.path.startswith("/v1/sessions/"),
    **{name: lambda route: route.handler == "responses.input_items" for name in _PAGE},
    **{name: lambda route: route.handler == "sessions.release" for name in _RELEASE},
}


def _reference(parameter: str) -> dict[str, str]:
    return {"$ref": f"#/components/parameters/{parameter}"}


def _path_parameters(model: str) -> dict[str, Any]:
    stored = {"type": "string", "pattern": "^resp_[0-9a-f]{24}$"}
    served = {"type": "string", "enum": [model]}
    return {
        name: {"name": place, "in": "path", "required": True, "schema": schema}
        for name, place, schema in (
            ("ResponseId", "response_id", stored),
            ("ModelName", "name", served),
            ("TenantName", "name", {"type": "string", "minLength": 1}),
            ("SessionName", "name", {"type": "string", "minLength": 1}),
        )
    }


def _of_server(schemas: dict[str, Any], model: str) -> dict[str, Any]:
    """Say which model the bodies have to name, and the ranges of their numbers."""
    for schema in schemas.values():
        if IS_BODY not in schema:
            continue
        del schema[IS_BODY]
        fields = schema["properties"]
        if "model" in fields:
            is_needed = "model" in schema.get("required", ())
            fields["model"] = {"enum": [model] if is_needed else [model, None]}
        for name in RANGES.keys() & fields.keys():
            low, high = RANGES[name]
            least = "exclusiveMinimum" if name in ABOVE_ZERO else "minimum"
            _bound(fields[name], {least: low, "maximum": high})
    return schemas


def _bound(schema: dict[str, Any], limits: dict[str, float]) -> None:
    for branch in schema.get("anyOf", ()):
        _bound(branch, limits)
    if schema.get("type") in ("number", "integer"):
        schema |= limits
