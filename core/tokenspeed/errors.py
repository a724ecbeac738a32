"""Every error a user can meet, in one tree; `server/http/errors.py` knows their HTTP statuses.

TokenSpeedError
|- ConfigError      a flag, setting or model folder is wrong       (exit 2; HTTP 400)
|- PluginError      a plugin cannot be found, trusted or loaded    (exit 3 or 4)
|- PlacementError   the model cannot lie over these ranks so       (exit 2; HTTP 500)
|- CapabilityError  nothing bound can do what was asked            (exit 5; HTTP 400)
|- CheckpointError  weights, config or tokenizer file is damaged   (exit 1)
|- CapacityError    it can never fit, or the queue is full         (HTTP 400 / 429)
|- RequestError     this request is invalid                        (HTTP 400)
|- ToolCallError    the model wrote a call that cannot be read   (HTTP 422)
`- EngineError      the engine failed this request                 (HTTP 500)
   |- EngineAwayError   it does not answer just now               (HTTP 503)
   |- TimeLimitError    the request's own time limit has passed   (HTTP 504)
   `- EngineGoneError   it died too often and is not restarted    (HTTP 503)

A message has four parts: what failed, the value seen, what was allowed, what to do. Errors about
plugins carry the id of a diagnostic too (`diagnostics.py`).
"""

from __future__ import annotations

import reprlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.diagnostics import exit_code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_CAUSES = 8
MAX_TEXT = 2000
"""Characters of an error of others that are repeated."""
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100


class TokenSpeedError(Exception):
    """Base of all errors raised on purpose; its text is meant for the user.

    `causes` are lines about what lay behind it, where that happened in another process.
    """

    causes: tuple[str, ...] = ()


class ConfigError(TokenSpeedError):
    """A flag, setting, config file or model folder is wrong."""


class IdentifiedError(TokenSpeedError):
    """An error with a diagnostic id, which its text ends with; `message` is the text without.

    Args:
        message: four-part text.
        id: of `diagnostics.py`, explained in docs/plugins/errors.md.
    """

    def __init__(self, message: str, *, id: str) -> None:
        super().__init__(message)
        self.message = message
        self.id = id

    def __str__(self) -> str:
        first, newline, rest = self.message.partition("\n")
        return f"{first} [{self.id}]{newline}{rest}"


class PluginError(IdentifiedError):
    """A plugin cannot be found, trusted, loaded or registered.

    Args:
        message: four-part text.
        id: diagnostic; the default is what a plugin says in its own words.
        exit_code: 3 not trusted, 4 incompatible or failed; None: the diagnostic's.
    """

    def __init__(
        self, message: str, *, id: str = "plugin-refused", exit_code: int | None = None
    ) -> None:
        super().__init__(message, id=id)
        self.exit_code = exit_code_of(id) if exit_code is None else exit_code


class CapabilityError(IdentifiedError):
    """No candidate can do what was asked on this device (exit 5).

    Args:
        message: four-part text; further lines show the record.
        id: diagnostic.
        record: decision record of the choice that failed, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        id: str = "no-candidate",
        record: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, id=id)
        self.record = record


class PlacementError(TokenSpeedError):
    """A placement rule or annotation is wrong, or a tensor cannot be cut over the ranks given."""


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


class ToolCallError(TokenSpeedError):
    """The model wrote a tool call that cannot be read; asking again may help.

    Args:
        message: four-part text.
        text: what the model wrote, as far as it is shown.
    """

    code = "invalid_tool_call"

    def __init__(self, message: str, *, text: str = "") -> None:
        super().__init__(message)
        self.text = text


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


def shown(value: object) -> str:
    """Return a value as an error message quotes it: cut short, unprintable characters escaped."""
    return _REPR.repr(value)


def told(error: BaseException) -> str:
    """Return "TYPE: text" of an error that others made, cut short."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    name = type(error).__name__
    return f"{name}: {text[:MAX_TEXT]}{'...' if len(text) > MAX_TEXT else ''}"


@contextmanager
def plugin_code() -> Iterator[None]:
    """Run code of a plugin: `sys.exit` and its like end no process of ours, they are errors.

    Raises:
        RuntimeError: something else than an Exception or Ctrl-C came out.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"it ended with {told(error)}; a plugin ends no process") from error


def cause_lines(error: BaseException, *, with_itself: bool = False) -> tuple[str, ...]:
    """Return what lay behind an error, the nearest cause first: "TYPE: text (FILE:LINE)".

    Errors of ours whose text the outer one already repeats are left out; causes from another
    process follow at the end.
    """
    lines: list[str] = []
    outer = "" if with_itself else str(error)
    current: BaseException | None = error if with_itself else _cause_of(error)
    carried = getattr(error, "causes", ())
    while current is not None and len(lines) < MAX_CAUSES:
        carried = getattr(current, "causes", ()) or carried
        text = getattr(current, "message", None)
        if not isinstance(text, str) or text not in outer:
            lines.append(f"{told(current)}{_place(current)}")
        current = _cause_of(current)
    return tuple(lines) + tuple(map(str, carried))


def _cause_of(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _place(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    file = Path(frames[-1].filename)
    return f" ({file.parent.name}/{file.name}:{frames[-1].lineno})"


def reason_of(error: BaseException) -> str:
    """Return why something failed, for a message that names the file itself: OSErrors repeat it."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
