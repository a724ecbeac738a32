"""The HTTP application: its routes, each a method of one of the APIs' rooms.

Runs in an API process: no torch, no scheduler; the engine is reached through a Frontend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.server.anthropic.routes import AnthropicRoutes
from tokenspeed.server.anthropic.schemas import MessagesRequest, PromptFields
from tokenspeed.server.engine_routes import EngineRoutes
from tokenspeed.server.http.errors import JsonResponse, error_response, form_of
from tokenspeed.server.http.guard import Guard
from tokenspeed.server.openai.embeddings import EmbeddingsRequest
from tokenspeed.server.openai.routes import OpenAiRoutes
from tokenspeed.server.openai.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from tokenspeed.server.responses.routes import ResponsesRoutes
from tokenspeed.server.responses.schemas import ResponsesRequest
from tokenspeed.server.service import Service
from tokenspeed.server.session_routes import SessionRoutes
from tokenspeed.server.tenant_routes import TenantBody, TenantRoutes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp

    from tokenspeed.server.http.schema import Body
    from tokenspeed.server.parts import ApiParts

    Handler = Callable[[Request], Awaitable[Response]]


class Route(NamedTuple):
    """One route.

    Args:
        handler: CLASS.METHOD of a room.
        body: schema of what is sent; None: nothing is.
    """

    method: str
    path: str
    handler: str
    body: type[Body] | None = None


ROUTES = (
    Route("POST", "/v1/chat/completions", "openai.chat", ChatRequest),
    Route("POST", "/v1/completions", "openai.completions", CompletionRequest),
    Route("POST", "/v1/embeddings", "openai.embeddings", EmbeddingsRequest),
    Route("POST", "/v1/messages", "anthropic.messages", MessagesRequest),
    Route("POST", "/v1/messages/count_tokens", "anthropic.count_tokens", PromptFields),
    Route("POST", "/v1/responses", "responses.create", ResponsesRequest),
    Route("GET", "/v1/responses/{response_id}", "responses.read"),
    Route("GET", "/v1/responses/{response_id}/input_items", "responses.input_items"),
    Route("DELETE", "/v1/responses/{response_id}", "responses.delete"),
    Route("GET", "/v1/models", "openai.models"),
    Route("GET", "/v1/models/{name:path}", "openai.model"),
    Route("POST", "/tokenize", "openai.tokenize", TokenizeRequest),
    Route("POST", "/detokenize", "openai.detokenize", DetokenizeRequest),
    Route("GET", "/v1/sessions/{name:path}", "sessions.read"),
    Route("DELETE", "/v1/sessions/{name:path}", "sessions.release"),
    Route("GET", "/v1/engine/plan", "engine.plan"),
    Route("GET", "/v1/engine/state", "engine.state"),
    Route("GET", "/tenants", "tenants.list"),
    Route("PUT", "/tenants/{name:path}", "tenants.change", TenantBody),
    Route("GET", "/health", "engine.health"),
    Route("GET", "/metrics", "engine.metrics"),
)
PATHS = tuple(dict.fromkeys(route.path for route in ROUTES))


def create_app(parts: ApiParts) -> ASGIApp:
    """Build the application around its parts."""
    service = Service(parts)
    rooms = {
        "openai": OpenAiRoutes(service),
        "anthropic": AnthropicRoutes(service),
        "responses": ResponsesRoutes(service, parts.responses),
        "sessions": SessionRoutes(parts),
        "engine": EngineRoutes(parts),
        "tenants": TenantRoutes(service),
    }
    app = FastAPI(title="TokenSpeed", docs_url=None, redoc_url=None, redirect_slashes=False)
    for route in ROUTES:
        room, _, name = route.handler.partition(".")
        app.add_api_route(
            route.path,
            _guarded(getattr(rooms[room], name)),
            methods=[route.method],
            response_model=None,
            openapi_extra=_body_of(route.body) if route.body else None,
        )
    app.add_exception_handler(HTTPException, _http_error)
    return Guard(app, keys=parts.keys, metrics=parts.metrics, paths=frozenset(PATHS))


def _guarded(handler: Handler) -> Handler:
    """Answer a route's exceptions here, before a framework's plain-text 500 does."""

    async def route(request: Request) -> Response:
        try:
            return await handler(request)
        except HTTPException:
            raise
        except Exception as error:
            return error_response(error, form_of(request.url.path))

    return route


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer unknown paths and wrong methods in the form of the API that the path belongs to."""
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        text = f"{place}: this method is not allowed here; use {allowed}"
    else:
        text = f"{place}: there is no such route; the routes are {', '.join(sorted(PATHS))}"
    body = form_of(request.url.path).body(text, error.status_code)
    return JsonResponse(body, error.status_code, headers=error.headers)


def _body_of(schema: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
