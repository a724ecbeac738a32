"""Routes about sessions: what one cost so far, and its end.

A client reaches the sessions that its key, or its tenant, names: those of another owner are unknown
to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.terms import owner_of
from tokenspeed.server.http.errors import OPENAI, JsonResponse
from tokenspeed.server.http.fields import shorten

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from tokenspeed.engine.messages import SessionReply
    from tokenspeed.server.parts import ApiParts

FLAGS = {"true": True, "1": True, "false": False, "0": False}
RELEASE_FLAGS = frozenset({"group", "abort"})


class SessionRoutes:
    """Answers the routes by their methods."""

    def __init__(self, parts: ApiParts) -> None:
        self._parts = parts

    async def read(self, request: Request) -> Response:
        """Answer GET /v1/sessions/NAME: family and sums."""
        _flags(request, frozenset())
        name = request.path_params["name"]
        reply = await self._parts.frontend.session(owner_of(request), name)
        return _answer(reply, name)

    async def release(self, request: Request) -> Response:
        """Answer DELETE /v1/sessions/NAME: drop what it alone left in the cache."""
        flags = _flags(request, RELEASE_FLAGS)
        name = request.path_params["name"]
        reply = await self._parts.frontend.release_session(owner_of(request), name, **flags)
        return _answer(reply, name)


def _answer(reply: SessionReply, name: str) -> Response:
    body: dict[str, Any] = msgspec.msgpack.decode(reply.body)
    if reply.outcome == "unknown":
        text = (
            f"session {shorten(name)} is not known: none of this key's or tenant's had a turn "
            "lately under this name; use a name that its requests sent, with the same key"
        )
        return JsonResponse(OPENAI.body(text, 404, param="name", code="session_not_found"), 404)
    if reply.outcome == "busy":
        text = (
            f"session {shorten(name)} cannot be released: {sum(body['live_requests'].values())} "
            "requests of it, or of its group, did not end; wait for their ends, or add ?abort=true"
        )
        return JsonResponse(
            {**OPENAI.body(text, 409, param="abort", code="session_busy"), **body}, 409
        )
    return JsonResponse({"session": name, **body})


def _flags(request: Request, names: frozenset[str]) -> dict[str, bool]:
    """Read a query of flags.

    Raises:
        RequestError: one is not known here, or neither true nor false.
    """
    flags = {}
    for name, value in request.query_params.items():
        if name not in names or value not in FLAGS:
            allowed = ", ".join(f"{flag}=true|false" for flag in sorted(names)) or "none"
            raise RequestError(
                f"query parameter {shorten(name)} is {shorten(value)}; allowed: {allowed}; correct "
                "or drop it",
                param=name,
            )
        flags[name] = FLAGS[value]
    return flags
