"""Bodies that several APIs answer with, as types: for the document of the server, and its tests.

Replies are written as plain mappings, which costs least; what they hold is said here.
"""

from __future__ import annotations

import msgspec


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client is sent; a field that may be missing is `| UnsetType`."""


class MatchEnd(Answer, frozen=True):
    """Where a prompt's cached prefix ended, and why it was no longer."""

    position: int
    reason: str


class ErrorDetails(Answer, frozen=True):
    """What failed, the value, what is allowed, what to do; and the field that it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer, frozen=True):
    """An error of the OpenAI APIs."""

    error: ErrorDetails


class MessagesErrorDetails(Answer, frozen=True):
    """What failed."""

    type: str
    message: str


class MessagesError(Answer, frozen=True, tag="error"):
    """An error of the messages API; in a stream its last event."""

    error: MessagesErrorDetails
