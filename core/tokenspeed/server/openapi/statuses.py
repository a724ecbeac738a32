"""What each status of an error means, and the headers that come with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.server.route_list import Route

_MEANINGS = {
    400: "a field is wrong, unknown or not supported, or the prompt is too long",
    401: "the API key is missing or wrong",
    403: "the API key is that of a tenant, and this is for the server's own",
    404: "there is no such model, session or stored response",
    408: "the body came too slowly",
    409: "requests of the session are under way",
    413: "the body is larger than the server takes",
    422: "the model made a call that is none",
    429: "the queue is full, or the request waited in it for too long",
    500: "the engine failed this request",
    503: "the engine was given up, does not answer just now, or the server stops",
    504: "the request's own timeout_s passed",
}
_HEADERS = {
    401: ("WWW-Authenticate", {"type": "string", "const": "Bearer"}),
    429: ("Retry-After", {"type": "string", "pattern": "^[0-9]+$"}),
}


def statuses_of(route: Route, *, needs_key: bool) -> dict[int, str]:
    """Return the errors of a route, by status."""
    statuses = {*route.errors, 500} | ({401} if needs_key else set())
    return {status: _MEANINGS[status] for status in sorted(statuses)}


def headers_of(status: int) -> dict[str, Any]:
    """Return what a response says of its headers; {}: there is nothing to say."""
    if status not in _HEADERS:
        return {}
    name, schema = _HEADERS[status]
    return {"headers": {name: {"schema": schema, "required": True}}}
