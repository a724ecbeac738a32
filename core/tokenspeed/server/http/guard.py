"""ASGI layer around every route: API key, request counting, and the last catch of errors.

An error that is answered before the whole body has come is sent after the rest was read and
dropped, up to a bound: most clients read no answer before they have sent all.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.terms import KEY_TENANT
from tokenspeed.server.http.errors import error_response, form_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tokenspeed.server.http.api_keys import ApiKeys
    from tokenspeed.server.http.bodies import Bodies
    from tokenspeed.server.metrics import Metrics

DRAINED_BYTES = 256 << 20
DRAIN_S = 10.0
OPEN_PATHS = frozenset({"/health", "/metrics"})
"""Answered without an API key: probes and scrapers have none."""


class Guard:
    """Wraps the application.

    Args:
        keys: clients must send one as a bearer token; none: the server is open.
        paths: the routes; others count as one label, so that scanners cannot grow the metrics.
        bodies: a request's body is released when it has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: ApiKeys,
        metrics: Metrics,
        paths: frozenset[str],
        bodies: Bodies,
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._keys = keys
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
        receive = body = _Body(scope, receive)

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status >= 400:
                    await body.drain()
            await send(message)

        try:
            self._check_key(scope)
            await self._app(scope, receive, counted_send)
        except Exception as error:
            response = error_response(error, form_of(scope["path"]))
            if not status:
                await response(scope, receive, counted_send)
        finally:
            self._bodies.release(scope)
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, str(status or 499)).inc()

    def _check_key(self, scope: Scope) -> None:
        if not self._keys or scope["path"] in OPEN_PATHS:
            return
        headers = Headers(scope=scope)
        given = headers.get("authorization", "")
        if not given and "x-api-key" in headers:
            given = f"Bearer {headers['x-api-key']}"
        tenant = self._keys.tenant_of(given)
        if tenant is None:
            state = "wrong" if given else "missing"
            raise RequestError(
                f"the API key is {state}: {scope['path']} needs the header "
                "'Authorization: Bearer KEY' or 'x-api-key: KEY'; send the key this server was "
                "started with",
                code="invalid_api_key",
            )
        scope[KEY_TENANT] = tenant


class _Body:
    """A request's `receive`, which knows whether the body has come to its end."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        # A client that asks first has sent nothing yet.
        self._is_open = has_body and "expect" not in headers
        self._receive = receive

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._is_open = False
        return message

    async def drain(self) -> None:
        """Read and drop what is left of the body."""
        left = DRAINED_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while self._is_open and left > 0:
                    left -= len((await self()).get("body", b""))
