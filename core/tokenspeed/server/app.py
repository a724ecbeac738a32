"""The HTTP application: its routes, each a method of one of the APIs' rooms.

Runs in an API process: no torch, no scheduler; the engine is reached through a Frontend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed.server.anthropic.routes import AnthropicRoutes
from tokenspeed.server.engine_routes import EngineRoutes
from tokenspeed.server.http.errors import JsonResponse, error_response, form_of
from tokenspeed.server.http.guard import Guard
from tokenspeed.server.openai.routes import OpenAiRoutes
from tokenspeed.server.responses.routes import ResponsesRoutes
from tokenspeed.server.route_list import PATHS, ROUTES, methods_of
from tokenspeed.server.service import Service
from tokenspeed.server.session_routes import SessionRoutes
from tokenspeed.server.tenant_routes import TenantRoutes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp

    from tokenspeed.server.parts import ApiParts

    Handler = Callable[[Request], Awaitable[Response]]


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
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    for route in ROUTES:
        room, _, name = route.handler.partition(".")
        app.add_api_route(
            route.path,
            _guarded(getattr(rooms[room], name)),
            methods=[route.method],
            response_model=None,
        )
    app.add_exception_handler(HTTPException, _http_error)
    return Guard(
        app,
        keys=parts.keys,
        metrics=parts.metrics,
        paths=frozenset(PATHS),
        bodies=parts.bodies,
    )


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
    headers = error.headers
    place = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = ", ".join(methods_of(request.url.path))
        headers = {**(error.headers or {}), "Allow": allowed}
        text = f"{place}: this method is not allowed here; use {allowed}"
    else:
        text = f"{place}: there is no such route; the routes are {', '.join(sorted(PATHS))}"
    body = form_of(request.url.path).body(text, error.status_code)
    return JsonResponse(body, error.status_code, headers=headers)
