"""Reads a JSON body: size limit, UTF-8 and JSON errors as clear 4xx answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect

from tokenspeed.errors import RequestError
from tokenspeed.server.http.long_ids import take_out
from tokenspeed.server.http.schema import Schema, read_request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from tokenspeed.server.http.bodies import Bodies
    from tokenspeed.server.http.field_limits import FieldLimits

MAX_NEUTRAL_BYTES = 4096
"""No neutral value is longer: a longer one is shown but not decoded."""
_SURROGATES = re.compile(
    rb"(?:\\\\)+|(\\u[dD][89abAB][0-9a-fA-F]{2})(\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|(\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""Escaped backslashes, which it steps over; high surrogates with their low one; lone low ones."""
_EMPTY_OF: dict[bytes, Any] = {b"[": [], b'"': "", b"n": None, b"t": True, b"f": False}
"""A JSON text's first byte -> a value of its type; numbers are the rest."""
STALL_S = 60.0
"""Longest wait for the next part of a body."""
LONG_BODY_BYTES = 256 * 1024
"""Above this, parsing leaves the event loop."""


async def read_body(
    request: Request,
    schema: type[Schema],
    *,
    max_bytes: int,
    limits: FieldLimits,
    bodies: Bodies,
) -> Schema:
    """Read and check a request's body.

    Args:
        max_bytes: of the whole body.
        limits: of single fields.
        bodies: counts it; whoever ends the request releases it.
    Raises:
        RequestError: too large (413), not JSON, not what the schema says, or it does not come.
        CapacityError: the bodies of other requests fill the memory for them.
    """
    raw = await _read(request, max_bytes, bodies)
    if len(raw) > LONG_BODY_BYTES:
        return await asyncio.to_thread(_parse, raw, schema, limits)
    return _parse(raw, schema, limits)


async def _read(request: Request, max_bytes: int, bodies: Bodies) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(f"Content-Encoding is {encoding!r}, only identity is allowed; drop it")
    _check_size(int(request.headers.get("content-length", "0")), max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        stream = request.stream()
        while (chunk := await _next_of(stream)) is not None:
            size += len(chunk)
            _check_size(size, max_bytes)
            bodies.take(request.scope, len(chunk))
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError("the client went away while it sent its body") from None
    return b"".join(chunks)


async def _next_of(stream: AsyncIterator[bytes]) -> bytes | None:
    """Return the next part of a body; None: that was all.

    Raises:
        RequestError: it does not come.
    """
    try:
        async with asyncio.timeout(STALL_S):
            return await anext(stream, None)
    except TimeoutError:
        raise RequestError(
            f"the body did not go on for {STALL_S:g} s, the connection is given up; send it whole",
            code="body_too_slow",
        ) from None


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise RequestError(
            f"the body has {size} bytes or more, {max_bytes} are allowed; send less, or start "
            "the server with a larger --max-body-mib",
            code="body_too_large",
        )


def _parse(raw: bytes, schema: type[Schema], limits: FieldLimits) -> Schema:
    try:
        raw.decode("utf-8")
        first = raw.lstrip()[:1]
        if first != b"{":
            msgspec.json.decode(raw, type=msgspec.Raw)
            return read_request(schema, _EMPTY_OF.get(first, 0), limits)
        return read_request(schema, _fields(raw, schema, limits), limits)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8: byte {raw[error.start]:#04x} at offset {error.start}; "
            "encode the JSON text as UTF-8",
            code="invalid_json",
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"the body of {len(raw)} bytes is not valid JSON: {_reason(error, raw)}; "
            "send a JSON object",
            code="invalid_json",
        ) from None


def _fields(raw: bytes, schema: type[Schema], limits: FieldLimits) -> dict[str, Any]:
    """Return the decoded fields; a long list of token ids is an int32 array."""
    long = take_out(raw, schema.ids_field, limits) if schema.ids_field else None
    if long is not None:
        with contextlib.suppress(msgspec.DecodeError):  # told below, as of the body that was sent
            fields = msgspec.json.decode(long.rest, type=dict[str, msgspec.Raw])
            if bytes(fields.pop(schema.ids_field, b"")) == long.mark:
                return {**_decoded(fields, schema, limits), schema.ids_field: long.ids}
    return _decoded(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]), schema, limits)


def _decoded(
    fields: dict[str, msgspec.Raw], schema: type[Schema], limits: FieldLimits
) -> dict[str, Any]:
    """Decode what is used; what is refused by its name, or ignored, stays as it came."""
    values: dict[str, Any] = {}
    for name, field in fields.items():
        text = bytes(field)
        if name in schema.model_fields:
            limits.check_raw(name, text)
            values[name] = msgspec.json.decode(text)
        elif name in schema.neutral:
            is_short = len(text) <= MAX_NEUTRAL_BYTES
            values[name] = msgspec.json.decode(text) if is_short else text[:100].decode("latin-1")
        else:
            values[name] = None
    return values


def _reason(error: Exception, raw: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    for match in _SURROGATES.finditer(raw):
        lone = match[3] or (match[1] if match[2] is None else None)
        if lone is not None:
            return f"it holds the lone surrogate {lone.decode()}; write its pair, or the character"
    return str(error)
