"""Maps the classes of `tokenspeed.errors` to HTTP statuses and the error bodies of each API.

The one place that knows them all. A traceback never leaves the process: an unexpected exception is
logged once here and answered with a 500 that names a log reference.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response

from tokenspeed.errors import (
    CapabilityError,
    CapacityError,
    CheckpointError,
    ConfigError,
    EngineAwayError,
    EngineError,
    EngineGoneError,
    PlacementError,
    PluginError,
    RequestError,
    TimeLimitError,
    TokenSpeedError,
    ToolCallError,
)
from tokenspeed.log import LOGGER

_STATUS: tuple[tuple[type[TokenSpeedError], int], ...] = (
    (RequestError, 400),
    (ConfigError, 400),
    (CapabilityError, 400),
    (ToolCallError, 422),
    (PluginError, 500),
    (CheckpointError, 500),
    (PlacementError, 500),
    (EngineGoneError, 503),
    (EngineAwayError, 503),
    (TimeLimitError, 504),
    (EngineError, 500),
)
_MAX_MESSAGE_CHARS = 1000
_MAX_PARAM_CHARS = 200
_CODE_STATUS = {
    "model_not_found": 404,
    "response_not_found": 404,
    "item_not_found": 404,
    "invalid_api_key": 401,
    "not_allowed": 403,
    "body_too_large": 413,
    "body_too_slow": 408,
}


class JsonResponse(Response):
    """A JSON answer encoded by msgspec."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def status_of(error: TokenSpeedError) -> int:
    """Return the HTTP status of an error of ours."""
    if isinstance(error, CapacityError):
        return 400 if error.retry_after_s is None else 429
    if isinstance(error, RequestError) and error.code in _CODE_STATUS:
        return _CODE_STATUS[error.code]
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How one API spells errors.

    Args:
        types: status -> type; of others by class: below 500, and from 500 on.
        has_details: the body names parameter and code.
    """

    types: Mapping[int, str]
    below_500: str
    from_500: str
    has_details: bool

    def body(
        self, message: str, status: int, *, param: str | None = None, code: str | None = None
    ) -> dict[str, Any]:
        """Return the body that clients parse; a long text that a client sent is cut here."""
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[:_MAX_MESSAGE_CHARS] + "..."
        kind = self.types.get(status, self.below_500 if status < 500 else self.from_500)
        if not self.has_details:
            return {"type": "error", "error": {"type": kind, "message": message}}
        param = param[:_MAX_PARAM_CHARS] if param is not None else None
        return {"error": {"message": message, "type": kind, "param": param, "code": code}}


OPENAI = ErrorForm(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        504: "timeout_error",
    },
    below_500="invalid_request_error",
    from_500="server_error",
    has_details=True,
)
ANTHROPIC = ErrorForm(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    },
    below_500="invalid_request_error",
    from_500="api_error",
    has_details=False,
)


def form_of(path: str) -> ErrorForm:
    """Return how errors of a route are spelled."""
    return ANTHROPIC if path.startswith("/v1/messages") else OPENAI


def body_of(error: TokenSpeedError, form: ErrorForm = OPENAI) -> dict[str, Any]:
    """Return the body of an error of ours."""
    return form.body(
        str(error),
        status_of(error),
        param=getattr(error, "param", None),
        code=getattr(error, "code", None),
    )


def error_response(error: BaseException, form: ErrorForm = OPENAI) -> JsonResponse:
    """Answer any exception: ours by its class, a foreign one as a logged 500."""
    if not isinstance(error, TokenSpeedError):
        return JsonResponse(_internal(error, form), 500)
    headers: Mapping[str, str] | None = None
    if isinstance(error, CapacityError) and error.retry_after_s is not None:
        headers = {"Retry-After": str(error.retry_after_s)}
    elif isinstance(error, RequestError) and error.code == "invalid_api_key":
        headers = {"WWW-Authenticate": "Bearer"}
    return JsonResponse(body_of(error, form), status_of(error), headers=headers)


def stream_error(error: BaseException, form: ErrorForm = OPENAI) -> dict[str, Any]:
    """Return the body of the last event of a stream that failed after its 200 was sent."""
    return body_of(error, form) if isinstance(error, TokenSpeedError) else _internal(error, form)


def _internal(error: BaseException, form: ErrorForm) -> dict[str, Any]:
    reference = secrets.token_hex(4)
    LOGGER.error("request failed unexpectedly (reference %s)", reference, exc_info=error)
    return form.body(
        f"internal error; the server's log has the details under reference {reference}",
        500,
        code="internal_error",
    )
