"""ASGI layer around every route: API key, request counting, and the last catch of errors."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from tokenspeed.errors import RequestError
from tokenspeed.server.errors import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tokenspeed.server.metrics import Metrics

OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Answered without an API key: probes and scrapers have none."""


class Guard:
    """Wraps the application.

    Args:
        api_key: clients must send it as a bearer token; "" is open.
        paths: the routes; others count as one label, so that scanners cannot grow the metrics.
    """

    def __init__(
        self, app: ASGIApp, *, api_key: str, metrics: Metrics, paths: frozenset[str]
    ) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode() if api_key else b""
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._metrics.in_flight.track_inprogress():
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check_key(scope)
            await self._app(scope, receive, counted_send)
        except Exception as error:
            response = error_response(error)
            if not status:
                await response(scope, receive, counted_send)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, str(status or 499)).inc()

    def _check_key(self, scope: Scope) -> None:
        if not self._expected or scope["path"] in OPEN_PATHS:
            return
        given = Headers(scope=scope).get("authorization", "").encode()
        if not hmac.compare_digest(given, self._expected):
            state = "wrong" if given else "missing"
            raise RequestError(
                f"the API key is {state}: {scope['path']} needs the header "
                "'Authorization: Bearer KEY'; send the key this server was started with",
                code="invalid_api_key",
            )
