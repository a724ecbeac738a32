"""Every error a user can meet, in one tree; `server/errors.py` maps each class to an HTTP status.

TokenSpeedError
|- ConfigError      a flag, setting or model folder is wrong       (exit 2; HTTP 400)
|- PluginError      a plugin cannot be found, trusted or loaded    (exit 3 or 4)
|- CapabilityError  nothing bound can do what was asked            (exit 5; HTTP 400)
|- CheckpointError  weights, config or tokenizer file is damaged   (exit 1)
|- CapacityError    it can never fit, or the queue is full         (HTTP 400 / 429)
|- RequestError     this request is invalid                        (HTTP 400)
`- EngineError      the engine failed this request                 (HTTP 500)
   |- EngineAwayError   it does not answer just now               (HTTP 503)
   |- TimeLimitError    the request's own time limit has passed   (HTTP 504)
   `- EngineGoneError   it died too often and is not restarted    (HTTP 503)

A message has four parts: what failed, the value seen, what was allowed, what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class TokenSpeedError(Exception):
    """Base of all errors raised on purpose; its text is meant for the user."""


class ConfigError(TokenSpeedError):
    """A flag, setting, config file or model folder is wrong."""


class PluginError(TokenSpeedError):
    """A plugin cannot be found, trusted, loaded or registered.

    Args:
        message: four-part text.
        exit_code: 3 not trusted, 4 incompatible or failed (PLUGINS "Commands").
    """

    def __init__(self, message: str, *, exit_code: int = 4) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class CapabilityError(TokenSpeedError):
    """No candidate can do what was asked on this device.

    Args:
        message: four-part text.
        record: decision record of the choice that failed, where there is one.
    """

    def __init__(self, message: str, *, record: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.record = record


class CheckpointError(TokenSpeedError):
    """A weights, config or tokenizer file is missing, truncated or damaged."""


class RequestError(TokenSpeedError):
    """This request is invalid.

    Args:
        message: four-part text.
        param: name of the offending request field, for the OpenAI error body.
        code: OpenAI error code such as `context_length_exceeded`.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class CapacityError(TokenSpeedError):
    """A request can never fit (retry_after_s is None), or the queue is full now."""

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineError(TokenSpeedError):
    """The engine failed this request: a guard tripped, or it crashed the engine twice."""


class EngineAwayError(EngineError):
    """The engine does not answer just now: it is in a long step, or is being restarted."""


class TimeLimitError(EngineError):
    """The request's own time limit has passed before its answer was complete."""


class EngineGoneError(EngineError):
    """The engine died too often and is not restarted: no request can be served any more."""
