"""Routes about the engine itself: what it was built from, how it is, what it does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tokenspeed import __version__
from tokenspeed.server.engine_health import UNHEALTHY
from tokenspeed.server.http.errors import JsonResponse
from tokenspeed.server.openapi.document import document
from tokenspeed.server.route_list import ROUTES

if TYPE_CHECKING:
    from starlette.requests import Request

    from tokenspeed.server.parts import ApiParts


class EngineRoutes:
    """Answers the routes by their methods."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts
        self._document: dict[str, Any] | None = None

    async def plan(self, request: Request) -> Response:
        """Answer GET /v1/engine/plan: what the engine was built from and what it chose."""
        return JsonResponse(self._parts.report)

    async def state(self, request: Request) -> Response:
        """Answer GET /v1/engine/state: requests, queue, blocks, last plan, counters as of now."""
        return JsonResponse(await self._parts.frontend.state())

    async def document(self, request: Request) -> Response:
        """Answer GET /openapi.json."""
        if self._document is None:
            self._document = await asyncio.to_thread(self._made)
        return JsonResponse(self._document)

    async def health(self, request: Request) -> Response:
        """Answer GET /health: 200 while steps are completed or none is due, 503 otherwise."""
        state = self._parts.health.state()
        return JsonResponse(state, 503 if state["status"] == UNHEALTHY else 200)

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics."""
        if self._parts.host_memory is not None:
            self._parts.host_memory.tell()
        return Response(self._parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _made(self) -> dict[str, Any]:
        parts = self._parts
        return document(
            ROUTES,
            model=parts.frontend.model.name,
            version=__version__,
            needs_key=bool(parts.keys),
        )
