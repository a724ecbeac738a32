"""Maps the classes of `tokenspeed.errors` to HTTP statuses and OpenAI error bodies.

The one place that knows both. A traceback never leaves the process: an unexpected exception is
logged once here and answered with a 500 that names a log reference.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

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
    PluginError,
    RequestError,
    TimeLimitError,
    TokenSpeedError,
    ToolCallError,
)
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS: tuple[tuple[type[TokenSpeedError], int], ...] = (
    (RequestError, 400),
    (ConfigError, 400),
    (CapabilityError, 400),
    (ToolCallError, 422),
    (PluginError, 500),
    (CheckpointError, 500),
    (EngineGoneError, 503),
    (EngineAwayError, 503),
    (TimeLimitError, 504),
    (EngineError, 500),
)
_MAX_MESSAGE_CHARS = 1000
_MAX_PARAM_CHARS = 200
_CODE_STATUS = {"model_not_found": 404, "invalid_api_key": 401, "body_too_large": 413}


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


def error_body(
    message: str, status: int, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body that OpenAI clients parse; a long text that a client sent is cut here."""
    if len(message) > _MAX_MESSAGE_CHARS:
        message = message[:_MAX_MESSAGE_CHARS] + "..."
    param = param[:_MAX_PARAM_CHARS] if param is not None else None
    return {"error": {"message": message, "type": _type_of(status), "param": param, "code": code}}


def body_of(error: TokenSpeedError) -> dict[str, Any]:
    """Return the OpenAI body of an error of ours."""
    return error_body(
        str(error),
        status_of(error),
        param=getattr(error, "param", None),
        code=getattr(error, "code", None),
    )


def error_response(error: BaseException) -> JsonResponse:
    """Answer any exception: ours by its class, a foreign one as a logged 500."""
    if not isinstance(error, TokenSpeedError):
        return JsonResponse(_internal(error), 500)
    headers: Mapping[str, str] | None = None
    if isinstance(error, CapacityError) and error.retry_after_s is not None:
        headers = {"Retry-After": str(error.retry_after_s)}
    elif isinstance(error, RequestError) and error.code == "invalid_api_key":
        headers = {"WWW-Authenticate": "Bearer"}
    return JsonResponse(body_of(error), status_of(error), headers=headers)


def stream_error(error: BaseException) -> dict[str, Any]:
    """Return the body of the last event of a stream that failed after its 200 was sent."""
    return body_of(error) if isinstance(error, TokenSpeedError) else _internal(error)


def _internal(error: BaseException) -> dict[str, Any]:
    reference = secrets.token_hex(4)
    LOGGER.error("request failed unexpectedly (reference %s)", reference, exc_info=error)
    return error_body(
        f"internal error; the server's log has the details under reference {reference}",
        500,
        code="internal_error",
    )


def _type_of(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 404:
        return "not_found_error"
    if status == 429:
        return "rate_limit_error"
    if status == 504:
        return "timeout_error"
    return "invalid_request_error" if status < 500 else "server_error"
