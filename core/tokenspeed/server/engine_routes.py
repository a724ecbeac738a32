"""Routes about the engine itself: what it was built from, how it is, what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from tokenspeed.server.engine_health import OK
from tokenspeed.server.http.errors import JsonResponse

if TYPE_CHECKING:
    from starlette.requests import Request

    from tokenspeed.server.parts import ApiParts


class EngineRoutes:
    """Answers the routes by their methods."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def plan(self, request: Request) -> Response:
        """Answer GET /v1/engine/plan: what the engine was built from and what it chose."""
        return JsonResponse(self._parts.report)

    async def state(self, request: Request) -> Response:
        """Answer GET /v1/engine/state: requests, queue, blocks, last plan, counters as of now."""
        return JsonResponse(await self._parts.frontend.state())

    async def health(self, request: Request) -> Response:
        """Answer GET /health: 200 while steps are completed or none is due, 503 otherwise."""
        state = self._parts.health.state()
        return JsonResponse(state, 200 if state["status"] == OK else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer GET /metrics."""
        if self._parts.host_memory is not None:
            self._parts.host_memory.tell()
        return Response(self._parts.metrics.render(), media_type=CONTENT_TYPE_LATEST)
