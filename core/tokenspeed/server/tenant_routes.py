"""Routes about tenants: floors and caps of KV cache, and what each tenant has.

For whoever runs the server: a tenant's own API key is refused. The engine keeps the truth, so all
API processes answer alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.engine.messages import TenantFigures
from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.terms import KEY_TENANT
from tokenspeed.server.http.errors import JsonResponse
from tokenspeed.server.http.numbers import Integer
from tokenspeed.server.http.schema import Body

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.engine.messages import TenantState
    from tokenspeed.server.service import Service

MAX_BYTES = 1 << 60


class TenantBody(Body):
    """What a tenant is to have from now on; null, or nothing: none."""

    floor_bytes: Integer | None = None
    cap_bytes: Integer | None = None


class TenantRoutes:
    """Answers the routes by their methods."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        """Answer GET /tenants."""
        _check_right(request)
        return _answer(await self._service.parts.frontend.tenants())

    async def change(self, request: Request) -> Response:
        """Answer PUT /tenants/NAME: all tenants, as they are then."""
        _check_right(request)
        body = await self._service.read(request, TenantBody)
        for field in ("floor_bytes", "cap_bytes"):
            _check_bytes(field, getattr(body, field))
        figures = TenantFigures(body.floor_bytes, body.cap_bytes)
        name = request.path_params["name"]
        return _answer(await self._service.parts.frontend.change_tenant(name, figures))


def _answer(states: Sequence[TenantState]) -> Response:
    return JsonResponse({"tenants": [msgspec.structs.asdict(state) for state in states]})


def _check_right(request: Request) -> None:
    """Let the server's own key pass, and everybody where no key is needed."""
    tenant = request.scope.get(KEY_TENANT)
    if tenant:
        raise RequestError(
            f"the API key is that of tenant {tenant!r}; floors and caps of tenants are for the key "
            "that the server was started with (--api-key); send that one",
            code="not_allowed",
        )


def _check_bytes(field: str, value: Any) -> None:
    if value is not None and not 0 <= value <= MAX_BYTES:
        raise RequestError(
            f"{field} is {value}; 0 to {MAX_BYTES} bytes are allowed, or null for none; change it",
            param=field,
        )
