"""Reads a JSON body: size limit, UTF-8 and JSON errors as clear 4xx answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import ClientDisconnect

from tokenspeed.errors import RequestError
from tokenspeed.server.openai import Schema, read_request

if TYPE_CHECKING:
    from starlette.requests import Request

LONG_BODY_BYTES = 256 * 1024
"""Above this, parsing leaves the event loop."""


async def read_body(request: Request, schema: type[Schema], *, max_bytes: int) -> Schema:
    """Read and check a request's body.

    Raises:
        RequestError: too large (413), not JSON, or not what the schema says.
    """
    raw = await _read(request, max_bytes)
    if len(raw) > LONG_BODY_BYTES:
        return await asyncio.to_thread(_parse, raw, schema)
    return _parse(raw, schema)


async def _read(request: Request, max_bytes: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise RequestError(f"Content-Encoding is {encoding!r}, only identity is allowed; drop it")
    _check_size(int(request.headers.get("content-length", "0")), max_bytes)
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            _check_size(size, max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise RequestError("the client went away while it sent its body") from None
    return b"".join(chunks)


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise RequestError(
            f"the body has {size} bytes or more, {max_bytes} are allowed; send less, or start "
            "the server with a larger --max-body-mib",
            code="body_too_large",
        )


def _parse(raw: bytes, schema: type[Schema]) -> Schema:
    try:
        raw.decode("utf-8")
        body: Any = msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not UTF-8: byte {raw[error.start]:#04x} at offset {error.start}; "
            "encode the JSON text as UTF-8",
            code="invalid_json",
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(
            f"the body of {len(raw)} bytes is not valid JSON: {reason}; send a JSON object",
            code="invalid_json",
        ) from None
    return read_request(schema, body)
